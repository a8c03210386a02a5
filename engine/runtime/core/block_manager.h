// BlockManager: who holds which block of the KV pools. It has pages of several cache groups (layers of one
// page size and window) and one block table per sequence and group. It counts references, says what is copied
// on write, and evicts unreferenced blocks of the prefix cache by LRU. It counts blocks; it never touches
// bytes and knows no device.
//
// A block is in exactly one of three states, so free + cached + used == total in each group, always:
//   free    on the free list, contents meaningless
//   used    referenced by one or more sequences
//   cached  referenced by nobody, contents named by a node of the PrefixIndex, on the LRU list
//
// Windowed groups. A query at position q of a group with window W sees positions (q - W, q]. A block leaves
// its sequence once all its positions are <= q - W. A prefix of L tokens is a hit when every full-context
// group holds all its blocks. Every windowed group must hold those that a query at position L can see; what
// lies before them is not needed.
//
// Groups beside quantized pages. A kOpen group holds the 16-bit pages of positions that may still be
// computed: a query sees its own page alone, so to this file it is a window of one page. Its blocks are never
// cached: hits end at page borders, where a new page opens. A kFirst group holds one block per sequence, of
// the first page, shared and cached with it; its table has one entry.
//
// Recurrent state (kernels/state.h). Entry i of a kState group is the state behind page i: a query at
// position q is computed from the one behind the page in front of q's, so to this file it is a window whose
// pages are few. A step keeps the state behind the last page that it fills, and the one in front of its last
// row, which a roll-back may run again. Other entries are holes. A
// state is written whole, by the step that fills its page, so a shared one is never copied. It is cached only
// where name_state() or every snapshot_tokens says so: a snapshot. A prefix hits where there is one, and
// without the page in front of it none does: the two go together. The kRows group holds the rows of the page
// in front of which that state stands; as a kOpen group's, they are never cached. A step keeps those of its
// last page, and, of a step of at most P rows, of its first as well: so a roll-back to any row of such a
// step, and to the last of a longer one, finds what it needs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/runtime/core/model_runner.h"
#include "engine/runtime/core/prefix_index.h"

namespace oar {

inline constexpr int32_t kNoBlock = -1;

// The tokens of a sequence where they lie.
struct TokenView {
  std::span<const int32_t> prompt, output;
  int64_t size() const { return static_cast<int64_t>(prompt.size() + output.size()); }
  int32_t operator[](int64_t i) const {
    const size_t u = static_cast<size_t>(i);
    return u < prompt.size() ? prompt[u] : output[u - prompt.size()];
  }
};

// One sequence's block tables; only BlockManager writes it. Entry i of a group holds positions [i P, (i + 1)
// P).
struct BlockTables {
  struct Group {
    std::vector<int32_t> blocks;  // kNoBlock: left the window, or a hole
    int32_t first = 0;            // entries before it have left the window
  };
  std::vector<Group> groups;
  int32_t tail = PrefixIndex::kNone;  // node of the last published page, or a root; pinned
  int32_t published = 0;              // pages named in the index, from the first on
};

struct BlockStats {
  int64_t total = 0, free = 0, used = 0, cached = 0;
};

// Where a batch finds the blocks of one group: the slot that each row is written to, and a table for each
// sequence. Both are filled in the order of the rows.
struct GroupAddresses {
  std::vector<int32_t> slots, tables;  // [T]; [B, max_blocks]
  int64_t max_blocks = 0;

  // Rows of positions [from, to) of the next sequence.
  void add_rows(const BlockTables::Group& table, CachePages pages, int32_t page_tokens, int64_t from,
                int64_t to);
  // Room for the tables of sequences of so many tokens, and the table of sequence b of them.
  void start_tables(std::span<const int32_t> context_len, CachePages pages, int32_t page_tokens);
  void set_table(size_t b, const BlockTables::Group& table, int64_t context_len, int32_t page_tokens);
};

// Engine thread only. No allocation after construction, except each BlockTables' vectors on first use and
// salts.
class BlockManager {
 public:
  struct Options {
    int32_t page_tokens = 0;
    std::vector<CacheGroup> groups;
    int64_t max_context = 0;  // longest table
    bool prefix_cache = true;
    uint64_t hash_seed = 0;
    int32_t depth = 0;  // SchedulerOptions: each step in flight is one row more to be rolled back
    int64_t snapshot_tokens =
        0;  // states are cached behind every so many tokens, where there is room; 0: none
    // A page is known by its tokens and by which of them were generated (SchedulerOptions::phases).
    bool phases = false;
  };
  explicit BlockManager(const Options& options);

  int32_t page_tokens() const { return page_tokens_; }
  int32_t num_groups() const { return static_cast<int32_t>(pools_.size()); }
  int64_t window(int32_t group) const { return pools_[static_cast<size_t>(group)].window; }
  CachePages pages(int32_t group) const { return pools_[static_cast<size_t>(group)].pages; }
  bool has_states() const { return has_states_; }
  int64_t blocks_for(int64_t tokens) const { return (tokens + page_tokens_ - 1) / page_tokens_; }

  // Blocks that an allocation can still get: free ones and cached ones.
  int64_t available(int32_t group) const;
  int64_t total(int32_t group) const {
    return static_cast<int64_t>(pools_[static_cast<size_t>(group)].ref.size());
  }
  // Grows whenever a block becomes available: a caller that was refused need not ask again before.
  uint64_t releases() const { return releases_; }

  // Makes fresh tables ready. Their vectors never grow past this.
  void prepare(BlockTables& tables) const;
  // The longest cached prefix of at most `limit` tokens, in whole pages; references its blocks. Fresh tables
  // only.
  int64_t match(BlockTables& tables, const PrefixRoot& root, const TokenView& tokens, int64_t limit);
  // The most of `want` positions from `from` on that reserve() could make writable now, in a step whose first
  // position of this sequence is `begin` (-1: `from`).
  int64_t reservable(const BlockTables& tables, int64_t from, int64_t want, int64_t begin = -1) const;
  // Makes positions [from, to) writable: new blocks, and copies of shared ones appended to `copies` in the
  // order they must be performed. False, with nothing changed, when the pool does not hold it.
  bool reserve(BlockTables& tables, int64_t from, int64_t to, std::vector<BlockCopy>& copies,
               int64_t begin = -1);
  // Names the pages of the first `computed` tokens in the prefix cache, and shares a block that holds the
  // same tokens already. Only for tokens whose step has run and which will not be taken back.
  void publish(BlockTables& tables, const TokenView& tokens, int64_t computed);
  // Caches the state behind published page `page` (a snapshot), where the sequence still has it.
  void name_state(BlockTables& tables, int64_t page);
  // Takes the names off all that lies along this sequence's chain, whoever computed it, and publishes no more
  // of it: nobody who comes later finds what it holds.
  void forget(BlockTables& tables);
  // Lets go of blocks that no query at `position` or later can see, in groups [first, end).
  void leave_window(BlockTables& tables, int64_t position, int32_t first, int32_t end);
  // `to` (fresh) shares all blocks of `from`.
  void fork(const BlockTables& from, BlockTables& to);
  void release(BlockTables& tables);
  // Forgets every cached block.
  void clear_cache();

  // First table entry that a query at `position` sees: of its window, or of a kOpen group its own page.
  int64_t first_visible(int32_t group, int64_t position) const;
  BlockStats stats(int32_t group) const;
  BlockStats stats() const;  // of all groups together
  int32_t references(int32_t group, int32_t block) const {
    return pools_[static_cast<size_t>(group)].ref[static_cast<size_t>(block)];
  }
  // Walks everything; for tests. `tables`: all that are alive. INTERNAL names the first broken invariant.
  Status verify(std::span<const BlockTables* const> tables) const;

 private:
  // Blocks of one group. `next` and `prev` link the LRU list (oldest first) of cached blocks.
  struct Pool {
    int64_t window = 0;
    CachePages pages = CachePages::kAll;
    std::vector<int32_t> ref, node, next, prev, free;
    int32_t lru_head = kNoBlock, lru_tail = kNoBlock;
    int64_t cached = 0;
  };
  static bool holds_contexts(const Pool& p) { return p.pages == CachePages::kAll && p.window == 0; }
  int32_t take(Pool& pool, int32_t group);
  void acquire(Pool& pool, int32_t block);
  void drop(Pool& pool, int32_t block);
  void unlink(Pool& pool, int32_t block);
  bool evict_oldest(int32_t group);
  void unname(int32_t group, int32_t block);
  // Entries of a group with holes that a step of positions [begin, to) writes to, ascending.
  struct Few {
    int64_t entries[4];
    int count = 0;
    void add(int64_t entry) {
      if (count == 0 || entries[count - 1] != entry) entries[count++] = entry;
    }
    bool has(int64_t entry) const {
      for (int k = 0; k < count; ++k)
        if (entries[k] == entry) return true;
      return false;
    }
  };
  Few written(CachePages pages, int64_t begin, int64_t to) const;
  int64_t reservable_once(const BlockTables& tables, int64_t from, int64_t want, int64_t begin) const;
  int64_t reservable_few(const BlockTables& tables, int32_t group, int64_t from, int64_t want,
                         int64_t begin) const;
  void reserve_few(BlockTables& tables, int32_t group, int64_t to, std::vector<BlockCopy>& copies,
                   int64_t begin);
  void name_block(int32_t group, int32_t node, int32_t& block);
  template <class Make>
  int32_t make_node(Make&& make);
  bool publish_page(BlockTables& tables, std::span<const int32_t> page);
  std::span<const int32_t> page_of(const TokenView& tokens, int64_t index);

  int32_t page_tokens_;
  int64_t max_blocks_;
  bool prefix_cache_, has_states_ = false;
  int64_t again_;  // last rows of a step that may run again without drafts
  int64_t snapshot_tokens_;
  bool phases_;
  std::vector<Pool> pools_;
  PrefixIndex index_;
  uint64_t releases_ = 0;
  std::vector<int32_t> page_;  // [P] scratch
  std::vector<int32_t> path_;  // nodes of a match, reserved
  std::vector<int64_t> run_;   // [groups] blocks present without a gap up to the current depth
};

}  // namespace oar
