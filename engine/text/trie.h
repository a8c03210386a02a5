// A byte trie over a set of strings with an int32 value each, for common-prefix and longest-match search.
// Immutable; children of a node are contiguous and sorted, the root has a direct table.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace oar {

class Trie {
 public:
  static constexpr int32_t kNone = -1;

  Trie() { root_.fill(kNoNode); }
  // Values must be >= 0; of equal keys the first counts; empty keys are ignored.
  explicit Trie(std::vector<std::pair<std::string_view, int32_t>> entries);

  bool empty() const { return nodes_.empty(); }

  // A walk from the root, byte by byte.
  class Cursor {
   public:
    explicit Cursor(const Trie& trie) : trie_(trie) {}
    // False when no key continues with this byte; the cursor is then spent.
    bool step(char byte) {
      node_ =
          started_ ? trie_.child(node_, static_cast<uint8_t>(byte)) : trie_.root_[static_cast<uint8_t>(byte)];
      started_ = true;
      return node_ != kNoNode;
    }
    int32_t value() const { return trie_.nodes_[node_].value; }  // kNone when no key ends here

   private:
    const Trie& trie_;
    uint32_t node_ = 0;
    bool started_ = false;
  };

  struct Match {
    int32_t value = kNone;
    size_t length = 0;
  };
  // The longest key that text begins with.
  Match longest_prefix(std::string_view text) const;
  // Whether some key begins with this byte: a cheap filter before a walk.
  bool starts_with(char byte) const { return root_[static_cast<uint8_t>(byte)] != kNoNode; }

 private:
  static constexpr uint32_t kNoNode = 0xFFFFFFFF;
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    uint8_t label = 0;
    int32_t value = kNone;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;

  std::vector<Node> nodes_;  // breadth first, without the root
  std::array<uint32_t, 256> root_;
};

}  // namespace oar
