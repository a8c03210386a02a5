// Fibers and meetings: how the threads of a block take turns on one thread of the processor.
#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "kernels/cuda/emulation/machine.h"

// Saves the registers that a call preserves (System V x86-64), swaps stacks and returns on the other one.
extern "C" void oar_cuda_switch(void** save, void* load);
asm(R"(
.text
.globl oar_cuda_switch
.hidden oar_cuda_switch
.type oar_cuda_switch, @function
oar_cuda_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size oar_cuda_switch, . - oar_cuda_switch
)");

namespace oar::cuda::emulation {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr int kSavedRegisters = 6;
// Fibers take turns all the time: the ends of their stacks lie in different sets of a cache of 64 lines a
// way.
constexpr size_t kCacheLine = 64, kCacheSets = 64, kLinesInUse = 8;
size_t stack_offset(int number) {
  const auto n = static_cast<size_t>(number);
  return (n * kLinesInUse + n * kLinesInUse / kCacheSets) % kCacheSets * kCacheLine;
}

std::string g_error;
const std::function<void()>* g_thread = nullptr;  // the kernel with its arguments
void* g_scheduler_stack_pointer = nullptr;

// A block ends behind all that others do in its shared memory, whatever the order of threads: one of its
// threads is ordered behind each.
void check_left_alone(int rank) {
  Machine& m = machine();
  const auto threads = static_cast<size_t>(m.block_threads);
  const auto own = std::span(m.fibers).subspan(static_cast<size_t>(rank) * threads, threads);
  for (const auto& [thread, touch] : m.reached[static_cast<size_t>(rank)]) {
    if (std::ranges::none_of(own, [&](const Fiber& f) { return ordered(touch, f); }))
      fail("a block ends while thread " + std::to_string(thread) +
           " of its cluster may still be in its shared memory");
  }
}

// Of a thread that ends.
void check_sent(const Fiber& f) {
  const auto pending = [](const std::vector<AsyncCopy>& group) { return !group.empty(); };
  if (!f.open.empty() || std::any_of(f.groups.begin(), f.groups.end(), pending)) {
    fail("a thread ends with copies that it has not waited for");
  }
  if (!f.open_stores.empty() || !f.stores.empty()) {
    fail("a thread ends with stores of boxes that it has not waited for");
  }
  if (!f.open_products.empty() || !f.products.empty()) {
    fail("a thread ends with products that it has not waited for");
  }
}

void forget_sent(Fiber& f) {
  f.open.clear();
  f.groups.clear();
  f.open_stores.clear();
  f.stores.clear();
  f.open_products.clear();
  f.products.clear();
  f.sends = false;
}

void fiber_main() {
  (*g_thread)();
  Machine& m = machine();
  Fiber& f = *m.now;
  if (m.early && !f.waited) fail("a thread ends that has not waited for the launches before");
  if (f.sends) check_sent(f);
  m.state_of(f) = Fiber::State::kDone;
  m.warp_ended[static_cast<size_t>(f.warp())] |= 1u << f.lane();
  if (--m.left[static_cast<size_t>(f.rank)] == 0) check_left_alone(f.rank);
  yield_fiber();
  __builtin_unreachable();  // nobody resumes what is done
}

void resume(Fiber& f) {
  machine().now = &f;
  oar_cuda_switch(&g_scheduler_stack_pointer, f.stack_pointer);
}

void prepare(Fiber& f, int number, int rank, dim3 grid, dim3 block, uint3 thread, uint3 index) {
  if (f.stack == nullptr) {  // kept for the life of the process
    f.stack = static_cast<std::byte*>(
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  f.rank = rank;
  f.thread = thread;
  f.block = {index.x + static_cast<unsigned>(f.rank), index.y, index.z};
  f.block_dim = block;
  f.grid_dim = grid;
  f.number = number;
  if (f.sends) forget_sent(f);
  f.waited = false;
  f.fences = 0;
  f.device_fences = 0;
  f.mbarrier_fences = 0;
  f.wgmma_fenced = false;
  f.wgmmas = 0;
  f.touch = 0;
  // As if it had called oar_cuda_switch: return address, then the registers. The stack is aligned as a call
  // leaves it.
  auto* top = reinterpret_cast<void**>(f.stack + kStackBytes - kCacheLine - stack_offset(number));
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&fiber_main);
  for (int r = 0; r < kSavedRegisters; ++r) *--top = nullptr;
  f.stack_pointer = top;
}

// Whether these wait at a barrier, all that have not ended; then they go on.
bool pass(size_t first, size_t count, Fiber::State at, const char* name) {
  Machine& m = machine();
  const auto states = std::span(m.states).subspan(first, count);
  if (!std::ranges::all_of(states, [&](Fiber::State s) { return s == at || s == Fiber::State::kDone; }))
    return false;
  const auto waits = static_cast<size_t>(std::ranges::find(states, at) - states.begin());
  if (waits == count) return false;
  const Place place = m.fibers[first + waits].place;
  for (size_t k = waits; k < count; ++k) {
    const Place its = m.fibers[first + k].place;
    const bool same =
        its.line == place.line && (its.file == place.file || std::strcmp(its.file, place.file) == 0);
    if (states[k] == at && !same) fail(std::string(name) + " is reached at different places", its);
  }
  if (std::ranges::find(states, Fiber::State::kDone) != states.end())
    fail(std::string(name) + " is not reached by threads that have ended", place);
  meet_clocks(static_cast<int>(first), static_cast<int>(count), 0xffffffffu);
  std::ranges::replace(states, at, Fiber::State::kReady);
  return true;
}

// Nobody can go on: all of a block wait at its barrier, or all of the cluster at that, or something is wrong.
// True: go on.
bool pass_barrier() {
  Machine& m = machine();
  const auto all = static_cast<size_t>(m.threads);
  bool passed = false;
  for (int rank = 0; rank < m.blocks(); ++rank) {
    const auto threads = static_cast<size_t>(m.block_threads);
    if (!pass(static_cast<size_t>(rank) * threads, threads, Fiber::State::kAtBarrier, "__syncthreads"))
      continue;
    passed = true;
    ++counters().barriers;
    ++m.block_epoch[static_cast<size_t>(rank)];
  }
  if (passed) return true;
  if (pass(0, all, Fiber::State::kAtCluster, "cluster_sync")) {
    ++m.cluster_epoch;
    for (uint32_t& epoch : m.block_epoch) ++epoch;
    return true;
  }
  using enum Fiber::State;
  const auto states = std::span(m.states).first(all);
  auto waits = std::ranges::find_if(states, [](auto s) { return s == kInWarp || s == kAtMbarrier; });
  const bool within = waits != states.end();
  if (!within) waits = std::ranges::find_if(states, [](auto s) { return s != kDone; });
  m.now = &m.fibers[static_cast<size_t>(waits - states.begin())];
  fail(!within             ? "a barrier is not reached by others of the cluster"
       : *waits == kInWarp ? "a warp waits for lanes that never come"
                           : "a phase of an mbarrier never ends",
       m.now->place);
  return false;
}

void run_cluster(dim3 grid, dim3 block, uint3 index, std::mt19937& random) {
  Machine& m = machine();
  begin_block();
  for (auto& touches : m.reached) touches.clear();
  m.warp_waiting.fill(0);
  m.warp_ended.fill(0);
  if (m.threads % kLanes != 0) {
    m.warp_ended[static_cast<size_t>(m.threads / kLanes)] = ~0u << m.threads % kLanes;
  }
  std::vector<int> order(static_cast<size_t>(m.threads));
  uint3 thread{};
  for (int k = 0, rank = 0; k < m.threads; ++k) {
    prepare(m.fibers[static_cast<size_t>(k)], k, rank, grid, block, thread, index);
    order[static_cast<size_t>(k)] = options().order == Order::kDescending ? m.threads - 1 - k : k;
    if (++thread.x < block.x) continue;
    thread.x = 0;
    if (++thread.y < block.y) continue;
    thread.y = 0;
    if (++thread.z < block.z) continue;
    thread.z = 0;
    ++rank;
  }
  const auto threads = static_cast<size_t>(m.threads), ranks = static_cast<size_t>(m.blocks());
  std::ranges::fill(std::span(m.states).first(threads), Fiber::State::kReady);
  std::ranges::fill(std::span(m.left).first(ranks), m.block_threads);
  if (options().order == Order::kShuffled) std::shuffle(order.begin(), order.end(), random);
  while (true) {
    bool moved = false;
    for (int k : order) {
      Fiber::State& state = m.states[static_cast<size_t>(k)];
      if (state != Fiber::State::kReady && state != Fiber::State::kAtMbarrier) continue;
      Fiber& f = m.fibers[static_cast<size_t>(k)];
      if (state == Fiber::State::kAtMbarrier && !phase_has_ended(f)) continue;
      state = Fiber::State::kReady;
      resume(f);
      moved = true;
    }
    if (std::ranges::all_of(std::span(m.left).first(ranks), [](int left) { return left == 0; })) break;
    if (!moved && !deliver_box() && !pass_barrier()) break;  // fibers that never end are left where they are
  }
  finish_wgmma();
  finish_block();
}

}  // namespace

Machine& machine() {
  static auto* m = new Machine;  // larger than a stack; fibers keep theirs until the end
  return *m;
}
Options& options() {
  static Options o;
  return o;
}
Counters& counters() {
  static Counters c;
  return c;
}

void fail(const std::string& what, Place place) {
  if (!g_error.empty()) return;
  const char* slash = std::strrchr(place.file, '/');
  g_error = what;
  if (place.line > 0) {
    g_error += std::string(" (") + (slash != nullptr ? slash + 1 : place.file) + ":" +
               std::to_string(place.line) + ")";
  }
  if (const Fiber* f = machine().now; f != nullptr) {
    g_error += " [block " + std::to_string(f->block.x) + "," + std::to_string(f->block.y) + "," +
               std::to_string(f->block.z) + " thread " + std::to_string(f->number) + "]";
  }
}
std::string take_error() { return std::exchange(g_error, {}); }

const Thread& current_thread() { return *machine().now; }
int lane_of_current_thread() { return machine().now->lane(); }
void* shared_memory() { return machine().shared_of(machine().now->rank); }
int cluster_rank() { return machine().now->rank; }
int cluster_blocks() { return machine().blocks(); }
void* cluster_map(void* shared, int rank, Place place) {
  Machine& m = machine();
  const auto offset = static_cast<std::byte*>(shared) - m.shared_of(m.now->rank);
  if (rank >= 0 && rank < m.blocks() && m.within(shared, 1, m.now->rank)) return m.shared_of(rank) + offset;
  fail("mapa: not the block's own shared memory, or no block of the cluster", place);
  return shared;
}

void yield_fiber() { oar_cuda_switch(&machine().now->stack_pointer, g_scheduler_stack_pointer); }

void block_barrier(Place place) {
  Machine& m = machine();
  m.state_of(*m.now) = Fiber::State::kAtBarrier;
  m.now->place = place;
  yield_fiber();
}

void cluster_barrier(Place place) {
  Machine& m = machine();
  m.state_of(*m.now) = Fiber::State::kAtCluster;
  m.now->place = place;
  yield_fiber();
}

void wait_for_launches() { machine().now->waited = true; }

void check_waited(const Fiber& f, Place place) {
  if (machine().early && !f.waited)
    fail("global memory is looked at before the launches before are waited for", place);
}

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread, bool early,
              unsigned cluster) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  constexpr unsigned kMaxGridYZ = 65535;
  if (shared_bytes > kMaxSharedBytes || threads == 0 || threads > kMaxThreads || grid.x == 0 || grid.y == 0 ||
      grid.z == 0 || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ) {
    fail("invalid launch: " + std::to_string(threads) + " threads, " + std::to_string(shared_bytes) +
         " bytes of shared memory, a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) +
         " x " + std::to_string(grid.z));
    return;
  }
  if (cluster == 0 || cluster > kMaxCluster || grid.x % cluster != 0 || cluster * threads > kMaxTogether ||
      (cluster > 1 && threads % kLanes != 0)) {
    fail("invalid launch: clusters of " + std::to_string(cluster) + " blocks of " + std::to_string(threads) +
         " threads, " + std::to_string(grid.x) + " blocks in a row");
    return;
  }
  Machine& m = machine();
  g_thread = &thread;
  m.block_threads = static_cast<int>(threads);
  m.threads = static_cast<int>(cluster * threads);
  m.shared_bytes = shared_bytes;
  m.early = early;
  ++counters().launches;
  std::mt19937 random(options().seed);
  begin_l2(m.block_threads, shared_bytes, cluster);
  begin_global();
  const uint64_t across = grid.x / cluster, clusters = across * grid.y * grid.z;
  std::vector<uint64_t> shuffled(options().order == Order::kShuffled ? clusters : 0);
  std::iota(shuffled.begin(), shuffled.end(), uint64_t{0});
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  for (uint64_t k = 0; k < clusters; ++k) {
    const uint64_t c = !shuffled.empty()                       ? shuffled[k]
                       : options().order == Order::kDescending ? clusters - 1 - k
                                                               : k;
    counters().blocks += cluster;
    run_cluster(grid, block,
                {static_cast<unsigned>(c % across) * cluster, static_cast<unsigned>(c / across % grid.y),
                 static_cast<unsigned>(c / across / grid.y)},
                random);
  }
  end_l2();
  check_guards();
  m.now = nullptr;
}

}  // namespace oar::cuda::emulation
