// More of device.h's vocabulary, for sm_90a: mbarriers, bulk copies of boxes of tensors (TMA) and the fence
// between memory's two proxies. A box copy reads and writes shared memory through the asynchronous proxy;
// threads' own loads and stores go through the generic one.
#pragma once

#include "kernels/cuda/device.h"

#if defined(__CUDACC__)
#include <cuda.h>
#define OAR_GRID_CONSTANT const __grid_constant__
#else
#define OAR_GRID_CONSTANT const
#endif

namespace oar::cuda {

// What tensor_map.h's make_tensor_map() makes; a kernel takes it by value, as OAR_GRID_CONSTANT.
#if defined(__CUDACC__)
using TensorMap = CUtensorMap;
#else
using TensorMap = emulation::TensorMap;
#endif

// ---- mbarriers ----

// In shared memory. Its phase ends when all arrivals of it have come and all bytes that it expects. Phases
// count 0, 1, 2, ...; a phase's parity is its lowest bit.
struct Mbarrier {
  uint64_t word;
};

// By one thread; then fence_proxy_async() and a barrier of the block before anybody uses it.
OAR_DEVICE void mbarrier_init(Mbarrier* b, int arrivals) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
#else
  emulation::mbarrier_init(b, arrivals);
#endif
}
// Whoever waits for the phase sees what this thread wrote before.
OAR_DEVICE void mbarrier_arrive(Mbarrier* b OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
#else
  emulation::mbarrier_arrive(b, 0, place);
#endif
}
// Arrives, and the phase ends no earlier than when `bytes` more of copies are there.
OAR_DEVICE void mbarrier_arrive_expect(Mbarrier* b, uint32_t bytes OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
#else
  emulation::mbarrier_arrive(b, bytes, place);
#endif
}
// Waits until the present phase is not of this parity: until a phase of this parity has ended.
OAR_DEVICE void mbarrier_wait(Mbarrier* b, uint32_t parity OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
#else
  emulation::mbarrier_wait(b, parity, false, place);
#endif
}

// What this thread wrote to shared memory before, box copies after it see: those of others too, once a
// barrier lies between.
OAR_DEVICE void fence_proxy_async() {
#if defined(__CUDACC__)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  emulation::fence_proxy_async();
#endif
}

// ---- boxes of tensors ----

// What leaves L2 first: of copies whose bytes nobody reads again soon (streamed.h).
#if defined(__CUDACC__)
OAR_DEVICE uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
#endif

// One thread copies the box whose first element is (x, y) or (x, y, z), x the fastest dimension, into shared
// memory while it goes on; what lies outside of the tensor becomes 0. `b` counts all bytes of the box. A box
// begins at a multiple of 128 bytes, a swizzled one at a multiple of 8 times its swizzle. `streamed`: as of
// streamed.h.
OAR_DEVICE void copy_box(void* shared, const TensorMap* map, int x, int y, Mbarrier* b,
                         bool streamed = false OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  if (streamed) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(shared_address(b)), "l"(evict_first())
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(b))
      : "memory");
#else
  emulation::copy_box(shared, *map, 2, {x, y, 0}, b, 0, streamed, place);
#endif
}
OAR_DEVICE void copy_box(void* shared, const TensorMap* map, int x, int y, int z, Mbarrier* b,
                         bool streamed = false OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  if (streamed) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(b)), "l"(evict_first())
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4}], [%5];" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(b))
      : "memory");
#else
  emulation::copy_box(shared, *map, 3, {x, y, z}, b, 0, streamed, place);
#endif
}

// The way back; what lies outside of the tensor is not written.
OAR_DEVICE void store_box(const TensorMap* map, int x, int y, const void* shared OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(x), "r"(y), "r"(shared_address(shared))
               : "memory");
#else
  emulation::store_box(*map, 2, {x, y, 0}, shared, place);
#endif
}
OAR_DEVICE void store_box(const TensorMap* map, int x, int y, int z, const void* shared OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
      "r"(x), "r"(y), "r"(z), "r"(shared_address(shared))
      : "memory");
#else
  emulation::store_box(*map, 3, {x, y, z}, shared, place);
#endif
}
// Makes a group of this thread's stores of boxes since the last call.
OAR_DEVICE void store_box_commit() {
#if defined(__CUDACC__)
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
  emulation::store_box_commit();
#endif
}
// Waits until at most kLeft of this thread's groups are under way; the others have been written.
template <int kLeft>
OAR_DEVICE void store_box_wait() {
#if defined(__CUDACC__)
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kLeft) : "memory");
#else
  emulation::store_box_wait(kLeft);
#endif
}

// ---- clusters: blocks of a launch that run together and reach each other's shared memory (launch_clusters)
// ----

// The block's place in its cluster, which lies along x.
OAR_DEVICE int cluster_rank() {
#if defined(__CUDACC__)
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return emulation::cluster_rank();
#endif
}
// Of all threads of all blocks: what any wrote before, all see behind it. A block must not end while others
// may still reach into its memory, so it comes last as well.
OAR_DEVICE void cluster_sync(OAR_PLACE_ALONE) {
#if defined(__CUDACC__)
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  emulation::cluster_barrier(place);
#endif
}
// Where the block of that rank has what this one has at `shared`.
template <class T>
OAR_DEVICE T* cluster_map(T* shared, int rank OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
  return there;
#else
  return static_cast<T*>(emulation::cluster_map(shared, rank, place));
#endif
}

// Behind mbarrier_init() and in front of a cluster_sync(): then other blocks may use the mbarrier.
OAR_DEVICE void fence_mbarrier_init() {
#if defined(__CUDACC__)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
  emulation::fence_mbarrier_init();
#endif
}
// At the mbarrier that the block of that rank has where this one has `b`.
OAR_DEVICE void mbarrier_arrive_at(Mbarrier* b, int rank OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(b)),
      "r"(rank)
      : "memory");
#else
  emulation::mbarrier_arrive(emulation::cluster_map(b, rank, place), 0, place);
#endif
}
// mbarrier_wait() where threads of other blocks arrive.
OAR_DEVICE void mbarrier_wait_cluster(Mbarrier* b, uint32_t parity OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], "
      "%1;\n"
      "@!done bra again;\n}" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
#else
  emulation::mbarrier_wait(b, parity, true, place);
#endif
}

// copy_box() to all blocks whose bits are set, each at the addresses that `shared` and `b` have here: memory
// is read once.
OAR_DEVICE void copy_box_to_all(void* shared, const TensorMap* map, int x, int y, Mbarrier* b,
                                uint16_t blocks OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(b)), "h"(blocks)
      : "memory");
#else
  emulation::copy_box(shared, *map, 2, {x, y, 0}, b, blocks, false, place);
#endif
}

}  // namespace oar::cuda
