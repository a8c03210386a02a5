// The block manager's rules, one by one.
#include "engine/runtime/core/block_manager.h"

#include "tests/runtime/trace.h"
#include "tests/support/catch.h"

using namespace oar;

namespace {

constexpr int32_t kPage = 4;

struct Pool {
  BlockManager m;
  std::vector<BlockCopy> copies;
  explicit Pool(std::vector<CacheGroup> groups, bool cache = true, int64_t context = 64)
      : m({kPage, std::move(groups), context, cache, 99}) {}
  void expect(std::vector<const BlockTables*> alive) { REQUIRE_OK(m.verify(alive)); }
  BlockTables fresh() {
    BlockTables t;
    m.prepare(t);
    return t;
  }
  // Computes all of `tokens` from scratch or after a hit; returns the hit.
  int64_t compute(BlockTables& t, const std::vector<int32_t>& tokens, std::string_view salt = "") {
    const TokenView view{tokens, {}};
    const int64_t hit = m.match(t, {0, salt}, view, view.size() - 1);
    REQUIRE(m.reserve(t, hit, view.size(), copies));
    m.publish(t, view, view.size());
    return hit;
  }
};

std::vector<int32_t> count_from(int32_t first, int32_t n) {
  std::vector<int32_t> v;
  for (int32_t i = 0; i < n; ++i) v.push_back(first + i);
  return v;
}

}  // namespace

TEST_CASE("statistics are kept by group", "[blocks]") {
  Pool p({{0, 1, 16}, {kPage, 1, 8}});
  BlockTables a = p.fresh();
  p.compute(a, count_from(0, 2 * kPage));
  CHECK(p.m.stats(0).total == 16);
  CHECK(p.m.stats(0).used == 2);
  CHECK(p.m.stats(1).total == 8);
  CHECK(p.m.stats().total == 24);
  CHECK(p.m.stats().used == p.m.stats(0).used + p.m.stats(1).used);
  p.expect({&a});
}

TEST_CASE("a full page is found again, an open one is not", "[blocks]") {
  Pool p({{0, 1, 16}});
  BlockTables a = p.fresh();
  CHECK(p.compute(a, count_from(0, 10)) == 0);
  CHECK(p.m.stats().used == 3);
  BlockTables b = p.fresh();
  CHECK(p.compute(b, count_from(0, 10)) == 8);
  CHECK(p.m.stats().used == 4);
  CHECK(a.groups[0].blocks[0] == b.groups[0].blocks[0]);
  CHECK(a.groups[0].blocks[2] != b.groups[0].blocks[2]);
  p.expect({&a, &b});
  p.m.release(a);
  p.m.release(b);
  CHECK(p.m.stats().used == 0);
  CHECK(p.m.stats().cached == 2);
  BlockTables c = p.fresh();
  CHECK(p.compute(c, count_from(0, 10), "salt") == 0);
  p.m.release(c);
  BlockTables d = p.fresh();
  auto other = count_from(0, 10);
  other[5] = 77;
  CHECK(p.compute(d, other) == 4);
  p.m.release(d);
  p.expect({});
}

TEST_CASE("eviction takes the oldest unreferenced block, leaves before their parents", "[blocks]") {
  Pool p({{0, 1, 8}});
  BlockTables a = p.fresh(), b = p.fresh();
  p.compute(a, count_from(0, 16));
  p.compute(b, count_from(100, 8));
  p.m.release(a);
  p.m.release(b);
  CHECK(p.m.stats().cached == 6);
  BlockTables c = p.fresh();
  p.compute(c, count_from(200, 16));  // 2 free blocks, so 2 evictions: the tail of `a`
  p.m.release(c);
  BlockTables again = p.fresh();
  const auto tokens = count_from(0, 17);
  CHECK(p.m.match(again, {}, {tokens, {}}, 16) == 8);
  p.m.release(again);
  BlockTables second = p.fresh();
  const auto others = count_from(100, 9);
  CHECK(p.m.match(second, {}, {others, {}}, 8) == 8);
  // Referenced blocks are never evicted.
  BlockTables all = p.fresh();
  CHECK_FALSE(p.m.reserve(all, 0, 7 * kPage, p.copies));
  CHECK(p.m.reserve(all, 0, 6 * kPage, p.copies));
  p.expect({&second, &all});
  p.m.release(second);
  p.m.release(all);
}

TEST_CASE("a shared block is copied before it is written, by all but the last holder", "[blocks]") {
  Pool p({{0, 1, 8}});
  BlockTables a = p.fresh(), b;
  p.compute(a, count_from(0, 6));
  p.m.fork(a, b);
  CHECK(p.m.stats().used == 2);
  const int32_t open = a.groups[0].blocks[1];
  REQUIRE(p.m.reserve(a, 6, 7, p.copies));
  REQUIRE(p.copies.size() == 1);
  CHECK(p.copies[0].from == open);
  CHECK(p.copies[0].to == a.groups[0].blocks[1]);
  REQUIRE(p.m.reserve(b, 6, 7, p.copies));
  CHECK(p.copies.size() == 1);
  CHECK(b.groups[0].blocks[1] == open);
  p.expect({&a, &b});
  p.m.release(a);
  p.m.release(b);
}

TEST_CASE("two that computed the same page end up sharing it", "[blocks]") {
  Pool p({{0, 1, 8}});
  BlockTables a = p.fresh(), b = p.fresh();
  const auto tokens = count_from(0, 9);
  const TokenView view{tokens, {}};
  for (BlockTables* t : {&a, &b}) {
    CHECK(p.m.match(*t, {}, view, 8) == 0);
    REQUIRE(p.m.reserve(*t, 0, 9, p.copies));
  }
  CHECK(p.m.stats().used == 6);
  p.m.publish(a, view, 9);
  p.m.publish(b, view, 9);
  CHECK(p.m.stats().used == 4);
  p.expect({&a, &b});
  p.m.release(a);
  p.m.release(b);
}

TEST_CASE("a windowed group lets go behind the window and hits with the window alone", "[blocks]") {
  Pool p({{0, 1, 16}, {6, 1, 5}});
  BlockTables a = p.fresh();
  const auto tokens = count_from(0, 32);
  const TokenView view{tokens, {}};
  p.m.match(a, {}, view, 31);
  for (int64_t at = 0; at < 32; at += kPage) {
    p.m.leave_window(a, at, 0, p.m.num_groups());
    REQUIRE(p.m.reserve(a, at, at + kPage, p.copies));
    p.m.publish(a, view, at + kPage);
    p.expect({&a});
  }
  CHECK(a.groups[1].first == 5);  // the query at 28 sees 23 .. 28
  p.m.release(a);
  // The windowed pool of 5 has kept the last pages only; the full one has all.
  BlockTables b = p.fresh();
  CHECK(p.m.match(b, {}, view, 31) == 28);
  CHECK(b.groups[1].blocks[0] == kNoBlock);
  CHECK(b.groups[1].first == 5);
  p.expect({&b});
  p.m.release(b);
  const auto early = count_from(0, 12);
  BlockTables c = p.fresh();
  CHECK(p.m.match(c, {}, {early, {}}, 11) == 0);  // the window before position 8 was evicted
  p.m.release(c);
  p.expect({});
}

TEST_CASE("chains longer than the index make the oldest cached blocks give way", "[blocks]") {
  // A windowed pool alone keeps few blocks of very long chains, whose nodes would grow without bound.
  Pool p({{4, 1, 8}}, true, 4096);
  for (int32_t round = 0; round < 20; ++round) {
    BlockTables t = p.fresh();
    const auto tokens = count_from(round * 10'000, 400);
    const TokenView view{tokens, {}};
    p.m.match(t, {}, view, 399);
    for (int64_t at = 0; at < 400; at += kPage) {
      p.m.leave_window(t, at, 0, p.m.num_groups());
      REQUIRE(p.m.reserve(t, at, at + kPage, p.copies));
      p.m.publish(t, view, at + kPage);
    }
    p.m.release(t);
    p.expect({});
  }
}

TEST_CASE("without a prefix cache nothing is kept", "[blocks]") {
  Pool p({{0, 1, 8}}, false);
  BlockTables a = p.fresh();
  CHECK(p.compute(a, count_from(0, 12)) == 0);
  p.m.release(a);
  CHECK(p.m.stats().free == 8);
}

TEST_CASE("the index compares tokens, not hashes", "[blocks]") {
  // Pages that differ in one token each, in every position, under one parent.
  PrefixIndex index(kPage, 1, 4096, 1);
  const int32_t root = index.root({});
  std::map<std::vector<int32_t>, int32_t> nodes;
  for (uint64_t i = 0; i < 3000; ++i) {
    std::vector<int32_t> page(kPage);
    for (size_t k = 0; k < page.size(); ++k) page[k] = static_cast<int32_t>(oar_test::mix(i * 4 + k) % 7);
    const int32_t found = index.child(root, page);
    const auto known = nodes.find(page);
    REQUIRE(found == (known == nodes.end() ? PrefixIndex::kNone : known->second));
    if (found == PrefixIndex::kNone) {
      nodes[page] = index.add_child(root, page);
      index.attach(nodes[page], 0, static_cast<int32_t>(i));
    }
  }
  CHECK(index.size() == static_cast<int32_t>(nodes.size()) + 1);
  for (const auto& [page, node] : nodes) index.detach(node, 0);
  CHECK(index.size() == 0);  // the root went with its last child
}

TEST_CASE("what is forgotten is found by nobody, and its blocks go when their holders do", "[blocks]") {
  Pool p({{0, 1, 16}});
  BlockTables a = p.fresh(), b = p.fresh(), c = p.fresh(), d = p.fresh();
  p.compute(a, count_from(0, 2 * kPage + 1));
  CHECK(p.compute(b, count_from(0, 3 * kPage + 1)) == 2 * kPage);  // shares them, and names one more
  p.m.forget(a);
  p.expect({&a, &b});
  CHECK(p.compute(c, count_from(0, 2 * kPage + 1)) == 0);  // computes and names them anew
  p.m.release(a);
  p.m.release(b);
  p.expect({&c});
  CHECK(p.compute(d, count_from(0, 2 * kPage + 1)) == 2 * kPage);
  p.m.release(c);
  // A second time there is nothing left to forget; nor is anything published after the first.
  p.m.forget(d);
  p.m.forget(d);
  const auto more = count_from(0, 5 * kPage);
  REQUIRE(p.m.reserve(d, 2 * kPage + 1, 5 * kPage, p.copies));
  p.m.publish(d, {more, {}}, 5 * kPage);
  p.expect({&d});
  p.m.release(d);
  BlockTables e = p.fresh();
  CHECK(p.m.match(e, {0, ""}, {more, {}}, 5 * kPage) == 0);
  p.expect({&e});
  p.m.release(e);
  p.m.clear_cache();
  CHECK(p.m.stats().free == 16);
}

TEST_CASE("forgotten states are no snapshots, and none is named of what is left", "[blocks]") {
  Pool p({{0, 1, 16},
          {.block_bytes = 1, .num_blocks = 6, .pages = CachePages::kState},
          {.block_bytes = 1, .num_blocks = 6, .pages = CachePages::kRows}});
  const auto tokens = count_from(0, 2 * kPage + 1);
  BlockTables a = p.fresh(), b = p.fresh();
  p.compute(a, tokens);
  p.m.name_state(a, 1);
  p.m.forget(a);
  p.m.name_state(a, 1);  // as when a sequence ends
  p.m.release(a);
  p.expect({});
  CHECK(p.m.stats().free == p.m.stats().total);
  CHECK(p.m.match(b, {0, ""}, {tokens, {}}, 2 * kPage) == 0);
  p.m.release(b);
}

namespace {
// Whole contexts beside recurrent state, of so many blocks each.
std::vector<CacheGroup> hybrid(int32_t pages, int32_t states) {
  return {{0, 1, pages},
          {.block_bytes = 1, .num_blocks = states, .pages = CachePages::kState},
          {.block_bytes = 1, .num_blocks = 6, .pages = CachePages::kRows}};
}
// Computes two pages and a token, and leaves a snapshot behind the second; what it hit.
int64_t leave_snapshot(Pool& p, int32_t first) {
  BlockTables t = p.fresh();
  const int64_t hit = p.compute(t, count_from(first, 2 * kPage + 1));
  p.m.name_state(t, 1);
  p.m.release(t);
  return hit;
}
int64_t hit_of(Pool& p, int32_t first) {
  BlockTables t = p.fresh();
  const auto tokens = count_from(first, 2 * kPage + 1);
  const int64_t hit = p.m.match(t, {0, ""}, {tokens, {}}, 2 * kPage);
  p.m.release(t);
  return hit;
}
}  // namespace

TEST_CASE("a step keeps at most two states of a prompt, decoding one a page, and a fork copies rows alone",
          "[blocks]") {
  Pool p(hybrid(64, 6));
  const auto states = [](const BlockTables& t) {
    std::vector<int64_t> held;
    for (size_t i = 0; i < t.groups[1].blocks.size(); ++i)
      if (t.groups[1].blocks[i] != kNoBlock) held.push_back(static_cast<int64_t>(i));
    return held;
  };
  BlockTables a = p.fresh(), b;
  REQUIRE(p.m.reserve(a, 0, 8 * kPage, p.copies));
  CHECK(states(a) == std::vector<int64_t>{6, 7});  // the last row may run again
  p.m.leave_window(a, 8 * kPage, 0, p.m.num_groups());
  for (int64_t at = 8 * kPage; at < 11 * kPage; ++at) {
    REQUIRE(p.m.reserve(a, at, at + 1, p.copies));
    const int64_t page = at / kPage;
    const bool fills = (at + 1) % kPage == 0;
    CHECK(states(a) == (fills ? std::vector<int64_t>{page - 1, page} : std::vector<int64_t>{page - 1}));
    p.m.leave_window(a, at + 1, 0, p.m.num_groups());
    p.expect({&a});
  }
  REQUIRE(p.m.reserve(a, 11 * kPage, 11 * kPage + 2, p.copies));
  CHECK(p.copies.empty());
  p.m.fork(a, b);
  REQUIRE(p.m.reserve(a, 11 * kPage + 2, 11 * kPage + 3, p.copies));
  REQUIRE(p.copies.size() == 2);  // the open page, and its rows; of the state in front of it none
  CHECK(p.copies[0].group == 0);
  CHECK(p.copies[1].group == 2);
  REQUIRE(p.m.reserve(b, 11 * kPage + 2, 11 * kPage + 3, p.copies));
  CHECK(p.copies.size() == 2);
  CHECK(a.groups[1].blocks[10] == b.groups[1].blocks[10]);
  p.expect({&a, &b});
  p.m.release(a);
  p.m.release(b);
  CHECK(p.m.stats().free == p.m.stats().total);
}

TEST_CASE("snapshots are evicted by age, and one that is used again is young", "[blocks]") {
  Pool p(hybrid(64, 3));
  for (const int32_t first : {100, 200, 300}) CHECK(leave_snapshot(p, first) == 0);
  CHECK(p.m.stats(1).cached == 3);
  CHECK(hit_of(p, 100) == 2 * kPage);
  CHECK(leave_snapshot(p, 400) == 0);  // in the block of 200
  CHECK(p.m.stats(1).cached == 3);
  p.expect({});
  CHECK(hit_of(p, 200) == 0);  // its pages are there
  CHECK(hit_of(p, 100) == 2 * kPage);
  CHECK(hit_of(p, 300) == 2 * kPage);
  CHECK(hit_of(p, 400) == 2 * kPage);
  // Computed again, it has its pages and a snapshot anew: now that of 100 is the oldest.
  CHECK(leave_snapshot(p, 200) == 0);
  CHECK(hit_of(p, 200) == 2 * kPage);
  CHECK(hit_of(p, 100) == 0);
  p.expect({});
}

TEST_CASE("a snapshot goes with the page in front of it, and no other does", "[blocks]") {
  Pool p(hybrid(8, 6));
  for (const int32_t first : {100, 200}) leave_snapshot(p, first);
  CHECK(p.m.stats(0).cached == 4);
  CHECK(p.m.stats(1).cached == 2);
  BlockTables large = p.fresh();
  p.compute(large, count_from(500, 5 * kPage));  // one more page than are free: the second of 100
  p.expect({&large});
  CHECK(p.m.stats(0).cached == 3);
  CHECK(p.m.stats(1).cached == 1);
  CHECK(hit_of(p, 100) == 0);
  CHECK(hit_of(p, 200) == 2 * kPage);
  p.m.release(large);
  // A state that a sequence goes on from stays, and so does its page.
  BlockTables reader = p.fresh();
  const auto tokens = count_from(200, 2 * kPage + 1);
  CHECK(p.compute(reader, tokens) == 2 * kPage);
  BlockTables rest = p.fresh();
  p.compute(rest, count_from(700, 5 * kPage));
  p.expect({&reader, &rest});
  CHECK(hit_of(p, 200) == 2 * kPage);
  p.m.release(reader);
  p.m.release(rest);
  p.m.clear_cache();
  CHECK(p.m.stats().free == p.m.stats().total);
}

TEST_CASE("no snapshot is left behind pages that somebody else had forgotten", "[blocks]") {
  Pool p(hybrid(16, 6));
  const auto tokens = count_from(0, 2 * kPage + 1);
  BlockTables a = p.fresh(), b = p.fresh();
  p.compute(a, tokens);
  p.m.name_state(a, 1);
  CHECK(p.compute(b, tokens) == 2 * kPage);
  p.m.forget(a);
  p.m.name_state(b, 1);
  p.expect({&a, &b});
  p.m.release(a);
  p.m.release(b);
  p.expect({});
  CHECK(p.m.stats().free == p.m.stats().total);
}

TEST_CASE("prefix roots are pairs: no salt reaches another adapter's pages", "[blocks]") {
  BlockManager m({4, {{0, 1, 20}}, 64, true, 1});
  std::vector<int32_t> tokens(9, 5);
  const TokenView view{tokens, {}};
  std::vector<BlockCopy> copies;
  const auto cache = [&](const PrefixRoot& root) {
    BlockTables t;
    m.prepare(t);
    const int64_t hit = m.match(t, root, view, 8);
    if (hit == 0) {
      REQUIRE(m.reserve(t, 0, 9, copies));
      m.publish(t, view, 9);
    }
    m.release(t);
    return hit;
  };
  const PrefixRoot roots[] = {{0, ""}, {1, ""}, {0, "1"}, {1, "1"}, {11, ""}, {1, "11"}, {0, "a"}, {1, "a"}};
  for (const PrefixRoot& r : roots) CHECK(cache(r) == 0);
  for (const PrefixRoot& r : roots) CHECK(cache(r) == 8);
}
