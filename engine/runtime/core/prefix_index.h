// PrefixIndex: which full pages of tokens have been seen, as a trie whose edges are pages of exactly P token
// ids. A node's identity is its parent plus its tokens, compared id by id, so a hash only speeds the search
// up: a collision costs a comparison, never a wrong answer. A node may carry one block per cache group. Roots
// are pairs of adapter and cache salt. What it is not: it owns no blocks and knows no reference counts;
// BlockManager tells it what lies where.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oar {

// Under what pages are known: equal tokens mean equal keys and values only for the same adapter, and are
// shared only between equal salts. A pair, never one string: no salt can name another adapter's pages.
struct PrefixRoot {
  uint64_t adapter = 0;  // load id; 0: the model without one
  std::string_view salt;
  auto operator<=>(const PrefixRoot&) const = default;
};

// Engine thread only. Memory is fixed at construction, apart from the salts' strings.
class PrefixIndex {
 public:
  static constexpr int32_t kNone = -1;

  // `capacity` nodes at most; `seed` keys the hash so that clients cannot aim at one bucket.
  PrefixIndex(int32_t page_tokens, int32_t num_groups, int32_t capacity, uint64_t seed);

  // Its node, made when absent; kNone when no node is left.
  int32_t root(const PrefixRoot& root);
  // The child of `parent` along `page` (P tokens); kNone when absent.
  int32_t child(int32_t parent, std::span<const int32_t> page) const;
  // Makes that child, which must be absent; kNone when no node is left.
  int32_t add_child(int32_t parent, std::span<const int32_t> page);

  int32_t block(int32_t node, int32_t group) const { return blocks_[index(node, group)]; }
  void attach(int32_t node, int32_t group, int32_t block);
  // Takes the block off; the node and then its ancestors go when nothing needs them.
  void detach(int32_t node, int32_t group);

  int32_t parent(int32_t node) const { return nodes_[node].parent; }
  // A sequence whose last full page is `node` pins it, so that the chain lives even after its blocks are
  // gone.
  void pin(int32_t node) { ++nodes_[node].pins; }
  void unpin(int32_t node);

  int32_t size() const { return capacity_ - static_cast<int32_t>(free_.size()); }
  int32_t capacity() const { return capacity_; }

 private:
  struct Root {
    uint64_t adapter;
    std::string salt;
    operator PrefixRoot() const { return {adapter, salt}; }  // NOLINT: the same as a view
  };
  struct RootOrder {
    using is_transparent = void;
    bool operator()(const PrefixRoot& a, const PrefixRoot& b) const { return a < b; }
  };
  struct Node {
    int32_t parent = kNone;
    int32_t next = kNone;  // in the bucket
    int32_t children = 0;
    int32_t pins = 0;
    int32_t attached = 0;  // groups with a block
    uint64_t hash = 0;
    const Root* root = nullptr;  // a root's key in roots_, whose keys do not move
  };
  size_t index(int32_t node, int32_t group) const {
    return static_cast<size_t>(node) * static_cast<size_t>(num_groups_) + static_cast<size_t>(group);
  }
  const int32_t* tokens(int32_t node) const {
    return tokens_.data() + static_cast<size_t>(node) * static_cast<size_t>(page_tokens_);
  }
  uint64_t hash_page(int32_t parent, std::span<const int32_t> page) const;
  int32_t take_node(int32_t parent);
  void prune(int32_t node);

  int32_t page_tokens_, num_groups_, capacity_;
  uint64_t seed_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;   // [capacity, P]
  std::vector<int32_t> blocks_;   // [capacity, groups]
  std::vector<int32_t> buckets_;  // heads of chains, a power of two
  std::vector<int32_t> free_;
  std::map<Root, int32_t, RootOrder> roots_;
};

}  // namespace oar
