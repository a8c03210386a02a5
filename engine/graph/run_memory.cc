#include "engine/graph/run_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "engine/base/format.h"

namespace oar {
namespace {

// Planning compares each block with those placed before; a run with more requests (a long loop) places them
// as they come.
constexpr size_t kMostBlocks = 8192;

constexpr uint64_t rounded(uint64_t bytes) {
  return (bytes + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
}

// Zeros that the system provides page by page as they are touched.
Result<Buffer> untouched_zeros(uint64_t bytes) {
  constexpr uint64_t kSmall = 64 << 10;
  if (bytes < kSmall) return Buffer::zeros(bytes);
  void* p =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return resource_exhausted(cat("cannot reserve ", format_bytes(bytes)));
  return Buffer::wrap(p, bytes, std::shared_ptr<const void>(p, [bytes](const void* at) {
                        ::munmap(const_cast<void*>(at), bytes);
                      }));
}

}  // namespace

BlockPlan plan_blocks(std::vector<BlockLife> blocks) {
  BlockPlan plan;
  plan.blocks = std::move(blocks);
  const size_t n = plan.blocks.size();
  plan.offsets.assign(n, BlockPlan::kOutside);
  std::vector<size_t> order;
  std::vector<std::pair<uint32_t, int64_t>> changes;  // tick, bytes
  for (size_t i = 0; i < n; ++i) {
    const BlockLife& b = plan.blocks[i];
    if (b.end == BlockLife::kHeld) {
      plan.result_bytes += b.bytes;
      continue;
    }
    order.push_back(i);
    changes.emplace_back(b.begin, static_cast<int64_t>(rounded(b.bytes)));
    changes.emplace_back(b.end, -static_cast<int64_t>(rounded(b.bytes)));
  }
  std::sort(changes.begin(), changes.end());
  int64_t live = 0;
  for (const auto& [tick, bytes] : changes) {
    live += bytes;
    plan.live_bytes = std::max(plan.live_bytes, static_cast<uint64_t>(live));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return plan.blocks[a].bytes > plan.blocks[b].bytes; });
  std::vector<size_t> placed;  // by offset
  for (const size_t i : order) {
    const BlockLife& b = plan.blocks[i];
    const uint64_t size = rounded(b.bytes);
    uint64_t at = 0;
    for (const size_t p : placed) {
      const BlockLife& o = plan.blocks[p];
      if (o.end <= b.begin || b.end <= o.begin) continue;
      if (plan.offsets[p] >= at + size) break;
      at = std::max(at, plan.offsets[p] + rounded(o.bytes));
    }
    plan.offsets[i] = at;
    plan.arena_bytes = std::max(plan.arena_bytes, at + size);
    const auto after = std::upper_bound(placed.begin(), placed.end(), at,
                                        [&](uint64_t v, size_t p) { return v < plan.offsets[p]; });
    placed.insert(after, i);
  }
  return plan;
}

struct RunMemory::State {
  struct Range {
    uint64_t offset, size;
  };
  Backend* backend = nullptr;
  mutable std::mutex mutex;
  Buffer arena;
  std::vector<Range> taken;  // by offset
  std::shared_ptr<const BlockPlan> plan;
  std::vector<BlockLife> lives;
  uint32_t tick = 0;
  uint64_t requests = 0;
  size_t next = 0;              // block of the plan, behind the last that was asked for
  size_t until = 0;             // where the node's blocks of the plan end
  std::vector<uint32_t> first;  // while sizing
  uint64_t run = 0;             // blocks of earlier runs leave no trace in this one
  bool sizing = false;
  // Results that their owners gave back, for results of later runs: memory from the system comes page by
  // page.
  std::vector<Buffer> spare;
  uint64_t spare_bytes = 0, most_spare = 0;

  Result<Buffer> fresh(uint64_t bytes) const {
    return backend != nullptr ? backend->allocate(bytes) : Buffer::allocate(bytes);
  }
  // Keeps `b` where it may serve again.
  void keep(Buffer b) {
    constexpr uint64_t kPages = 64 << 10;  // smaller blocks cost the system nothing
    if (b.size() < kPages || spare_bytes + b.size() > most_spare) return;
    spare_bytes += b.size();
    spare.push_back(std::move(b));
  }
  Buffer take_spare(uint64_t bytes) {
    for (Buffer& b : spare) {
      if (b.size() != bytes) continue;
      std::swap(b, spare.back());
      Buffer found = std::move(spare.back());
      spare.pop_back();
      spare_bytes -= bytes;
      return found;
    }
    return {};
  }
  uint64_t drop_spare() {
    spare.clear();
    return std::exchange(spare_bytes, 0);
  }

  // Where the plan has the block that is asked for now; none: it has no such block. An op may ask for more
  // blocks or fewer than when its run was sized: so those next to come are looked through for one of this
  // size.
  std::optional<uint64_t> wish(uint64_t bytes) {
    constexpr size_t kLookAhead = 64;
    if (!plan) return std::nullopt;
    const size_t end = std::min(until, next + kLookAhead);
    for (size_t i = next; i < end; ++i) {
      if (plan->blocks[i].bytes != bytes) continue;
      next = i + 1;
      return plan->offsets[i];
    }
    return std::nullopt;
  }

  // A free place for `size` bytes; kOutside when there is none.
  uint64_t place(uint64_t size, uint64_t wish) const {
    uint64_t best = BlockPlan::kOutside, best_gap = UINT64_MAX, from = 0;
    for (size_t i = 0; i <= taken.size(); ++i) {
      const uint64_t to = i < taken.size() ? taken[i].offset : arena.size();
      if (wish >= from && wish <= to && size <= to - wish) return wish;
      if (to - from >= size && to - from < best_gap) best = from, best_gap = to - from;
      if (i < taken.size()) from = taken[i].offset + taken[i].size;
    }
    return best;
  }
  void take(uint64_t offset, uint64_t size) {
    const auto after = std::upper_bound(taken.begin(), taken.end(), offset,
                                        [](uint64_t v, const Range& r) { return v < r.offset; });
    taken.insert(after, {offset, size});
  }
  void release(uint64_t of_run, size_t block, uint64_t offset) {
    const std::lock_guard lock(mutex);
    if (offset != BlockPlan::kOutside) {
      const auto at = std::lower_bound(taken.begin(), taken.end(), offset,
                                       [](const Range& r, uint64_t v) { return r.offset < v; });
      taken.erase(at);
    }
    if (of_run == run && block < lives.size()) lives[block].end = tick++;
  }
};

// What the owner of a block does when its last view is gone. Blocks in the arena keep it alive; those outside
// keep only themselves.
struct RunMemory::Release {
  std::shared_ptr<State> arena;
  std::weak_ptr<State> outside;
  Buffer own;
  uint64_t run;
  size_t block;
  uint64_t offset;
  void operator()(const void*) {
    const std::shared_ptr<State> state = arena ? arena : outside.lock();
    if (!state) return;
    state->release(run, block, offset);
    if (own.size() > 0 && offset == BlockPlan::kOutside) {
      const std::lock_guard lock(state->mutex);
      if (!state->sizing) state->keep(std::move(own));
    }
  }
};

RunMemory::RunMemory(Backend* backend) : state_(std::make_shared<State>()) { state_->backend = backend; }

Status RunMemory::begin(std::shared_ptr<const BlockPlan> plan) {
  const uint64_t wanted = plan ? plan->arena_bytes : 0;
  {
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    // As much as the results of such a run take.
    const uint64_t results = plan ? plan->result_bytes : 0;
    if (s.most_spare != results) s.drop_spare();
    s.most_spare = results;
    s.plan = std::move(plan);
    s.lives.clear();
    s.tick = 0, s.requests = 0, s.next = 0, ++s.run;
    s.until = s.plan ? s.plan->blocks.size() : 0;
    s.sizing = false;
    if (wanted <= s.arena.size()) return ok_status();
    if (s.taken.empty()) s.arena = {};  // before the new one, so that both are never there
  }
  OAR_ASSIGN(Buffer arena, state_->fresh(wanted));
  const std::lock_guard lock(state_->mutex);
  if (state_->taken.empty()) state_->arena = std::move(arena);
  return ok_status();
}

void RunMemory::begin_sizing() {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  s.plan = nullptr;
  s.lives.clear();
  s.tick = 0, s.requests = 0, ++s.run;
  s.first.clear();
  s.sizing = true;
}

void RunMemory::at_node(size_t node) {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  if (s.sizing) s.first.push_back(static_cast<uint32_t>(s.requests));
  if (!s.plan || node >= s.plan->first.size()) return;
  s.next = s.plan->first[node];
  s.until = node + 1 < s.plan->first.size() ? s.plan->first[node + 1] : s.plan->blocks.size();
}

std::vector<uint32_t> RunMemory::first_blocks() const {
  const std::lock_guard lock(state_->mutex);
  return state_->first;
}

Result<Buffer> RunMemory::allocate(uint64_t bytes) {
  if (bytes == 0) return Buffer();
  Release release{nullptr, {}, {}, 0, 0, BlockPlan::kOutside};
  void* data = nullptr;
  bool sizing = false;
  {
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    release.run = s.run;
    release.block = s.requests++;
    if (release.block < kMostBlocks) s.lives.push_back({bytes, s.tick++, BlockLife::kHeld});
    sizing = s.sizing;
    if (!sizing && bytes <= s.arena.size()) {
      const std::optional<uint64_t> wish = s.wish(bytes);
      // A result outlives the run and the arena must not.
      if (wish != BlockPlan::kOutside)
        release.offset = s.place(rounded(bytes), wish.value_or(BlockPlan::kOutside));
      if (release.offset != BlockPlan::kOutside) {
        s.take(release.offset, rounded(bytes));
        release.arena = state_;
        data = static_cast<std::byte*>(s.arena.mutable_data()) + release.offset;
      }
    }
    if (!sizing && !data) {
      release.own = s.take_spare(bytes);
      if (release.own.size() > 0) data = release.own.mutable_data();
    }
  }
  if (!data) {
    OAR_ASSIGN(release.own, sizing ? untouched_zeros(bytes) : state_->fresh(bytes));
    data = release.own.mutable_data();
  }
  if (!release.arena) release.outside = state_;
  const MemoryKind kind = state_->backend != nullptr ? state_->backend->memory() : MemoryKind::kHost;
  return Buffer::wrap_transient(data, bytes, std::shared_ptr<const void>(data, std::move(release)), kind);
}

std::vector<BlockLife> RunMemory::end() {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  std::vector<BlockLife> lives = s.requests > kMostBlocks ? std::vector<BlockLife>() : s.lives;
  s.plan = nullptr;
  s.sizing = false;
  ++s.run;
  return lives;
}

bool RunMemory::in_arena(const void* data) const {
  const std::lock_guard lock(state_->mutex);
  const auto at = reinterpret_cast<uintptr_t>(data);
  const auto begin = reinterpret_cast<uintptr_t>(state_->arena.data());
  return at >= begin && at - begin < state_->arena.size();
}

uint64_t RunMemory::arena_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->arena.size();
}

uint64_t RunMemory::shrink() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->taken.empty()) return 0;
  return state_->drop_spare() + std::exchange(state_->arena, Buffer()).size();
}

}  // namespace oar
