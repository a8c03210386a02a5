// CUDA's execution model on the CPU, so that the very sources of kernels/cuda run and are checked where there
// is no GPU. device.h includes this when the compiler is not nvcc.
//
// A block's threads are fibers of one OS thread, and blocks run one after the other. A fiber runs until it
// must meet others: the lanes of its warp (shuffles, ldmatrix, mma) or its block (__syncthreads). Whoever
// comes last computes the result for all. What a GPU leaves undefined is made as unkind as possible:
//   - shared memory and targets of asynchronous copies hold NaN until they are written or waited for, fresh
//     device memory too;
//   - threads run in ascending, descending or shuffled order, asynchronous copies early or late;
//   - an mbarrier whose phase never ends is an error, not a hang;
//   - barriers and warp operations reached from different lines, or by some threads only, are errors;
//   - so is global memory before a thread has waited for the launches before. A thread that never waits is an
//     error as well: the launches behind wait for this one alone;
//   - blocks run in these orders too, those of a cluster together: none may end while others may still be in
//     its shared memory;
//   - bytes around each allocation are watched, and what lies between allocations is no memory: they are a
//     MiB apart, and addresses are given again only after all others.
// Kernels compiled with -fsanitize=thread, and linked without it, show every access: races in shared memory,
// races of blocks in global memory, accesses outside of an allocation, 32-byte sectors per request of a warp,
// bank conflicts; and bytes that a bulk copy may not see, as no proxy fence lies between.
//
// What it cannot find: timing, the rounding of real tensor cores.
// One launch at a time; the emulated runtime (runtime.cc) holds a lock.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>

#include "kernels/cuda/occupancy.h"

#undef __shared__
#undef __launch_bounds__
#undef __global__
#undef __device__
// No static shared memory: it would be one object for all blocks, and nobody would watch it.
#define __shared__ static_assert(false, "take() shared memory from a SharedMemory");
#define __launch_bounds__(...)
#define __global__
#define __device__

namespace oar::cuda::emulation {

// ---- for tests ----

enum class Order { kAscending, kDescending, kShuffled };
struct Options {
  Order order = Order::kAscending;  // of threads, and of blocks
  uint32_t seed = 1;                // of kShuffled
  bool late_copies = true;          // an asynchronous copy happens when it is waited for; false: at once
  // Registers of a thread of the kernels to come. Not 0, and traced: requests are counted, and an L2 between
  // them and memory is modelled, over as many blocks side by side as multiprocessors have room for.
  int registers = 0;
  size_t l2_bytes = size_t{40} << 20;
  int multiprocessors = kMultiprocessors;  // (occupancy.h)
};
Options& options();

// Of all launches since the last reset. Requests, sectors and wavefronts only beside an L2
// (Options::registers).
struct Counters {
  uint64_t launches = 0, blocks = 0, barriers = 0, warp_operations = 0, mma = 0;
  // A request is one access of a warp; ideal sectors would be those of its distinct bytes side by side.
  uint64_t load_requests = 0, load_sectors = 0, load_ideal = 0, load_bytes = 0;
  uint64_t store_requests = 0, store_sectors = 0, store_ideal = 0, store_bytes = 0;
  // Wavefronts of shared memory: one for every 32 words, and one more for each further word of a bank.
  uint64_t shared_wavefronts = 0, shared_ideal = 0;
  uint64_t box_bytes = 0;  // of boxes of tensors, both ways
  // Bytes that a modelled L2 did not have, and those written once they have left it (Options::registers).
  uint64_t memory_read = 0, memory_written = 0;
};
Counters& counters();

// The first thing that went wrong since the last call, with place, block and thread; empty: nothing.
std::string take_error();

// Device memory, 256-byte aligned, filled with NaN; null when `bytes` is beyond the device's. release() is
// false for what is no allocation.
void* device_allocate(size_t bytes);
bool device_release(void* p);
uint64_t device_bytes();  // allocated now
// Whether [p, p + bytes) lies within one allocation.
bool device_holds(const void* p, uint64_t bytes);

// ---- for device.h ----

struct Place {
  const char* file;
  int line;
  static constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

struct Thread {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
};
const Thread& current_thread();  // of the fiber that runs

void* shared_memory();
// A copy of `bytes` whose traced side is `place`.
// `streamed`: as streamed.h has it.
void copy_traced(void* to, const void* from, size_t bytes, const void* place, bool write,
                 bool streamed = false);
void copy_async(void* shared, const void* global, int bytes);  // global null: zeros
void copy_async_commit();
void copy_async_wait(int left);

void wait_for_launches();
void device_fence();
uint32_t atomic_increment(uint32_t* p, uint32_t most, Place place);
void wait_for_count(const uint32_t* p, uint32_t count, Place place);
void block_barrier(Place place);
void warp_barrier(uint32_t mask, Place place);
uint64_t shuffle(uint32_t mask, uint64_t bits, int from_lane, Place place);
uint32_t ballot(uint32_t mask, bool vote, Place place);
void ldmatrix_x4(uint32_t (&r)[4], const void* row, bool transpose, Place place);
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place);
void mma_s8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place);
void mma_e4m3(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place);
int lane_of_current_thread();

// What copies of boxes know of a tensor of 2 or 3 dimensions; the fastest comes first.
struct alignas(64) TensorMap {
  const std::byte* base;
  int rank;
  uint32_t element_bytes;
  uint64_t size[3];
  uint64_t stride[2];  // bytes, of the second and third dimension
  uint32_t box[3];
  uint32_t swizzle;  // its span in bytes: 0, 32, 64 or 128
};
void mbarrier_init(void* p, int arrivals);
void mbarrier_arrive(void* p, uint32_t bytes, Place place);
// `of_cluster`: what threads of other blocks wrote before they arrived is seen behind it.
void mbarrier_wait(void* p, uint32_t parity, bool of_cluster, Place place);
void fence_proxy_async();
void fence_mbarrier_init();
// `blocks`: a bit for each of the cluster that gets it; 0: this one alone.
void copy_box(void* shared, const TensorMap& map, int rank, std::array<int, 3> first, void* mbarrier,
              uint32_t blocks, bool streamed, Place place);
int cluster_rank();    // of the block in its cluster
int cluster_blocks();  // in it
void* cluster_map(void* shared, int rank, Place place);
void cluster_barrier(Place place);
void store_box(const TensorMap& map, int rank, std::array<int, 3> first, const void* shared, Place place);
void store_box_commit();
void store_box_wait(int left);
enum class WgmmaType { kBf16, kE4m3, kS8 };
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int left);
// d (64 x columns): columns / 2 words of a thread; columns: 64 or 128.
void wgmma(WgmmaType type, int columns, void* d, uint64_t a, uint64_t b, Place place);

// Runs `thread` for every thread of the grid, now or when the stream's capture is replayed. A cudaError_t.
// Writes down which kernel is launched, where OAR_CUDA_EMULATED asks for that (runtime.h).
void tell_kernel(const void* kernel);
// `early`: while launches before it are not done, so its threads must wait for these. `cluster`: so many
// blocks side by side along x run together.
int launch(void* stream, dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> thread,
           bool early = false, unsigned cluster = 1);
// The same at once, by the caller's thread; take_error() tells what went wrong.
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread,
              bool early = false, unsigned cluster = 1);

template <class T>
T shuffle_value(uint32_t mask, T value, int from_lane, Place place) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = shuffle(mask, bits, from_lane, place);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace oar::cuda::emulation

// ---- CUDA's own names ----

#define threadIdx (::oar::cuda::emulation::current_thread().thread)
#define blockIdx (::oar::cuda::emulation::current_thread().block)
#define blockDim (::oar::cuda::emulation::current_thread().block_dim)
#define gridDim (::oar::cuda::emulation::current_thread().grid_dim)
#define OAR_EMULATED_PLACE ::oar::cuda::emulation::Place place = ::oar::cuda::emulation::Place::here()

inline void __syncthreads(OAR_EMULATED_PLACE) { ::oar::cuda::emulation::block_barrier(place); }
inline void __syncwarp(uint32_t mask = 0xffffffffu, OAR_EMULATED_PLACE) {
  ::oar::cuda::emulation::warp_barrier(mask, place);
}
inline void __threadfence() { ::oar::cuda::emulation::device_fence(); }
inline uint32_t atomicInc(uint32_t* p, uint32_t most, OAR_EMULATED_PLACE) {
  return ::oar::cuda::emulation::atomic_increment(p, most, place);
}
template <class T>
T __shfl_sync(uint32_t mask, T value, int lane, int = 32, OAR_EMULATED_PLACE) {
  return ::oar::cuda::emulation::shuffle_value(mask, value, lane % 32, place);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes, int = 32, OAR_EMULATED_PLACE) {
  const int from = ::oar::cuda::emulation::lane_of_current_thread() ^ lanes;
  return ::oar::cuda::emulation::shuffle_value(mask, value, from % 32, place);
}
inline uint32_t __ballot_sync(uint32_t mask, int vote, OAR_EMULATED_PLACE) {
  return ::oar::cuda::emulation::ballot(mask, vote != 0, place);
}
inline int __popc(uint32_t bits) { return std::popcount(bits); }
inline int __ffs(uint32_t bits) { return bits == 0 ? 0 : std::countr_zero(bits) + 1; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
using std::max;
using std::min;
