// The vocabulary that kernels/cuda is written in: a thin layer over CUDA that compiles with nvcc (inline PTX)
// and, for emulation/, with an ordinary C++ compiler. What a kernel does beside plain arithmetic it says with
// these words. So the very same source runs in tests on machines without a GPU.
//
// Fragments of matrix products lie in registers as the PTX manual draws them
// (https://docs.nvidia.com/cuda/parallel-thread-execution, "Matrix Fragments for mma"); below, g = lane / 4
// and t = lane % 4. What sm_90a has beside: hopper.h, wgmma.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#define OAR_DEVICE __device__ __forceinline__
#define OAR_PLACE_PARAMETER
#define OAR_PLACE_ALONE
#else
#include "kernels/cuda/emulation/emulation.h"
#define OAR_DEVICE inline
#define OAR_PLACE_ALONE ::oar::cuda::emulation::Place place = ::oar::cuda::emulation::Place::here()
#define OAR_PLACE_PARAMETER , OAR_PLACE_ALONE
#endif

namespace oar::cuda {

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

// ---- memory ----

// The block's shared memory, given out in order. The launch says how many bytes there are in all; each piece
// takes a multiple of 128.
class SharedMemory {
 public:
  template <class T>
  OAR_DEVICE T* take(int count) {
#if defined(__CUDACC__)
    extern __shared__ __align__(1024) unsigned char oar_shared[];
    unsigned char* base = oar_shared;
#else
    auto* base = static_cast<unsigned char*>(emulation::shared_memory());
#endif
    T* piece = reinterpret_cast<T*>(base + used_);
    used_ += (count * static_cast<uint32_t>(sizeof(T)) + 127u) / 128u * 128u;
    return piece;
  }

 private:
  uint32_t used_ = 0;
};

// One access of sizeof(T) bytes, aligned so. What must be one instruction is written with these: the emulator
// counts requests by them, and a compiler may not split them.
template <class T>
OAR_DEVICE T load(const T* p) {
#if defined(__CUDACC__)
  return *p;
#else
  T value;
  emulation::copy_traced(&value, p, sizeof value, p, false);
  return value;
#endif
}
template <class T>
OAR_DEVICE void store(T* p, T value) {
#if defined(__CUDACC__)
  *p = value;
#else
  emulation::copy_traced(p, &value, sizeof value, p, true);
#endif
}

// 16 bytes of global memory that nobody writes meanwhile and nobody reads again.
OAR_DEVICE uint4 load_once(const void* p) {
#if defined(__CUDACC__)
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#else
  return load(static_cast<const uint4*>(p));
#endif
}

// 16 bytes to global memory in one instruction, whatever the compiler does with what was computed before:
// where branches end in a store it makes four of one.
OAR_DEVICE void store_wide(float* p, float4 v) {
#if defined(__CUDACC__)
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
#else
  store(reinterpret_cast<float4*>(p), v);
#endif
}

#if defined(__CUDACC__)
OAR_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
#endif

// 16 bytes from global to shared memory while the thread goes on; where `valid` is false zeros are written
// and nothing is read. Both addresses are multiples of 16.
OAR_DEVICE void copy_async16(void* shared, const void* global, bool valid = true) {
#if defined(__CUDACC__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
#else
  emulation::copy_async(shared, valid ? global : nullptr, 16);
#endif
}
// Makes a group of this thread's copies since the last call.
OAR_DEVICE void copy_async_commit() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulation::copy_async_commit();
#endif
}
// Waits until at most kLeft of this thread's groups are under way. Other threads see them behind a barrier.
template <int kLeft>
OAR_DEVICE void copy_async_wait() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#else
  emulation::copy_async_wait(kLeft);
#endif
}

// ---- launches and blocks ----

// The first words of every kernel: a launch begins while the one before it in its stream ends, to be there
// when that is done. So nobody looks at global memory before this. The launch behind may begin then, too.
OAR_DEVICE void wait_for_launches() {
#if !defined(__CUDACC__)
  emulation::wait_for_launches();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until a counter of other blocks has come to `count`. A fence behind it shows what they did before theirs.
OAR_DEVICE void wait_for_count(const uint32_t* counter, uint32_t count OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  uint32_t seen;
  do {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < count);
#else
  emulation::wait_for_count(counter, count, place);
#endif
}

// ---- warps ----

OAR_DEVICE int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
OAR_DEVICE int warp() { return static_cast<int>(threadIdx.x) / kWarp; }

// The same bits in every lane: the order of additions is fixed.
OAR_DEVICE float warp_sum(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
OAR_DEVICE float warp_max(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  return x;
}

// Two floats as bf16, the first in the low half; rounded to nearest even.
OAR_DEVICE uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
OAR_DEVICE float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
OAR_DEVICE float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// ---- matrix products ----

// Four 8 x 8 matrices of 16-bit elements in shared memory: lanes 8 i .. 8 i + 7 give the addresses of the
// rows of matrix i, multiples of 16. Register i holds elements (g, 2 t) and (g, 2 t + 1) of it, or of its
// transpose.
template <bool kTranspose>
OAR_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* row OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
#else
  emulation::ldmatrix_x4(r, row, kTranspose, place);
#endif
}

// c (16 x 8) += a (16 x k) b (k x 8). a[0]: row g; a[1]: row g + 8; a[2], a[3]: the same rows, second half of
// k. b[0], b[1]: column g, first and second half of k. c[0], c[1]: row g, columns 2 t and 2 t + 1; c[2],
// c[3]: row g + 8. A register's elements: k = 2 t + {0, 1} (16 bits), 4 t + {0, 1, 2, 3} (8 bits).
OAR_DEVICE void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulation::mma_bf16(c, a, b, place);
#endif
}
OAR_DEVICE void mma_s8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulation::mma_s8(c, a, b, place);
#endif
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
OAR_DEVICE void mma_e4m3(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulation::mma_e4m3(c, a, b, place);
#endif
}
#endif

// ---- launch ----

struct LaunchShape {
  dim3 grid, block;
  size_t shared;
};
// While a thread has a list here its launches are put into it instead of being done (cost.h). Null: they are
// done.
inline thread_local std::vector<LaunchShape>* foreseen_launches = nullptr;

// A cudaError_t. `shared` bytes of shared memory per block, as SharedMemory gives them out. It begins early
// (wait_for_launches). `cluster` blocks side by side along x run together (hopper.h).
#if defined(__CUDACC__)
template <class... P, class... A>
int launch_clusters(void (*kernel)(P...), unsigned cluster, dim3 grid, dim3 block, size_t shared,
                    void* stream, A... args) {
  if (foreseen_launches != nullptr) return foreseen_launches->push_back({grid, block, shared}), 0;
  constexpr size_t kWithoutAsking = 48 << 10;
  if (shared > kWithoutAsking) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
  return error != cudaSuccess ? error : cudaGetLastError();
}
#else
template <class... P, class... A>
int launch_clusters(void (*kernel)(P...), unsigned cluster, dim3 grid, dim3 block, size_t shared,
                    void* stream, A... args) {
  if (foreseen_launches != nullptr) return foreseen_launches->push_back({grid, block, shared}), 0;
  emulation::tell_kernel(reinterpret_cast<const void*>(kernel));
  return emulation::launch(
      stream, grid, block, shared, [=] { kernel(static_cast<P>(args)...); }, true, cluster);
}
#endif
template <class... P, class... A>
int launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, void* stream, A... args) {
  return launch_clusters(kernel, 1, grid, block, shared, stream, args...);
}

}  // namespace oar::cuda
