// What the parts of the emulator share: the fibers of the cluster of blocks that runs, most often one block,
// and the blocks' shared memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "kernels/cuda/emulation/emulation.h"

namespace oar::cuda::emulation {

constexpr int kLanes = 32;
constexpr size_t kMaxThreads = 1024;           // of a block
constexpr size_t kMaxCluster = 8;              // blocks: what every device with clusters takes
constexpr size_t kMaxTogether = 2048;          // threads of a cluster, as far as the emulator goes
constexpr size_t kMaxSharedBytes = 227 << 10;  // of a block, of sm_90
constexpr size_t kSectorBytes = 32;            // of global memory
constexpr size_t kGuardBytes = 256;            // watched around each allocation and behind shared memory
// Of shared memory, from a block of a cluster to the next.
constexpr size_t kSharedStride = (kMaxSharedBytes + kGuardBytes + 1023) / 1024 * 1024;
constexpr uint64_t kDeviceBytes = uint64_t{2} << 30;

enum class WarpOperation {
  kBarrier,
  kShuffle,
  kBallot,
  kLdmatrix,
  kMmaBf16,
  kMmaF16,
  kMmaTf32,
  kMmaS8,
  kMmaE4m3
};

struct AsyncCopy {
  void* to;
  const void* from;  // null: zeros
  int bytes;
  bool done;  // at once, as options() say
};

// A box of a tensor on its way.
struct Box {
  void* shared;
  TensorMap map;
  int rank;
  std::array<int, 3> first;
  uint32_t mbarrier;  // its offset in shared memory
  int block;          // of the cluster, whose shared memory it is
  bool reads;         // of a box for several blocks the first: others get what it read
  bool streamed;      // its bytes are the first that leave L2
  int thread;         // who asked
  Place place;
};

// This lane's part of a warp group's product.
struct Product {
  WgmmaType type;
  uint32_t columns;
  void* d;
  std::array<uint32_t, 64> before;  // d, which is NaN meanwhile
  uint64_t a, b;
};

// Who touched a byte last, and when: by barriers, by the thread's clock and by its proxy fences. Behind the
// threads come the mbarriers: their box copies.
struct Touch {
  uint32_t cluster_epoch = 0, block_epoch = 0, warp_epoch = 0;
  int thread = -1;
  uint32_t time = 1, fences = 0, device_fences = 0;
  bool operator==(const Touch&) const = default;
};

// Of each thread and each mbarrier, up to where whoever has the clock is ordered behind them.
using Clock = std::vector<uint32_t>;
constexpr size_t kMaxMbarriers = 64;

struct MbarrierState {
  int arrivals = 0, pending = 0, slot = 0;
  int64_t bytes = 0;  // that the phase still expects
  uint32_t phase = 0;
  Touch made;
  uint32_t fences = 0;      // fence_mbarrier_init of its maker so far
  bool of_cluster = false;  // another block has arrived at it
  Clock clock, done;        // of all arrivals; of those of phases that have ended
};

// What comes first is looked at most.
struct Fiber : Thread {
  enum class State : uint8_t { kReady, kInWarp, kAtBarrier, kAtCluster, kAtMbarrier, kDone };
  void* stack_pointer = nullptr;
  std::byte* stack = nullptr;
  int number = 0;  // in its cluster
  int rank = 0;    // of its block there
  // Where and in what it meets others.
  Place place{"", 0};
  WarpOperation operation{};
  uint32_t mask = 0;
  int argument = 0;  // lane of a shuffle, transpose of ldmatrix
  alignas(16) std::byte in[64];
  alignas(16) std::byte out[16];
  bool wgmma_fenced = false;
  uint64_t wgmmas = 0;                      // which, and where, all together
  const MbarrierState* mbarrier = nullptr;  // that it waits for
  uint32_t parity = 0;
  bool waited = false;           // for the launches before
  uint32_t fences = 0;           // fence_proxy_async so far
  uint32_t mbarrier_fences = 0;  // fence_mbarrier_init so far
  uint32_t device_fences = 0;    // __threadfence so far
  Touch fenced_at;               // the last of them
  uint32_t touch = 0;            // the number of its last touch_now(), as memory.cc has it
  // Copies and products under way, most of them in groups; without `sends` there are none.
  bool sends = false;
  std::vector<AsyncCopy> open;
  std::deque<std::vector<AsyncCopy>> groups;
  std::vector<Box> open_stores;
  std::deque<std::vector<Box>> stores;
  std::vector<Product> open_products;
  std::deque<std::vector<Product>> products;

  int lane() const { return number % kLanes; }
  int warp() const { return number / kLanes; }  // in its cluster
  int warp_of_block() const;
};

struct Machine {
  std::array<Fiber, kMaxTogether> fibers;
  std::array<Fiber::State, kMaxTogether> states{};
  std::array<int, kMaxCluster> left{};  // threads of each block that have not ended
  Fiber* now = nullptr;                 // null outside of a launch
  int threads = 0;                      // of all blocks of the cluster
  int block_threads = 0;                // of each
  bool early = false;                   // it begins before the launches before it are done
  size_t shared_bytes = 0;
  alignas(1024) std::byte shared[kMaxCluster * kSharedStride];
  // Number of barriers of the cluster, of each block and of each warp so far: what lies before one is
  // ordered.
  uint32_t cluster_epoch = 0;
  std::array<uint32_t, kMaxCluster> block_epoch{};
  std::array<uint32_t, kMaxTogether / kLanes> warp_epoch{};
  // Lanes of each warp that wait for others of it, and those that have ended or do not exist.
  std::array<uint32_t, kMaxTogether / kLanes> warp_waiting{}, warp_ended{};
  std::vector<Clock> clocks;                    // of each thread, once there is an mbarrier
  std::map<uint32_t, MbarrierState> mbarriers;  // by offset in shared memory
  std::vector<Box> boxes;                       // late copies
  // Of each block: when each thread of other blocks was in its shared memory last.
  std::array<std::map<int, Touch>, kMaxCluster> reached;

  int blocks() const { return threads / block_threads; }  // of the cluster
  int rank_of(int thread) const { return thread / block_threads; }
  std::byte* shared_of(int rank) { return shared + static_cast<size_t>(rank) * kSharedStride; }
  // Whether [p, p + bytes) lies within the shared memory of that block.
  bool within(const void* p, size_t bytes, int rank) const {
    const auto at = static_cast<size_t>(static_cast<const std::byte*>(p) - shared);
    return at / kSharedStride == static_cast<size_t>(rank) && at % kSharedStride + bytes <= shared_bytes;
  }
  Fiber::State& state_of(const Fiber& f) { return states[static_cast<size_t>(f.number)]; }
  bool has_ended(int rank) const { return left[static_cast<size_t>(rank)] == 0; }
};
[[gnu::const]] Machine& machine();
inline int Fiber::warp_of_block() const { return number % machine().block_threads / kLanes; }

// An error, unless the fiber has waited for the launches before: what global memory holds is not known yet.
void check_waited(const Fiber& f, Place place = {"", 0});
// Keeps the first error; names the running block and thread.
void fail(const std::string& what, Place place = {"", 0});

// block.cc: gives the processor to the others until this fiber is ready again.
void yield_fiber();

// memory.cc
void begin_block();   // shared memory becomes NaN, nothing is known of it
void finish_block();  // counts what is left, looks at the guard of shared memory
void check_guards();  // of allocations
void finish_copies(Fiber& f, size_t left);
void watch_access(const void* p, size_t bytes, bool write, const void* instruction, bool streamed = false);
// The warp has met: what its lanes have done by the same instructions since they met last are requests.
void end_requests(int warp, uint32_t mask);
// Wavefronts of `n` accesses of `bytes` in shared memory.
void count_wavefronts(const uintptr_t* address, int n, size_t bytes);
bool tracing();
// Where the byte at `offset` of shared memory lies: 16-byte pieces change places within the swizzle's span.
inline uint32_t swizzled(uint32_t offset, uint32_t span) {
  return span == 0 ? offset : offset ^ (((offset >> 7) & (span / 16 - 1)) << 4);
}
// Whether something done at `touch` lies before a barrier that the thread of `later` has passed since.
bool behind_barrier(const Touch& touch, const Touch& later);
// A byte touched so is ordered before what the fiber does now.
bool ordered(const Touch& before, const Fiber& now);
bool ordered(const Touch& before, const Touch& now);  // touch_now() of a fiber
Touch touch_now(const Fiber& f);
// The running thread reaches into the shared memory of that block.
void reach(int rank, Place place);
// The thread that touched it has passed a proxy fence since.
bool fenced(const Touch& before);
// Bytes of shared memory that a box copy of the running thread reads, or will write as `by`.
void watch_box(uint32_t offset, size_t bytes, bool write, const Touch& by, Place place);
void watch_mbarrier(const void* p);

// global.cc: races in global memory between blocks of a launch.
void begin_global();
void begin_global_block();
void watch_global(const void* p, size_t bytes, bool write, const Fiber& f);

// l2.cc: what all multiprocessors share, Options::l2_bytes of it, with exact LRU over lines of 128 bytes in
// sectors of 32; lines whose last access was streamed leave before the others. A launch finds it empty.
// Blocks that run side by side take turns, access by access. Sectors written in part count as whole.
void begin_l2(int threads, size_t shared_bytes, unsigned cluster);
bool has_l2();
void l2_access(uintptr_t sector, bool write, bool streamed = false);  // of the running block, as they come
void end_l2_block();
void end_l2();

// bulk.cc
void begin_bulk();
void finish_bulk();
bool phase_has_ended(const Fiber& f);
bool deliver_box();  // false: none is on its way
// Threads [first, first + count), of one warp those of `mask`, have met at a barrier.
void meet_clocks(int first, int count, uint32_t mask);

// wgmma.cc: all warps of a group did the same products, once the block has ended.
void finish_wgmma();

inline float e4m3_value(uint32_t code) {
  const uint32_t rest = code & 0x7fu;
  if (rest == 0x7fu) return NAN;
  const float size = std::bit_cast<float>(rest << 20) * 0x1p120f;  // exponents of 4 bits, of which 7 is 0
  return (code & 0x80u) != 0 ? -size : size;
}

// warp.cc: computes `out` of every lane of the mask.
void complete(WarpOperation operation, Fiber* lanes, uint32_t mask);

}  // namespace oar::cuda::emulation
