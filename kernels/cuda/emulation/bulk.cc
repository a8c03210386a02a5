// mbarriers and the asynchronous proxy: boxes of tensors on their way, and who may see what they brought.
//
// Late copies arrive when no thread can go on, the newest first; early ones at once.
#include <algorithm>
#include <utility>

#include "kernels/cuda/emulation/machine.h"

namespace oar::cuda::emulation {
namespace {

constexpr uint32_t kBoxAlignment = 128, kPieceBytes = 16;

uint32_t shared_offset(const void* p) {
  return static_cast<uint32_t>(static_cast<const std::byte*>(p) - machine().shared);
}

size_t box_bytes(const Box& b) {
  size_t bytes = b.map.element_bytes;
  for (int d = 0; d < b.rank; ++d) bytes *= b.map.box[d];
  return bytes;
}

// Calls visit(offset in the cluster's shared memory, the same in global memory or null outside of the tensor,
// bytes) for elements side by side: at most the 16 bytes that swizzles leave together.
template <class Visit>
void each_piece(const Box& b, Visit visit) {
  const TensorMap& m = b.map;
  const auto bytes = static_cast<int64_t>(m.element_bytes), width = int64_t{m.box[0]};
  const int64_t begin = std::clamp<int64_t>(-int64_t{b.first[0]}, 0, width),
                end = std::clamp<int64_t>(static_cast<int64_t>(m.size[0]) - b.first[0], begin, width);
  uint32_t at = shared_offset(b.shared);
  const uint32_t planes = b.rank == 3 ? m.box[2] : 1;
  for (uint32_t z = 0; z < planes; ++z) {
    for (uint32_t y = 0; y < m.box[1]; ++y) {
      const int64_t i[3] = {b.first[0], b.first[1] + int64_t{y}, b.first[2] + int64_t{z}};
      bool row_inside = true;
      int64_t offset = i[0] * bytes;
      for (int d = 1; d < b.rank; ++d) {
        row_inside = row_inside && i[d] >= 0 && i[d] < static_cast<int64_t>(m.size[d]);
        offset += i[d] * static_cast<int64_t>(m.stride[d - 1]);
      }
      for (int64_t x = 0; x < width;) {
        const bool inside = row_inside && x >= begin && x < end;
        const int64_t border = x < begin ? begin
                               : x < end ? end
                                         : width,
                      together = std::max<int64_t>((kPieceBytes - at % kPieceBytes) / bytes, 1),
                      n = std::min(border - x, together);
        visit(swizzled(at, m.swizzle), inside ? const_cast<std::byte*>(m.base) + offset + x * bytes : nullptr,
              static_cast<size_t>(n * bytes));
        x += n;
        at += static_cast<uint32_t>(n * bytes);
      }
    }
  }
}

// As a whole where it is aligned, or element by element.
void watch_piece(const std::byte* global, size_t bytes, size_t element_bytes, bool write) {
  const bool whole = bytes == kPieceBytes && reinterpret_cast<uintptr_t>(global) % kPieceBytes == 0;
  const size_t step = whole ? bytes : element_bytes;
  for (size_t k = 0; k < bytes; k += step) watch_access(global + k, step, write, nullptr);
}

// Runs `work` as if `number` did: what goes wrong in it is that thread's.
template <class Work>
void on_behalf_of(int number, Work work) {
  Machine& m = machine();
  Fiber* last = std::exchange(m.now, &m.fibers[static_cast<size_t>(number)]);
  work();
  m.now = last;
}

void move_box(const Box& b, bool to_shared) {
  Machine& m = machine();
  on_behalf_of(b.thread, [&, sector = uintptr_t{0}]() mutable {
    each_piece(b, [&](uint32_t at, std::byte* global, size_t bytes) {
      if (global == nullptr) {
        if (to_shared) std::memset(m.shared + at, 0, bytes);
        return;
      }
      if (tracing() && b.reads) watch_piece(global, bytes, b.map.element_bytes, !to_shared);
      const auto first = reinterpret_cast<uintptr_t>(global);
      for (uintptr_t s = first / kSectorBytes; s <= (first + bytes - 1) / kSectorBytes; ++s) {
        if (has_l2() && b.reads && s != sector) l2_access(s, !to_shared, b.streamed);
        sector = s;
      }
      if (to_shared) std::memcpy(m.shared + at, global, bytes);
      else std::memcpy(global, m.shared + at, bytes);
    });
  });
}

// False, with an error, for what the hardware refuses or garbles.
bool valid(const Box& b) {
  const char* wrong = nullptr;
  const uint32_t alignment = std::max(kBoxAlignment, 8 * b.map.swizzle);
  if (b.map.rank != b.rank) wrong = "the tensor map has another number of dimensions";
  else if (!machine().within(b.shared, box_bytes(b), b.block))
    wrong = "outside of the launch's shared memory";
  else if (shared_offset(b.shared) % alignment != 0) wrong = "misaligned: its swizzle begins elsewhere";
  if (wrong != nullptr) fail(std::string("a box of a tensor: ") + wrong, b.place);
  return wrong == nullptr;
}

MbarrierState* find(const void* p, Place place) {
  Machine& m = machine();
  const auto it = m.mbarriers.find(shared_offset(p));
  if (it == m.mbarriers.end()) {
    fail("an mbarrier that nobody has initialized", place);
    return nullptr;
  }
  const MbarrierState& b = it->second;
  if (!ordered(b.made, *m.now))
    fail("an mbarrier is used without a barrier behind its initialization", place);
  const Fiber& maker = m.fibers[static_cast<size_t>(b.made.thread)];
  if (maker.rank != m.now->rank && maker.mbarrier_fences == b.fences)
    fail("an mbarrier of another block without a fence_mbarrier_init behind its initialization", place);
  return &it->second;
}

void settle(MbarrierState& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  b.pending = b.arrivals;
  b.done = b.clock;
  b.done[static_cast<size_t>(machine().threads + b.slot)] = ++b.phase;
}

void deliver(const Box& b) {
  if (machine().has_ended(b.block)) fail("a box comes to a block that has ended", b.place);
  move_box(b, true);
  MbarrierState& mbarrier = machine().mbarriers.at(b.mbarrier);
  mbarrier.bytes -= static_cast<int64_t>(box_bytes(b));
  settle(mbarrier);
}

}  // namespace

// ---- who is ordered behind whom: vector clocks, once a block has an mbarrier ----

void join(Clock& to, const Clock& from) {
  for (size_t k = 0; k < to.size(); ++k) to[k] = std::max(to[k], from[k]);
}

void meet_clocks(int first, int count, uint32_t mask) {
  Machine& m = machine();
  if (m.clocks.empty()) return;
  const auto takes_part = [&](int k) {
    return first + k < m.threads && (count > kLanes || (mask >> k & 1) != 0);
  };
  Clock all(m.clocks[0].size());
  for (int k = 0; k < count; ++k) {
    if (takes_part(k)) join(all, m.clocks[static_cast<size_t>(first + k)]);
  }
  for (int k = 0; k < count; ++k) {
    if (!takes_part(k)) continue;
    const auto thread = static_cast<size_t>(first + k);
    m.clocks[thread] = all;
    ++m.clocks[thread][thread];
  }
}

// ---- mbarriers ----

void mbarrier_init(void* p, int arrivals) {
  Machine& m = machine();
  Fiber& f = *m.now;
  if (reinterpret_cast<uintptr_t>(p) % 8 != 0 || !m.within(p, 8, f.rank) || arrivals < 1) {
    return fail("mbarrier.init: not 8 aligned bytes of the launch's shared memory, or no arrivals");
  }
  if (m.clocks.empty()) {
    const auto threads = static_cast<size_t>(m.threads);
    m.clocks.assign(threads, Clock(threads + kMaxMbarriers));
    for (size_t k = 0; k < threads; ++k) m.clocks[k][k] = 1;
  }
  if (m.mbarriers.size() == kMaxMbarriers) return fail("more mbarriers than the emulator follows");
  if (tracing()) watch_mbarrier(p);
  MbarrierState b;
  b.arrivals = b.pending = arrivals;
  b.slot = static_cast<int>(m.mbarriers.size());
  b.made = touch_now(f);
  b.fences = f.mbarrier_fences;
  b.clock.assign(m.clocks[0].size(), 0);
  if (!m.mbarriers.emplace(shared_offset(p), b).second) fail("mbarrier.init of one that is one already");
}

void mbarrier_arrive(void* p, uint32_t bytes, Place place) {
  Machine& m = machine();
  MbarrierState* b = find(p, place);
  if (b == nullptr) return;
  if (b->pending == 0) return fail("an mbarrier has more arrivals than its phase takes", place);
  const auto self = static_cast<size_t>(m.now->number);
  const auto rank = static_cast<int>(shared_offset(p) / kSharedStride);
  reach(rank, place);
  b->of_cluster = b->of_cluster || rank != m.now->rank;
  join(b->clock, m.clocks[self]);
  ++m.clocks[self][self];
  --b->pending;
  b->bytes += bytes;
  settle(*b);
}

bool phase_has_ended(const Fiber& f) { return (f.mbarrier->phase & 1) != f.parity; }

void mbarrier_wait(void* p, uint32_t parity, bool of_cluster, Place place) {
  Fiber& f = *machine().now;
  MbarrierState* b = find(p, place);
  if (b == nullptr) return;
  if (!machine().within(p, 8, f.rank)) return fail("a wait for an mbarrier of another block", place);
  f.mbarrier = b;
  f.parity = parity;
  f.place = place;
  if (!phase_has_ended(f)) {
    machine().state_of(f) = Fiber::State::kAtMbarrier;
    yield_fiber();
  }
  if (b->of_cluster && !of_cluster)
    fail("arrivals of other blocks are waited for within the block: mbarrier_wait_cluster", place);
  if (!b->done.empty()) join(machine().clocks[static_cast<size_t>(f.number)], b->done);
}

void fence_proxy_async() { ++machine().now->fences; }
void fence_mbarrier_init() { ++machine().now->mbarrier_fences; }

// ---- boxes ----

namespace {
void send(const Box& box) {
  Machine& m = machine();
  const MbarrierState* b = find(m.shared + box.mbarrier, box.place);
  if (b == nullptr) return;
  if (!fenced(b->made))
    fail("a box copy may not see its mbarrier: no fence_proxy_async behind its initialization", box.place);
  const Touch by_copy{.thread = m.threads + b->slot, .time = b->phase + 1};
  each_piece(box, [&](uint32_t at, std::byte*, size_t bytes) {
    if (tracing()) watch_box(at, bytes, true, by_copy, box.place);
    if (options().late_copies) std::memset(m.shared + at, 0xff, bytes);
  });
  if (options().late_copies) m.boxes.push_back(box);
  else deliver(box);
}
}  // namespace

void copy_box(void* shared, const TensorMap& map, int rank, std::array<int, 3> first, void* mbarrier,
              uint32_t blocks, bool streamed, Place place) {
  Machine& m = machine();
  check_waited(*m.now, place);
  const int own = m.now->rank;
  Box box{shared, map, rank, first, shared_offset(mbarrier), own, true, streamed, m.now->number, place};
  if (!valid(box)) return;
  if (blocks >> m.blocks() != 0 || !m.within(mbarrier, 8, own))
    return fail("a box for blocks that the cluster does not have, or an mbarrier of another block", place);
  counters().box_bytes += box_bytes(box);
  for (int block = 0; block < m.blocks(); ++block) {
    if (blocks == 0 ? block != own : (blocks >> block & 1) == 0) continue;
    const ptrdiff_t away = m.shared_of(block) - m.shared_of(own);
    Box to = box;
    to.shared = static_cast<std::byte*>(shared) + away;
    to.mbarrier = static_cast<uint32_t>(to.mbarrier + away);
    to.block = block;
    send(to);
    box.reads = false;
  }
}

bool deliver_box() {
  Machine& m = machine();
  if (m.boxes.empty()) return false;
  const Box b = m.boxes.back();
  m.boxes.pop_back();
  deliver(b);
  return true;
}

void store_box(const TensorMap& map, int rank, std::array<int, 3> first, const void* shared, Place place) {
  Fiber& f = *machine().now;
  check_waited(f, place);
  const Box box{const_cast<void*>(shared), map, rank, first, 0, f.rank, true, false, f.number, place};
  if (!valid(box)) return;
  if (tracing()) {
    const Touch by_thread = touch_now(f);
    each_piece(box,
               [&](uint32_t at, std::byte*, size_t bytes) { watch_box(at, bytes, false, by_thread, place); });
  }
  counters().box_bytes += box_bytes(box);
  f.open_stores.push_back(box);
  f.sends = true;
  if (!options().late_copies) move_box(box, false);
}
void store_box_commit() {
  Fiber& f = *machine().now;
  f.stores.push_back(std::exchange(f.open_stores, {}));
  f.sends = true;
}
void store_box_wait(int left) {
  Fiber& f = *machine().now;
  for (; f.stores.size() > static_cast<size_t>(left); f.stores.pop_front()) {
    if (!options().late_copies) continue;
    for (const Box& b : f.stores.front()) move_box(b, false);
  }
}

void begin_bulk() {
  Machine& m = machine();
  m.mbarriers.clear();
  m.boxes.clear();
  m.clocks.clear();
}
void finish_bulk() {
  Machine& m = machine();
  if (!m.boxes.empty()) fail("a block ends before a box copy has arrived", m.boxes.front().place);
  for (const auto& [at, b] : m.mbarriers) {
    if (b.bytes != 0)
      fail("an mbarrier's bytes were not those of its copies: " + std::to_string(b.bytes) + " are missing");
  }
}

}  // namespace oar::cuda::emulation
