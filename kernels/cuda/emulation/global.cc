// What blocks of a launch do to each other's global memory, where every access is seen. They run one after
// the other here and beside each other on a device, so an access that meets another block's is a race, unless
// that block let it go and this one took it up: a fence, then an atomic operation, and the same operation of
// this block or a wait for it, then a fence. Whoever takes up takes along what that block had taken up before
// it let go. Barriers carry the order to the other threads of each block, and within it.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "kernels/cuda/emulation/machine.h"

namespace oar::cuda::emulation {
namespace {

// What a block did before `at`, a fence, others may see: its atomic operation came behind it.
struct Release {
  uint32_t block;
  Touch at;
};
// Of one counter, as blocks came.
struct Chain {
  // What the release `by` had taken up before, if none before it had: the first `count` of another chain.
  struct TakenAlong {
    size_t by;
    const Chain* chain;
    size_t count;
  };
  std::vector<Release> releases;
  std::vector<TakenAlong> along;
  uint32_t most = 0;  // what blocks count to
  size_t older = 0;   // releases of those that counted to something else
};
std::unordered_map<const void*, Chain> g_chains;

// The running block sees the first `count` releases of a chain from the fence `at` on.
struct Acquired {
  const Chain* chain;
  size_t count;
  Touch at;
};
std::vector<Acquired> g_acquired;
std::vector<Acquired> g_observed;  // the same where no fence has followed yet; `at`: who

// Of 4 bytes: those that a block has read, or written; bit i is byte i.
struct Use {
  uint32_t block = 0;  // the last one's number, 0: none
  uint8_t bytes = 0, older = 0;
  Touch at;
  uint8_t last = 0;  // bytes of `at` alone
  // All older readers let go by each of these counters; none with `older` set: not all did, or not by one.
  std::array<const Chain*, 2> older_chains = {};
};
constexpr uintptr_t kPageBytes = 4096, kWordBytes = 4;
using Uses = std::array<Use, kPageBytes / kWordBytes>;
struct Page {
  std::unique_ptr<Uses> read, written;
};
std::unordered_map<uintptr_t, Page> g_pages;
std::vector<std::unique_ptr<Uses>> g_spare;  // of launches before
// Pages asked for last, by the end of their number.
struct Recent {
  uintptr_t number = 0;
  Page* page = nullptr;
};
std::array<Recent, 64> g_recent;
uint32_t g_block = 0, g_first_block = 1;  // counts on over launches; the first of this one

Page& page_of(uintptr_t number) {
  Recent& r = g_recent[number % g_recent.size()];
  if (r.page == nullptr || r.number != number) r = {number, &g_pages[number]};
  return *r.page;
}

// Whether a touch lies before a fence, or an earlier one, of the same block.
bool before(const Touch& touch, const Touch& fence) {
  if (touch.thread == fence.thread) return touch.device_fences < fence.device_fences;
  return behind_barrier(touch, fence);
}

// Whether a block let go of what it did at `touch`, of the first `count` of a chain itself.
bool has(const Chain& chain, size_t count, uint32_t block, const Touch& touch) {
  const auto known = std::span(chain.releases).first(count);
  for (auto r = std::ranges::lower_bound(known, block, {}, &Release::block);
       r != known.end() && r->block == block; ++r) {
    if (before(touch, r->at)) return true;
  }
  return false;
}
// Whether `holds` is true of the first `count` of a chain, or of any that they take along.
template <class Holds>
bool any_of(const Chain& chain, size_t count, const Holds& holds) {
  return holds(chain, count) || std::ranges::any_of(chain.along, [&](const Chain::TakenAlong& t) {
           return t.by < count && t.chain != &chain && any_of(*t.chain, t.count, holds);
         });
}

// Up to two chains by which a block that has ended let go of what it did at `touch`.
std::array<const Chain*, 2> let_go(uint32_t block, const Touch& touch) {
  std::array<const Chain*, 2> out = {};
  size_t n = 0;
  for (const auto& [counter, chain] : g_chains)
    if (n < out.size() && has(chain, chain.releases.size(), block, touch)) out[n++] = &chain;
  return out;
}
bool is_one_of(const std::array<const Chain*, 2>& chains, const Chain* chain) {
  return std::ranges::find(chains, chain) != chains.end();
}

// Whether the fiber has taken up what an earlier block did.
bool taken_up(uint32_t block, const Touch& touch, const Fiber& f) {
  const Touch now = touch_now(f);
  return std::ranges::any_of(g_acquired, [&](const Acquired& a) {
    return (a.at.thread == f.number || before(a.at, now)) &&
           any_of(*a.chain, a.count,
                  [&](const Chain& chain, size_t count) { return has(chain, count, block, touch); });
  });
}
bool taken_up(const std::array<const Chain*, 2>& chains, const Fiber& f) {
  const Touch now = touch_now(f);
  return std::ranges::any_of(g_acquired, [&](const Acquired& a) {
    return (a.at.thread == f.number || before(a.at, now)) &&
           any_of(*a.chain, a.count, [&](const Chain& chain, size_t) { return is_one_of(chains, &chain); });
  });
}

// Whether an access of `bytes` by the fiber is ordered behind all uses of these by other blocks.
bool ordered_behind(const Use& use, uint8_t bytes, const Fiber& f) {
  if ((use.older & bytes) != 0 && !taken_up(use.older_chains, f)) return false;
  return use.block == 0 || use.block == g_block || (use.bytes & bytes) == 0 || taken_up(use.block, use.at, f);
}

// The same within the block, as far as the last use of these bytes shows it.
bool ordered_within(const Use& use, uint8_t bytes, const Touch& now) {
  return use.block != g_block || (use.last & bytes) == 0 || ordered(use.at, now);
}

void note(Use& use, uint8_t bytes, const Touch& now) {
  if (use.block != g_block && use.block != 0) {
    const std::array<const Chain*, 2> chains = let_go(use.block, use.at);
    if (use.older == 0) use.older_chains = chains;
    for (const Chain*& chain : use.older_chains)
      if (!is_one_of(chains, chain)) chain = nullptr;
    use.older = static_cast<uint8_t>(use.older | use.bytes);
    use.bytes = 0;
  }
  const bool goes_on = use.block == g_block && use.at.thread == now.thread && use.at.time == now.time &&
                       use.at.cluster_epoch == now.cluster_epoch && use.at.block_epoch == now.block_epoch &&
                       use.at.warp_epoch == now.warp_epoch;
  use.last = static_cast<uint8_t>(goes_on ? use.last | bytes : bytes);
  use.block = g_block;
  use.bytes = static_cast<uint8_t>(use.bytes | bytes);
  use.at = now;
}

Use& use_of(std::unique_ptr<Uses>& uses, uintptr_t word) {
  if (uses == nullptr) {
    if (g_spare.empty()) g_spare.push_back(std::make_unique<Uses>());
    uses = std::move(g_spare.back());
    g_spare.pop_back();
  }
  Use& use = (*uses)[word % uses->size()];
  if (use.block < g_first_block) use = {};  // of another launch
  return use;
}

}  // namespace

void begin_global() {
  for (auto& [number, page] : g_pages) {
    for (auto* uses : {&page.read, &page.written})
      if (*uses != nullptr) g_spare.push_back(std::move(*uses));
  }
  g_pages.clear();
  g_recent = {};
  g_chains.clear();
  g_first_block = g_block + 1;
}
void begin_global_block() {
  ++g_block;
  g_acquired.clear();
  g_observed.clear();
}

void watch_global(const void* p, size_t size, bool write, const Fiber& f) {
  const auto first = reinterpret_cast<uintptr_t>(p), end = first + size;
  const Touch now = touch_now(f);
  for (uintptr_t word = first / kWordBytes; word * kWordBytes < end; ++word) {
    const uintptr_t at = word * kWordBytes, from = std::max(first, at) - at,
                    to = std::min(end, at + kWordBytes) - at;
    const auto bytes = static_cast<uint8_t>((1u << to) - (1u << from));
    Page& page = page_of(at / kPageBytes);
    const bool behind_writes =
        page.written == nullptr || ordered_behind(use_of(page.written, word), bytes, f);
    const bool behind_reads =
        !write || page.read == nullptr || ordered_behind(use_of(page.read, word), bytes, f);
    if (!behind_writes || !behind_reads) {
      const Use& other = use_of(behind_writes ? page.read : page.written, word);
      return fail(std::string("race in global memory: ") + (write ? "written" : "read") +
                  " beside another block that has " + (behind_writes ? "read" : "written") + " it (" +
                  std::to_string(g_block - other.block) + " blocks before)");
    }
    for (auto* uses : {&page.written, write ? &page.read : nullptr}) {
      if (uses == nullptr || *uses == nullptr) continue;
      const Use& other = use_of(*uses, word);
      if (ordered_within(other, bytes, now)) continue;
      return fail(std::string("race in global memory: ") + (write ? "written" : "read") +
                  " without a barrier behind thread " + std::to_string(other.at.thread));
    }
    if (write) {
      // Whoever comes behind this write comes behind what it replaces.
      Use& written = use_of(page.written, word);
      written.older = static_cast<uint8_t>(written.older & ~bytes);
      if (written.block != g_block) written.bytes = static_cast<uint8_t>(written.bytes & ~bytes);
      note(written, bytes, now);
    } else {
      // Whoever comes behind this read comes behind those before it, where it comes behind all of them
      // itself.
      Use& read = use_of(page.read, word);
      const bool others = read.block != g_block && read.block != 0 && !g_acquired.empty();
      if (others && ((read.older | read.bytes) & ~bytes) == 0 && ordered_behind(read, bytes, f))
        read.older = read.bytes = 0;
      note(read, bytes, now);
    }
  }
}

void device_fence() {
  Fiber& f = *machine().now;
  ++f.device_fences;
  f.fenced_at = touch_now(f);
  for (Acquired& o : g_observed) {
    if (o.at.thread == f.number) g_acquired.push_back({o.chain, o.count, f.fenced_at});
  }
  std::erase_if(g_observed, [&](const Acquired& o) { return o.at.thread == f.number; });
}

namespace {
void observe(const Chain& chain, size_t count, const Fiber& f) {
  if (count > 0) g_observed.push_back({&chain, count, touch_now(f)});
}
}  // namespace

// Blocks run one after the other, so whoever would wait here would wait for blocks that have not begun: on a
// device there may be no room for them while this one waits.
void wait_for_count(const uint32_t* p, uint32_t count, Place place) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof *p != 0 || !device_holds(p, sizeof *p))
    return fail("a wait for a counter outside of an allocation, or misaligned", place);
  if (*p < count) return fail("a block waits for blocks that may not have begun", place);
  check_waited(*machine().now, place);
  const Chain& chain = g_chains[p];  // of more than it waits for it knows nothing
  observe(chain, std::min<size_t>(count, chain.releases.size()), *machine().now);
}

uint32_t atomic_increment(uint32_t* p, uint32_t most, Place place) {
  Fiber& f = *machine().now;
  if (reinterpret_cast<uintptr_t>(p) % sizeof *p != 0 || !device_holds(p, sizeof *p)) {
    fail("an atomic operation outside of an allocation, or misaligned", place);
    return 0;
  }
  check_waited(f, place);
  Chain& chain = g_chains[p];
  if (chain.most != most) {
    chain.most = most;
    chain.older = chain.releases.size();
  }
  for (const Release& r : std::span(chain.releases).first(chain.older)) {
    if (r.block == g_block || taken_up(r.block, r.at, f)) continue;
    fail("a block counts to something else while others may not have counted yet", place);
    return 0;
  }
  observe(chain, chain.releases.size(), f);
  if (f.device_fences > 0) {
    for (const Acquired& a : g_acquired) {
      if (a.at.thread != f.number && !before(a.at, f.fenced_at)) continue;
      const bool known = std::ranges::any_of(
          chain.along, [&](const Chain::TakenAlong& t) { return t.chain == a.chain && t.count >= a.count; });
      if (!known && a.chain != &chain) chain.along.push_back({chain.releases.size(), a.chain, a.count});
    }
    chain.releases.push_back({g_block, f.fenced_at});
  }
  const uint32_t before = *p;
  *p = before >= most ? 0 : before + 1;
  return before;
}

}  // namespace oar::cuda::emulation
