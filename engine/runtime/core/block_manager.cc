// Block accounting. Releasing walks a table from its end, so a page's block is always older in the LRU list
// than its parent's: eviction takes leaves first and never cuts a cached chain in two.
#include "engine/runtime/core/block_manager.h"

#include <algorithm>

#include "engine/base/format.h"

namespace oar {
namespace {

// Every cached page needs a node, and so do the pages before it, even when their own blocks are gone (a
// windowed group keeps the end of a chain only). Twice the blocks plus a few chains leaves room for those;
// when it does not, the oldest cached blocks make way.
int32_t index_capacity(const BlockManager::Options& o) {
  if (!o.prefix_cache) return 0;
  int64_t blocks = 0;
  bool all = false;
  for (const CacheGroup& g : o.groups) {
    blocks += g.num_blocks;
    all |= g.pages == CachePages::kAll;
  }
  // Of recurrent state alone, few pages of a chain have blocks: chains of the longest context, up to 16 MiB.
  constexpr int64_t kMost = 16 << 20;
  const int64_t pages = o.max_context / o.page_tokens + 1, node = 4 * int64_t{o.page_tokens} + 64;
  const int64_t chains = all ? 0 : std::max(2 * pages, std::min(blocks * pages, kMost / node));
  return static_cast<int32_t>(std::min<int64_t>(2 * blocks + 64 + chains, INT32_MAX / 4));
}

// Hits end at page borders, where a new page opens.
bool never_cached(CachePages pages) { return pages == CachePages::kOpen || pages == CachePages::kRows; }

}  // namespace

BlockManager::BlockManager(const Options& o)
    : page_tokens_(o.page_tokens),
      max_blocks_((o.max_context + o.page_tokens - 1) / o.page_tokens),
      prefix_cache_(o.prefix_cache),
      again_(1 + o.depth),
      snapshot_tokens_(o.snapshot_tokens),
      phases_(o.phases),
      index_(o.page_tokens, static_cast<int32_t>(o.groups.size()), index_capacity(o), o.hash_seed) {
  OAR_CHECK(o.page_tokens > 0 && o.max_context > 0 && !o.groups.empty());
  pools_.resize(o.groups.size());
  for (size_t g = 0; g < pools_.size(); ++g) {
    const size_t n = static_cast<size_t>(o.groups[g].num_blocks);
    Pool& p = pools_[g];
    p.window = o.groups[g].window;
    p.pages = o.groups[g].pages;
    has_states_ |= p.pages == CachePages::kState;
    p.ref.assign(n, 0);
    p.node.assign(n, PrefixIndex::kNone);
    p.next.assign(n, kNoBlock);
    p.prev.assign(n, kNoBlock);
    p.free.resize(n);
    for (size_t i = 0; i < n; ++i) p.free[i] = static_cast<int32_t>(n - 1 - i);  // block 0 is taken first
  }
  page_.resize(static_cast<size_t>(page_tokens_));
  path_.reserve(static_cast<size_t>(max_blocks_));
  run_.resize(pools_.size());
}

int64_t BlockManager::available(int32_t group) const {
  const Pool& p = pools_[static_cast<size_t>(group)];
  return static_cast<int64_t>(p.free.size()) + p.cached;
}

int64_t BlockManager::first_visible(int32_t group, int64_t position) const {
  if (pages(group) == CachePages::kOpen || pages(group) == CachePages::kRows) return position / page_tokens_;
  if (pages(group) == CachePages::kState) return std::max<int64_t>(0, position / page_tokens_ - 1);
  const int64_t w = window(group);
  return w == 0 ? 0 : std::max<int64_t>(0, position - w + 1) / page_tokens_;
}

void BlockManager::prepare(BlockTables& t) const {
  t.groups.resize(pools_.size());
  for (auto& g : t.groups) {
    OAR_CHECK(g.blocks.empty());
    g.blocks.reserve(static_cast<size_t>(max_blocks_));
    g.first = 0;
  }
}

// ---- single blocks
// --------------------------------------------------------------------------------------------

void BlockManager::unlink(Pool& p, int32_t b) {
  const int32_t before = p.prev[b], after = p.next[b];
  (before == kNoBlock ? p.lru_head : p.next[before]) = after;
  (after == kNoBlock ? p.lru_tail : p.prev[after]) = before;
  p.next[b] = p.prev[b] = kNoBlock;
  --p.cached;
}

bool BlockManager::evict_oldest(int32_t group) {
  Pool& p = pools_[static_cast<size_t>(group)];
  if (p.lru_head == kNoBlock) return false;
  unname(group, p.lru_head);
  return true;
}

// A cached block becomes a free one; one in use will. Without a page of whole contexts nothing hits at its
// end: the snapshot there goes with it. Those behind went with pages of their own, which are evicted first.
void BlockManager::unname(int32_t group, int32_t b) {
  Pool& p = pools_[static_cast<size_t>(group)];
  if (has_states_ && holds_contexts(p)) {
    for (int32_t g = 0; g < num_groups(); ++g)
      if (const int32_t state = index_.block(p.node[b], g);
          pages(g) == CachePages::kState && state != kNoBlock)
        unname(g, state);
  }
  index_.detach(p.node[b], group);
  p.node[b] = PrefixIndex::kNone;
  if (p.ref[b] > 0) return;
  unlink(p, b);
  p.free.push_back(b);
}

int32_t BlockManager::take(Pool& p, int32_t group) {
  if (p.free.empty()) OAR_CHECK(evict_oldest(group), "taking a block from an exhausted pool");
  const int32_t b = p.free.back();
  p.free.pop_back();
  p.ref[b] = 1;
  return b;
}

void BlockManager::acquire(Pool& p, int32_t b) {
  if (p.ref[b]++ == 0) unlink(p, b);
}

void BlockManager::drop(Pool& p, int32_t b) {
  OAR_CHECK(p.ref[b] > 0);
  if (--p.ref[b] > 0) return;
  ++releases_;
  if (p.node[b] == PrefixIndex::kNone) {
    p.free.push_back(b);
    return;
  }
  p.prev[b] = p.lru_tail;
  (p.lru_tail == kNoBlock ? p.lru_head : p.next[p.lru_tail]) = b;
  p.lru_tail = b;
  ++p.cached;
}

// ---- tables
// ---------------------------------------------------------------------------------------------------

BlockManager::Few BlockManager::written(CachePages pages, int64_t begin, int64_t to) const {
  const int64_t first = begin / page_tokens_, again = std::max(begin, to - again_) / page_tokens_;
  Few few;
  if (pages == CachePages::kRows) {
    if (to - begin <= page_tokens_ || begin % page_tokens_ != 0) few.add(first);
    for (int64_t i = again; i <= (to - 1) / page_tokens_; ++i) few.add(i);
  } else {
    for (int64_t i = std::max(first, again - 1); i < to / page_tokens_; ++i) few.add(i);
  }
  return few;
}

// Fewer positions need no more blocks at some page's end, and one less where a page is not filled.
int64_t BlockManager::reservable_few(const BlockTables& t, int32_t g, int64_t from, int64_t want,
                                     int64_t begin) const {
  const auto& blocks = t.groups[static_cast<size_t>(g)].blocks;
  const Pool& p = pools_[static_cast<size_t>(g)];
  const auto fits = [&](int64_t to) {
    const Few few = written(p.pages, begin, to);
    int64_t room = available(g);
    for (int k = 0; k < few.count; ++k) {
      const auto i = static_cast<size_t>(few.entries[k]);
      const bool own = i < blocks.size() && blocks[i] != kNoBlock && p.ref[blocks[i]] == 1;
      room -= own ? 0 : 1;
    }
    return room >= 0;
  };
  for (int64_t to = from + want; to > from;) {
    if (fits(to)) return to - from;
    to = to % page_tokens_ == 0 || to - 1 == from ? to - 1
                                                  : std::max(to / page_tokens_ * page_tokens_, from + 1);
  }
  return 0;
}

void BlockManager::reserve_few(BlockTables& t, int32_t g, int64_t to, std::vector<BlockCopy>& copies,
                               int64_t begin) {
  auto& blocks = t.groups[static_cast<size_t>(g)].blocks;
  Pool& p = pools_[static_cast<size_t>(g)];
  const Few few = written(p.pages, begin, to);
  const int64_t first = begin / page_tokens_;
  const auto snapshot = [&](int64_t i) {
    return p.pages == CachePages::kState && prefix_cache_ && snapshot_tokens_ > 0 &&
           (i + 1) * page_tokens_ <= to && (i + 1) * page_tokens_ % snapshot_tokens_ == 0;
  };
  // What an earlier plan of this step, or rows that were taken back, wanted and this one does not.
  for (int64_t i = first; i < static_cast<int64_t>(blocks.size()); ++i) {
    int32_t& block = blocks[static_cast<size_t>(i)];
    if (block == kNoBlock || few.has(i) || (snapshot(i) && p.ref[block] == 1)) continue;
    drop(p, block);
    block = kNoBlock;
  }
  const auto entry = [&](int64_t i) -> int32_t& {
    if (i >= static_cast<int64_t>(blocks.size())) blocks.resize(static_cast<size_t>(i) + 1, kNoBlock);
    return blocks[static_cast<size_t>(i)];
  };
  for (int k = 0; k < few.count; ++k) {
    const int64_t i = few.entries[k];
    int32_t& block = entry(i);
    if (block != kNoBlock && p.ref[block] == 1) continue;
    const int32_t own = take(p, g);
    if (block != kNoBlock) {
      if (p.pages == CachePages::kRows && i * page_tokens_ < begin) copies.push_back({g, block, own});
      drop(p, block);
    }
    block = own;
  }
  // Where there is room to spare.
  for (int64_t i = first; p.pages == CachePages::kState && i < to / page_tokens_; ++i)
    if (snapshot(i) && !few.has(i) && available(g) > 2 && entry(i) == kNoBlock) entry(i) = take(p, g);
}

int64_t BlockManager::reservable(const BlockTables& t, int64_t from, int64_t want, int64_t begin) const {
  int64_t n = want;
  // What one group with holes lowers may be more to another: a shorter step keeps rows of its first page.
  for (int64_t before = -1; before != n;) {
    before = n;
    n = reservable_once(t, from, n, begin < 0 ? from : begin);
  }
  return n;
}

int64_t BlockManager::reservable_once(const BlockTables& t, int64_t from, int64_t n, int64_t begin) const {
  for (int32_t g = 0; g < num_groups(); ++g) {
    const auto& blocks = t.groups[static_cast<size_t>(g)].blocks;
    const Pool& p = pools_[static_cast<size_t>(g)];
    if (has_holes(p.pages)) {
      n = reservable_few(t, g, from, n, begin);
      continue;
    }
    int64_t room = available(g);
    int64_t i = from / page_tokens_;
    if (p.pages == CachePages::kFirst) {
      const bool writable = i > 0 || (!blocks.empty() && p.ref[blocks[0]] == 1) || room > 0;
      n = writable ? n : 0;
      continue;
    }
    for (const int64_t held = static_cast<int64_t>(blocks.size()); i < held && i * page_tokens_ < from + n;
         ++i) {
      if (p.ref[blocks[static_cast<size_t>(i)]] > 1 && --room < 0) break;  // a copy needs a block of its own
    }
    if (room >= 0) i += room;
    n = std::clamp<int64_t>(i * page_tokens_ - from, 0, n);
  }
  return n;
}

bool BlockManager::reserve(BlockTables& t, int64_t from, int64_t to, std::vector<BlockCopy>& copies,
                           int64_t begin) {
  if (begin < 0) begin = from;
  OAR_CHECK(begin <= from && from < to && blocks_for(to) <= max_blocks_);
  if (reservable(t, from, to - from, begin) < to - from) return false;
  const int64_t first = from / page_tokens_, last = (to - 1) / page_tokens_;
  for (int32_t g = 0; g < num_groups(); ++g) {
    auto& blocks = t.groups[static_cast<size_t>(g)].blocks;
    Pool& p = pools_[static_cast<size_t>(g)];
    if (has_holes(p.pages)) {
      reserve_few(t, g, to, copies, begin);
      continue;
    }
    const int64_t end = p.pages == CachePages::kFirst ? std::min<int64_t>(last, 0) : last;
    for (int64_t i = first; i <= end; ++i) {
      if (i == static_cast<int64_t>(blocks.size())) {
        blocks.push_back(take(p, g));
        continue;
      }
      int32_t& block = blocks[static_cast<size_t>(i)];
      if (p.ref[block] == 1) continue;
      const int32_t own = take(p, g);
      if (i * page_tokens_ < from) copies.push_back({g, block, own});  // positions before `from` are kept
      drop(p, block);
      block = own;
    }
  }
  return true;
}

void BlockManager::leave_window(BlockTables& t, int64_t position, int32_t first_group, int32_t end_group) {
  for (int32_t g = first_group; g < end_group; ++g) {
    if (pages(g) == CachePages::kFirst) continue;
    auto& table = t.groups[static_cast<size_t>(g)];
    const int64_t end =
        std::min<int64_t>(first_visible(g, position), static_cast<int64_t>(table.blocks.size()));
    for (int64_t i = end - 1; i >= table.first; --i) {
      int32_t& block = table.blocks[static_cast<size_t>(i)];
      if (block == kNoBlock) continue;
      drop(pools_[static_cast<size_t>(g)], block);
      block = kNoBlock;
    }
    table.first = std::max(table.first, static_cast<int32_t>(end));
  }
}

void BlockManager::fork(const BlockTables& from, BlockTables& to) {
  prepare(to);
  for (size_t g = 0; g < pools_.size(); ++g) {
    const auto& source = from.groups[g];
    to.groups[g].blocks.assign(source.blocks.begin(), source.blocks.end());
    to.groups[g].first = source.first;
    for (size_t i = static_cast<size_t>(source.first); i < source.blocks.size(); ++i)
      if (source.blocks[i] != kNoBlock) acquire(pools_[g], source.blocks[i]);
  }
  to.tail = from.tail;
  to.published = from.published;
  if (to.tail != PrefixIndex::kNone) index_.pin(to.tail);
}

void BlockManager::release(BlockTables& t) {
  for (size_t g = 0; g < t.groups.size(); ++g) {
    auto& table = t.groups[g];
    for (size_t i = table.blocks.size(); i-- > static_cast<size_t>(table.first);)
      if (table.blocks[i] != kNoBlock) drop(pools_[g], table.blocks[i]);
    table.blocks.clear();
    table.first = 0;
  }
  if (t.tail != PrefixIndex::kNone) index_.unpin(t.tail);
  t.tail = PrefixIndex::kNone;
  t.published = 0;
}

// ---- addresses
// -----------------------------------------------------------------------------------------------

void GroupAddresses::add_rows(const BlockTables::Group& table, CachePages pages, int32_t page_tokens,
                              int64_t from, int64_t to) {
  if (pages == CachePages::kState) return;
  for (int64_t p = from; p < to; ++p) {
    const bool kept = pages != CachePages::kFirst || p < page_tokens;
    const int32_t block = kept ? table.blocks[static_cast<size_t>(p / page_tokens)] : kNoBlock;
    slots.push_back(block == kNoBlock ? -1 : block * page_tokens + static_cast<int32_t>(p % page_tokens));
  }
}

void GroupAddresses::start_tables(std::span<const int32_t> context_len, CachePages pages,
                                  int32_t page_tokens) {
  max_blocks = 1;
  if (pages != CachePages::kFirst)
    for (const int32_t length : context_len)
      max_blocks = std::max<int64_t>(max_blocks, (length + page_tokens - 1) / page_tokens);
  tables.assign(context_len.size() * static_cast<size_t>(max_blocks), has_holes(pages) ? kNoBlock : 0);
}

void GroupAddresses::set_table(size_t b, const BlockTables::Group& table, int64_t context_len,
                               int32_t page_tokens) {
  int32_t* row = tables.data() + b * static_cast<size_t>(max_blocks);
  // A sequence whose step was taken back may hold a block beyond what this step reaches.
  const auto used =
      static_cast<size_t>(std::min<int64_t>({max_blocks, (context_len + page_tokens - 1) / page_tokens,
                                             static_cast<int64_t>(table.blocks.size())}));
  for (size_t i = static_cast<size_t>(table.first); i < used; ++i) row[i] = table.blocks[i];
}

// ---- prefix cache
// ---------------------------------------------------------------------------------------------

// A node by `make`, which returns kNone when the index is full: then the oldest cached blocks make way.
template <class Make>
int32_t BlockManager::make_node(Make&& make) {
  for (;;) {
    const int32_t node = make();
    if (node != PrefixIndex::kNone) return node;
    bool evicted = false;
    for (int32_t g = 0; g < num_groups(); ++g) evicted |= evict_oldest(g);
    if (!evicted) return PrefixIndex::kNone;
  }
}

std::span<const int32_t> BlockManager::page_of(const TokenView& tokens, int64_t index) {
  const int64_t begin = index * page_tokens_;
  if (begin + page_tokens_ <= static_cast<int64_t>(tokens.prompt.size()))
    return tokens.prompt.subspan(static_cast<size_t>(begin), page_.size());
  const int64_t prompt = static_cast<int64_t>(tokens.prompt.size());
  for (size_t i = 0; i < page_.size(); ++i) {
    const int64_t at = begin + static_cast<int64_t>(i);
    // Tokens are not negative, so a generated one is none of a prompt's.
    page_[i] = phases_ && at >= prompt ? ~tokens[at] : tokens[at];
  }
  return page_;
}

int64_t BlockManager::match(BlockTables& t, const PrefixRoot& root, const TokenView& tokens, int64_t limit) {
  OAR_CHECK(t.tail == PrefixIndex::kNone && t.published == 0);
  if (!prefix_cache_) return 0;
  int32_t node = make_node([&] { return index_.root(root); });
  if (node == PrefixIndex::kNone) return 0;
  path_.clear();
  std::fill(run_.begin(), run_.end(), 0);
  t.tail = node;
  int64_t hit = 0;  // pages
  for (int64_t depth = 0; (depth + 1) * page_tokens_ <= limit; ++depth) {
    node = index_.child(node, page_of(tokens, depth));
    if (node == PrefixIndex::kNone) break;
    bool possible = true, usable = true;
    for (int32_t g = 0; g < num_groups(); ++g) {
      if (never_cached(pages(g)) || (pages(g) == CachePages::kFirst && depth > 0)) continue;
      int64_t& run = run_[static_cast<size_t>(g)];
      run = index_.block(node, g) == kNoBlock ? 0 : run + 1;
      const int64_t needed = depth + 1 - std::min(depth + 1, first_visible(g, (depth + 1) * page_tokens_));
      usable &= run >= needed;
      possible &= run > 0 || window(g) > 0 || pages(g) == CachePages::kState;
    }
    if (!possible) break;  // a gap in a full-context group: nothing deeper can hit
    path_.push_back(node);
    if (usable) hit = depth + 1;
  }
  for (int32_t g = 0; g < num_groups(); ++g) {
    auto& table = t.groups[static_cast<size_t>(g)];
    const int64_t first = std::min(hit, first_visible(g, hit * page_tokens_));
    const int64_t held = pages(g) == CachePages::kFirst ? std::min<int64_t>(hit, 1) : hit;
    table.blocks.assign(static_cast<size_t>(held), kNoBlock);
    table.first = static_cast<int32_t>(first);
    for (int64_t i = first; i < held; ++i) {
      const int32_t block = index_.block(path_[static_cast<size_t>(i)], g);
      acquire(pools_[static_cast<size_t>(g)], block);
      table.blocks[static_cast<size_t>(i)] = block;
    }
  }
  if (hit > 0) t.tail = path_[static_cast<size_t>(hit - 1)];
  t.published = static_cast<int32_t>(hit);
  index_.pin(t.tail);
  return hit * page_tokens_;
}

bool BlockManager::publish_page(BlockTables& t, std::span<const int32_t> page) {
  int32_t node = index_.child(t.tail, page);
  if (node == PrefixIndex::kNone) node = make_node([&] { return index_.add_child(t.tail, page); });
  const int32_t before = t.tail;
  t.tail = node;
  if (node == PrefixIndex::kNone) {  // every node serves a running sequence: this one goes on uncached
    index_.unpin(before);
    return false;
  }
  index_.pin(node);
  index_.unpin(before);
  for (int32_t g = 0; g < num_groups(); ++g) {
    if (never_cached(pages(g)) || (pages(g) == CachePages::kFirst && t.published > 0)) continue;
    auto& blocks = t.groups[static_cast<size_t>(g)].blocks;
    if (pages(g) == CachePages::kState) {
      const int64_t tokens = (int64_t{t.published} + 1) * page_tokens_;
      if (snapshot_tokens_ == 0 || tokens % snapshot_tokens_ != 0) continue;
      if (static_cast<size_t>(t.published) >= blocks.size()) continue;
    }
    int32_t& block = blocks[static_cast<size_t>(t.published)];
    if (block != kNoBlock) name_block(g, node, block);
  }
  ++t.published;
  return true;
}

void BlockManager::name_block(int32_t g, int32_t node, int32_t& block) {
  Pool& p = pools_[static_cast<size_t>(g)];
  const int32_t known = index_.block(node, g);
  if (known == kNoBlock) {
    if (p.node[block] != PrefixIndex::kNone) return;
    index_.attach(node, g, block);
    p.node[block] = node;
  } else if (known != block) {  // another sequence computed the same page: share its block, give ours back
    acquire(p, known);
    drop(p, block);
    block = known;
  }
}

void BlockManager::name_state(BlockTables& t, int64_t page) {
  if (t.tail == PrefixIndex::kNone || page < 0 || page >= t.published) return;
  int32_t node = t.tail;
  for (int64_t k = t.published - 1; k > page; --k) node = index_.parent(node);
  for (int32_t g = 0; g < num_groups(); ++g)  // forgotten pages: nothing would hit there
    if (holds_contexts(pools_[static_cast<size_t>(g)]) && index_.block(node, g) == kNoBlock) return;
  for (int32_t g = 0; g < num_groups(); ++g) {
    if (pages(g) != CachePages::kState) continue;
    auto& table = t.groups[static_cast<size_t>(g)];
    if (page < table.first || page >= static_cast<int64_t>(table.blocks.size())) continue;
    int32_t& block = table.blocks[static_cast<size_t>(page)];
    if (block != kNoBlock) name_block(g, node, block);
  }
}

void BlockManager::publish(BlockTables& t, const TokenView& tokens, int64_t computed) {
  while (t.tail != PrefixIndex::kNone && (static_cast<int64_t>(t.published) + 1) * page_tokens_ <= computed) {
    if (!publish_page(t, page_of(tokens, t.published))) return;
  }
}

void BlockManager::forget(BlockTables& t) {
  if (t.tail == PrefixIndex::kNone) return;
  // The pinned tail keeps its ancestors while their blocks go.
  for (int32_t node = t.tail; node != PrefixIndex::kNone; node = index_.parent(node))
    for (int32_t g = 0; g < num_groups(); ++g)
      if (const int32_t block = index_.block(node, g); block != kNoBlock) unname(g, block);
  index_.unpin(t.tail);
  t.tail = PrefixIndex::kNone;
}

void BlockManager::clear_cache() {
  for (int32_t g = 0; g < num_groups(); ++g)
    while (evict_oldest(g)) {}
}

// ---- inspection
// -----------------------------------------------------------------------------------------------

BlockStats BlockManager::stats(int32_t group) const {
  const Pool& p = pools_[static_cast<size_t>(group)];
  BlockStats s;
  s.total = static_cast<int64_t>(p.ref.size());
  s.free = static_cast<int64_t>(p.free.size());
  s.cached = p.cached;
  s.used = s.total - s.free - s.cached;
  return s;
}

BlockStats BlockManager::stats() const {
  BlockStats sum;
  for (int32_t g = 0; g < num_groups(); ++g) {
    const BlockStats s = stats(g);
    sum.total += s.total, sum.free += s.free, sum.used += s.used, sum.cached += s.cached;
  }
  return sum;
}

Status BlockManager::verify(std::span<const BlockTables* const> tables) const {
  for (int32_t g = 0; g < num_groups(); ++g) {
    const Pool& p = pools_[static_cast<size_t>(g)];
    const size_t n = p.ref.size();
    std::vector<int32_t> expected(n, 0), listed(n, 0);
    for (const BlockTables* t : tables) {
      if (t->groups.empty()) continue;
      const auto& table = t->groups[static_cast<size_t>(g)];
      for (size_t i = 0; i < table.blocks.size(); ++i) {
        const int32_t b = table.blocks[i];
        const bool left = i < static_cast<size_t>(table.first);
        if (left ? b != kNoBlock : b == kNoBlock && !has_holes(p.pages))
          return internal_error(cat("group ", g, ": a hole in a table at entry ", i));
        if (b != kNoBlock) ++expected[static_cast<size_t>(b)];
      }
    }
    for (int32_t b : p.free) ++listed[static_cast<size_t>(b)];
    int64_t cached = 0;
    int32_t before = kNoBlock;
    for (int32_t b = p.lru_head; b != kNoBlock; before = b, b = p.next[static_cast<size_t>(b)]) {
      if (p.prev[static_cast<size_t>(b)] != before)
        return internal_error(cat("group ", g, ": broken LRU list"));
      if (p.node[static_cast<size_t>(b)] == PrefixIndex::kNone)
        return internal_error(cat("group ", g, ": cached block ", b, " has no name"));
      ++listed[static_cast<size_t>(b)];
      ++cached;
    }
    if (before != p.lru_tail || cached != p.cached)
      return internal_error(cat("group ", g, ": LRU list miscounted"));
    for (size_t b = 0; b < n; ++b) {
      if (expected[b] != p.ref[b])
        return internal_error(
            cat("group ", g, ": block ", b, " has ", p.ref[b], " references, tables hold ", expected[b]));
      if (listed[b] != (p.ref[b] == 0 ? 1 : 0))
        return internal_error(
            cat("group ", g, ": block ", b, " is in ", listed[b], " lists with ", p.ref[b], " references"));
      if (p.node[b] == PrefixIndex::kNone) continue;
      if (index_.block(p.node[b], g) != static_cast<int32_t>(b))
        return internal_error(cat("group ", g, ": block ", b, " and its node disagree"));
      for (int32_t h = 0; h < num_groups() && p.pages == CachePages::kState; ++h)
        if (holds_contexts(pools_[static_cast<size_t>(h)]) && index_.block(p.node[b], h) == kNoBlock)
          return internal_error(cat("group ", g, ": snapshot ", b, " has no page in group ", h));
    }
  }
  return ok_status();
}

}  // namespace oar
