#include "kernels/cuda/matmul_wgmma_codes.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/narrow.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.h"
#include "kernels/cuda/wgmma_tile.h"

namespace oar::cuda {
namespace {

constexpr int kRows = kGroupRows, kOutputs = kGroupOutputs;
constexpr int kDepth = kNarrowGroup;  // k of a box: 128 bytes, its swizzle
constexpr int kStages = 4;
constexpr int kGroups = 2, kGroupThreads = 4 * kWarp;
constexpr int kThreads = kGroups * kGroupThreads + kWarp;  // the last warp copies
constexpr uint32_t kSwizzle = 128;
constexpr int kBoxBytes = kRows * kDepth, kScaleBox = kRows;  // of scales: floats
static_assert(kRows == kOutputs, "boxes of both are equal");
constexpr size_t kShared = 2 * kStages * (kBoxBytes + kScaleBox * sizeof(float)) + 2 * 128;

// Scales of weights: of each 128 k they come in boxes, of rows they lie behind a panel's codes.
struct CodeScales {
  const char* of_rows;
  int64_t panel_bytes;
};

template <bool kOfGroups>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_product_of_codes(OAR_GRID_CONSTANT TensorMap x, OAR_GRID_CONSTANT TensorMap x_scales,
                           OAR_GRID_CONSTANT TensorMap w, OAR_GRID_CONSTANT TensorMap w_scales,
                           WarpGroupProduct p, CodeScales scales) {
  wait_for_launches();
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  SharedMemory shared;
  unsigned char* const xs = shared.take<unsigned char>(kStages * kBoxBytes);
  unsigned char* const ws = shared.take<unsigned char>(kStages * kBoxBytes);
  float* const row_scales = shared.take<float>(kStages * kScaleBox);
  [[maybe_unused]] float* const group_scales = shared.take<float>(kStages * kScaleBox);
  Mbarrier* const full = shared.take<Mbarrier>(kStages);   // boxes have come
  Mbarrier* const empty = shared.take<Mbarrier>(kStages);  // and have been read
  const GridPlace at = place_of(blockIdx.x, p.across, p.down, p.band);
  const int row = static_cast<int>(at.y) * kRows, output = static_cast<int>(at.x) * kOutputs;
  const int steps = static_cast<int>(p.K / kDepth);
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
    constexpr uint32_t kBytes = 2 * kBoxBytes + (kOfGroups ? 2 : 1) * kScaleBox * sizeof(float);
    for (int i = 0; i < steps; ++i) {
      const int s = i % kStages;
      if (i >= kStages) mbarrier_wait(empty + s, static_cast<uint32_t>(i / kStages - 1) & 1);
      mbarrier_arrive_expect(full + s, kBytes);
      copy_box(xs + s * kBoxBytes, &x, i * kDepth, row, full + s);
      copy_box(ws + s * kBoxBytes, &w, i * kDepth, 0, output / kCodePanelRows, full + s, p.streams_weights);
      copy_box(row_scales + s * kScaleBox, &x_scales, row, i, full + s);
      if constexpr (kOfGroups)
        copy_box(group_scales + s * kScaleBox, &w_scales, 0, i, output / kCodePanelRows, full + s,
                 p.streams_weights);
    }
    return;
  }

  const int group = warp() / 4, g = lane() / 4, t = lane() % 4;
  float sums[kOutputs / 2] = {};
  for (int i = 0; i < steps; ++i) {
    const int s = i % kStages;
    float part[kOutputs / 2] = {};
    mbarrier_wait(full + s, static_cast<uint32_t>(i / kStages) & 1);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth / 32; ++k) {
      wgmma_e4m3(part, wgmma_operand(xs + s * kBoxBytes + group * 64 * kDepth, 32 * k, kSwizzle),
                 wgmma_operand(ws + s * kBoxBytes, 32 * k, kSwizzle));
    }
    wgmma_commit();
    const float* its = row_scales + s * kScaleBox + 16 * warp() + g;
    const float upper = its[0], lower = its[8];
    wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < kOutputs / 8; j += 2) {
      // Columns 2 t and 2 t + 1 of 8, then of the next 8: as a panel has its rows' scales.
      float4 of_w = make_float4(1.f, 1.f, 1.f, 1.f);
      if constexpr (kOfGroups) {
        of_w = load(
            reinterpret_cast<const float4*>(group_scales + s * kScaleBox + j / 2 * kCodePanelRows + 4 * t));
      }
      const float column[4] = {of_w.x, of_w.z, of_w.y, of_w.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float scale = (e / 2 % 2 == 0 ? upper : lower) * column[e / 4 * 2 + e % 2];
        sums[4 * j + e] = __fmaf_rn(part[4 * j + e], scale, sums[4 * j + e]);
      }
    }
    __syncwarp();  // all have read their scales
    if (lane() == 0) mbarrier_arrive(empty + s);
  }
  if constexpr (!kOfGroups) {
#pragma unroll
    for (int j = 0; j < kOutputs / 8; j += 2) {
      const int64_t n = output + 8 * j;
      float4 of_w = make_float4(0.f, 0.f, 0.f, 0.f);
      if (n < p.n) {
        of_w = load(
            reinterpret_cast<const float4*>(scales.of_rows + n / kCodePanelRows * scales.panel_bytes) + t);
      }
      const float column[4] = {of_w.x, of_w.z, of_w.y, of_w.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[4 * j + e] *= column[e / 4 * 2 + e % 2];
    }
  }
  finish_tile(p, row, output, sums);
#endif
}

constexpr std::string_view kOfChannels = "e4m3_channel", kOfGroupsOf128 = "e4m3_g128";

bool takes(const MatmulArgs& a, const MatmulSegment& s) {
  return packs(a.K) && reinterpret_cast<uintptr_t>(s.w) % 16 == 0;
}

CudaStatus multiply(std::string_view format, const MatmulArgs& a, const MatmulSegment& s,
                    const NarrowCodes& rows, Stream stream) {
  const auto K = static_cast<uint64_t>(a.K);
  const uint64_t panel = packed_bytes(format, kCodePanelRows, a.K),
                 panels = static_cast<uint64_t>((s.n + kCodePanelRows - 1) / kCodePanelRows);
  const auto map_of = [](TensorMap& map, const void* base, uint32_t element, std::array<uint64_t, 3> size,
                         std::array<uint64_t, 2> stride, std::array<uint32_t, 3> box, uint32_t swizzle) {
    TensorBoxes b;
    b.base = base;
    b.rank = size[2] > 0 ? 3 : 2;
    b.element_bytes = element;
    for (size_t d = 0; d < 3; ++d) b.size[d] = size[d], b.box[d] = box[d];
    for (size_t d = 0; d < 2; ++d) b.stride[d] = stride[d];
    b.swizzle = swizzle;
    return make_tensor_map(map, b);
  };
  constexpr uint32_t kPanel = kCodePanelRows, kPanels = kOutputs / kCodePanelRows;
  const auto* codes = static_cast<const char*>(s.w);
  const bool of_groups = format == kOfGroupsOf128;
  TensorMap x, x_scales, w, w_scales = {};
  CudaStatus made =
      map_of(x, rows.codes, 1, {K, static_cast<uint64_t>(a.T), 0}, {K, 0}, {kDepth, kRows, 1}, kSwizzle);
  if (made.ok()) {
    made = map_of(x_scales, rows.scales, 4, {static_cast<uint64_t>(rows.ld_scales), K / kDepth, 0},
                  {static_cast<uint64_t>(rows.ld_scales) * sizeof(float), 0}, {kRows, 1, 1}, 0);
  }
  if (made.ok())
    made = map_of(w, codes, 1, {K, kPanel, panels}, {K, panel}, {kDepth, kPanel, kPanels}, kSwizzle);
  if (made.ok() && of_groups) {
    made = map_of(w_scales, codes + K * kPanel, 4, {kPanel, K / kDepth, panels},
                  {kPanel * sizeof(float), panel}, {kPanel, 1, kPanels}, 0);
  }
  if (!made.ok()) return made;
  const WarpGroupProduct p = warp_group_product(a, s, 1);
  const CodeScales scales{codes + panel - kCodePanelRows * sizeof(float), static_cast<int64_t>(panel)};
  return {launch(of_groups ? wgmma_product_of_codes<true> : wgmma_product_of_codes<false>, p.across * p.down,
                 kThreads, kShared, stream, x, x_scales, w, w_scales, p, scales)};
}

template <class Own>
LibraryStatus run_all(std::string_view format, const MatmulArgs& a, const Gate& gate, void* scratch,
                      Stream stream, const Own& own) {
  const NarrowCodes rows = narrow_codes(a, scratch);
  return run_weights(
      a, [&](const MatmulSegment& s) { return takes(a, s); },
      [&] { return narrow_rows_to_codes(rows, a, gate, stream); },
      [&](const MatmulSegment& s) { return multiply(format, a, s, rows, stream); }, own);
}

}  // namespace

bool WarpGroupCodes::has(std::string_view format) {
  return format == kOfChannels || format == kOfGroupsOf128;
}

uint64_t WarpGroupCodes::scratch(const MatmulArgs& a) const {
  bool any = false;
  for (int64_t i = 0; i < a.num_segments; ++i) any = any || takes(a, a.segments[i]);
  return any && a.T > 0 ? narrow_codes_bytes(a) : 0;
}

LibraryStatus WarpGroupCodes::run(const MatmulArgs& a, void* scratch, Stream stream,
                                  const RowSteps* steps) const {
  const DeviceKernel* own = find_device_kernel(KernelFamily::kMatmul, format_);
  return run_all(format_, a, {nullptr, 0, UnaryOp::kSilu, steps}, scratch, stream,
                 [&](const MatmulArgs& one) { return own->launch(&one, nullptr, stream); });
}

LibraryStatus WarpGroupCodes::run(const GatedMatmulArgs& a, void* scratch, Stream stream) const {
  const DeviceKernel* own = find_device_kernel(KernelFamily::kGatedMatmul, format_);
  return run_all(format_, a.matmul, {a.gate, a.ld_gate, a.act}, scratch, stream, [&](const MatmulArgs& one) {
    GatedMatmulArgs its = a;
    its.matmul = one;
    return own->launch(&its, nullptr, stream);
  });
}

}  // namespace oar::cuda
