// What the parts of the emulator share: the fibers of the block that runs, and its shared memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/emulation/emulation.h"

namespace oar::cuda::emulation {

constexpr int kLanes = 32;
constexpr size_t kMaxThreads = 1024;
constexpr size_t kMaxSharedBytes = 227 << 10;  // of sm_90
constexpr size_t kGuardBytes = 256;            // watched around each allocation and behind shared memory
constexpr uint64_t kDeviceBytes = uint64_t{2} << 30;

enum class WarpOperation { kBarrier, kShuffle, kBallot, kLdmatrix, kMmaBf16, kMmaS8, kMmaE4m3 };

struct AsyncCopy {
  void* to;
  const void* from;  // null: zeros
  int bytes;
  bool done;  // at once, as options() say
};

struct Fiber : Thread {
  enum class State : uint8_t { kReady, kInWarp, kAtBarrier, kDone };
  void* stack_pointer = nullptr;
  std::byte* stack = nullptr;
  int number = 0;  // in its block
  State state = State::kDone;
  // Where and in what it meets others.
  Place place{"", 0};
  WarpOperation operation{};
  uint32_t mask = 0;
  int argument = 0;  // lane of a shuffle, transpose of ldmatrix
  alignas(16) std::byte in[64];
  alignas(16) std::byte out[16];
  std::vector<AsyncCopy> open;
  std::deque<std::vector<AsyncCopy>> groups;
  // Accesses by instruction since the warp met last: which lanes' accesses are one request.
  std::unordered_map<const void*, int> accesses;

  int lane() const { return number % kLanes; }
  int warp() const { return number / kLanes; }
};

struct Machine {
  std::array<Fiber, kMaxThreads> fibers;
  Fiber* now = nullptr;  // null outside of a launch
  int threads = 0;       // of the block
  size_t shared_bytes = 0;
  alignas(1024) std::byte shared[kMaxSharedBytes + kGuardBytes];
  // Number of barriers of the block and of each warp so far: what lies before one is ordered.
  uint32_t block_epoch = 0;
  std::array<uint32_t, kMaxThreads / kLanes> warp_epoch{}, warp_meetings{};
};
Machine& machine();

// Keeps the first error; names the running block and thread.
void fail(const std::string& what, Place place = {"", 0});

// block.cc: gives the processor to the others until this fiber is ready again.
void yield_fiber();

// memory.cc
void begin_block();   // shared memory becomes NaN, nothing is known of it
void finish_block();  // counts what is left, looks at guards
void finish_copies(Fiber& f, size_t left);
void watch_access(const void* p, size_t bytes, bool write, const void* instruction);
// Wavefronts of `n` accesses of `bytes` in shared memory.
void count_wavefronts(const uintptr_t* address, int n, size_t bytes);
bool tracing();

// warp.cc: computes `out` of every lane of the mask.
void complete(WarpOperation operation, Fiber* lanes, uint32_t mask);

}  // namespace oar::cuda::emulation
