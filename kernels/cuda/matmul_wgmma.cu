#include "kernels/cuda/matmul_wgmma.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/narrow.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.h"
#include "kernels/cuda/wgmma_tile.h"

namespace oar::cuda {
namespace {

constexpr int kRows = kGroupRows, kOutputs = kGroupOutputs;
constexpr int kDepth = 64;  // k of a box: 128 bytes, its swizzle
constexpr int kStages = 4;
constexpr int kGroups = 2, kGroupThreads = 4 * kWarp;
constexpr int kThreads = kGroups * kGroupThreads + kWarp;  // the last warp copies
constexpr uint32_t kSwizzle = 128;
constexpr int kBoxElements = kRows * kDepth;
static_assert(kRows == kOutputs, "boxes of both are equal");
constexpr size_t kShared =
    2 * kStages * kBoxElements * sizeof(uint16_t) + 2 * 128;  // and barriers, in pieces of 128

__global__ void __launch_bounds__(kThreads, 1)
    wgmma_product(OAR_GRID_CONSTANT TensorMap x, OAR_GRID_CONSTANT TensorMap w, WarpGroupProduct p) {
  wait_for_launches();
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  SharedMemory shared;
  uint16_t* const xs = shared.take<uint16_t>(kStages * kBoxElements);
  uint16_t* const ws = shared.take<uint16_t>(kStages * kBoxElements);
  Mbarrier* const full = shared.take<Mbarrier>(kStages);   // boxes have come
  Mbarrier* const empty = shared.take<Mbarrier>(kStages);  // and have been read
  const GridPlace at = place_of(blockIdx.x, p.across, p.down, p.band);
  const int row = static_cast<int>(at.y) * kRows, output = static_cast<int>(at.x) * kOutputs;
  const int steps = static_cast<int>((p.K + kDepth - 1) / kDepth);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + s, 1);
      mbarrier_init(empty + s, kGroups * 4);
    }
    fence_proxy_async();
  }
  __syncthreads();

  if (warp() == kGroups * 4) {
    if (lane() != 0) return;
    for (int i = 0; i < steps; ++i) {
      const int s = i % kStages;
      if (i >= kStages) mbarrier_wait(empty + s, static_cast<uint32_t>(i / kStages - 1) & 1);
      mbarrier_arrive_expect(full + s, 2 * kBoxElements * sizeof(uint16_t));
      copy_box(xs + s * kBoxElements, &x, i * kDepth, row, full + s);
      copy_box(ws + s * kBoxElements, &w, i * kDepth, output, full + s, p.streams_weights);
    }
    return;
  }

  const int group = warp() / 4;
  float sums[kOutputs / 2] = {};
  for (int i = 0; i < steps; ++i) {
    const int s = i % kStages;
    mbarrier_wait(full + s, static_cast<uint32_t>(i / kStages) & 1);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      wgmma_bf16(sums, wgmma_operand(xs + s * kBoxElements + group * 64 * kDepth, 32 * k, kSwizzle),
                 wgmma_operand(ws + s * kBoxElements, 32 * k, kSwizzle));
    }
    wgmma_commit();
    wgmma_wait<1>();
    // The products before these have been done, for all lanes, as a warp waits as one: their boxes may be
    // written again.
    if (i > 0 && lane() == 0) mbarrier_arrive(empty + (i - 1) % kStages);
  }
  wgmma_wait<0>();

  finish_tile(p, row, output, sums);
#endif
}

bool takes(const MatmulArgs& a, const MatmulSegment& s) {
  return a.K > 0 && a.K % 8 == 0 && reinterpret_cast<uintptr_t>(s.w) % 16 == 0;
}

// rows x K of bf16, in boxes of 128 rows.
CudaStatus boxes_of(TensorMap& map, const void* base, int64_t rows, int64_t K) {
  TensorBoxes b;
  b.base = base;
  b.size[0] = static_cast<uint64_t>(K);
  b.size[1] = static_cast<uint64_t>(rows);
  b.stride[0] = static_cast<uint64_t>(K) * sizeof(uint16_t);
  b.box[0] = kDepth;
  b.box[1] = kRows;
  b.swizzle = kSwizzle;
  return make_tensor_map(map, b);
}

CudaStatus multiply(const MatmulArgs& a, const MatmulSegment& s, const void* rows, Stream stream) {
  TensorMap x, w;
  if (const CudaStatus failed = boxes_of(x, rows, a.T, a.K); !failed.ok()) return failed;
  if (const CudaStatus failed = boxes_of(w, s.w, s.n, a.K); !failed.ok()) return failed;
  const WarpGroupProduct p = warp_group_product(a, s, sizeof(uint16_t));
  return {launch(wgmma_product, p.across * p.down, kThreads, kShared, stream, x, w, p)};
}

template <class Own>
LibraryStatus run_all(const MatmulArgs& a, const Gate& gate, void* scratch, Stream stream, const Own& own) {
  return run_weights(
      a, [&](const MatmulSegment& s) { return takes(a, s); },
      [&] { return narrow_rows(scratch, a, gate, stream); },
      [&](const MatmulSegment& s) { return multiply(a, s, scratch, stream); }, own);
}

}  // namespace

uint64_t WarpGroupProducts::scratch(const MatmulArgs& a) {
  bool any = false;
  for (int64_t i = 0; i < a.num_segments; ++i) any = any || takes(a, a.segments[i]);
  return any && a.T > 0 ? narrow_bytes(a) : 0;
}

LibraryStatus WarpGroupProducts::run(const MatmulArgs& a, void* scratch, Stream stream,
                                     const RowSteps* steps) {
  return run_all(a, {nullptr, 0, UnaryOp::kSilu, steps}, scratch, stream,
                 [&](const MatmulArgs& one) { return run_matmul(one, launch_bf16, stream); });
}

LibraryStatus WarpGroupProducts::run(const GatedMatmulArgs& a, void* scratch, Stream stream) {
  return run_all(a.matmul, {a.gate, a.ld_gate, a.act}, scratch, stream, [&](const MatmulArgs& one) {
    GatedMatmulArgs its = a;
    its.matmul = one;
    return run_gated(its, launch_bf16, stream);
  });
}

}  // namespace oar::cuda
