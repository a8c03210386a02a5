#include "kernels/cuda/matmul_wgmma.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/narrow.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.h"

namespace oar::cuda {
namespace {

constexpr int kRows = 128, kOutputs = 128;  // of a tile: 64 rows a warp group
constexpr int kDepth = 64;                  // k of a box: 128 bytes, its swizzle
constexpr int kStages = 4;
constexpr int kGroups = 2, kGroupThreads = 4 * kWarp;
constexpr int kThreads = kGroups * kGroupThreads + kWarp;  // the last warp copies
constexpr uint32_t kSwizzle = 128;
constexpr int kBoxElements = kRows * kDepth;
static_assert(kRows == kOutputs, "boxes of both are equal");
constexpr size_t kShared =
    2 * kStages * kBoxElements * sizeof(uint16_t) + 2 * 128;  // and barriers, in pieces of 128

// One weight. out, bias and residual begin at its first column.
struct WarpGroupProduct {
  float* out;
  const float *bias, *residual;  // or null
  int64_t T, n, K, ldo;
};

// Two columns of a row; `wide`: both are there and lie at a multiple of 8 bytes.
[[maybe_unused]] OAR_DEVICE void finish_pair(const WarpGroupProduct& p, int64_t row, int64_t n, float a,
                                             float b, bool wide) {
  const int64_t at = row * p.ldo + n;
  if (wide) {
    float2 sum = make_float2(a, b);
    if (p.bias != nullptr) {
      const float2 bias = load(reinterpret_cast<const float2*>(p.bias + n));
      sum = make_float2(sum.x + bias.x, sum.y + bias.y);
    }
    if (p.residual != nullptr) {
      const float2 residual = load(reinterpret_cast<const float2*>(p.residual + at));
      sum = make_float2(sum.x + residual.x, sum.y + residual.y);
    }
    store(reinterpret_cast<float2*>(p.out + at), sum);
    return;
  }
  const float sums[2] = {a, b};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (n + i >= p.n) break;
    float sum = sums[i];
    if (p.bias != nullptr) sum += p.bias[n + i];
    if (p.residual != nullptr) sum += p.residual[at + i];
    p.out[at + i] = sum;
  }
}

// Tiles of rows lie along x of the grid, those of outputs along y, so that blocks beside each other share
// weights.
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_product(OAR_GRID_CONSTANT TensorMap x, OAR_GRID_CONSTANT TensorMap w, WarpGroupProduct p,
                  bool wide) {
  wait_for_launches();
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  SharedMemory shared;
  uint16_t* const xs = shared.take<uint16_t>(kStages * kBoxElements);
  uint16_t* const ws = shared.take<uint16_t>(kStages * kBoxElements);
  Mbarrier* const full = shared.take<Mbarrier>(kStages);   // boxes have come
  Mbarrier* const empty = shared.take<Mbarrier>(kStages);  // and have been read
  const int row = static_cast<int>(blockIdx.x) * kRows, output = static_cast<int>(blockIdx.y) * kOutputs;
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
      copy_box(ws + s * kBoxElements, &w, i * kDepth, output, full + s);
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

  const int t = lane() % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t at = row + 16 * warp() + lane() / 4 + 8 * half;
    if (at >= p.T) continue;
#pragma unroll
    for (int j = 0; j < kOutputs / 8; ++j) {
      const int64_t n = output + 8 * j + 2 * t;
      if (n < p.n)
        finish_pair(p, at, n, sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1], wide && n + 1 < p.n);
    }
  }
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

LibraryStatus said(CudaStatus status, const char* what) {
  if (status.ok()) return {};
  return {status.code, std::string(what) + ": " + status.message()};
}

CudaStatus multiply(const MatmulArgs& a, const MatmulSegment& s, const void* rows, Stream stream) {
  if (s.n <= 0) return {};
  TensorMap x, w;
  if (const CudaStatus failed = boxes_of(x, rows, a.T, a.K); !failed.ok()) return failed;
  if (const CudaStatus failed = boxes_of(w, s.w, s.n, a.K); !failed.ok()) return failed;
  WarpGroupProduct p;
  p.out = a.out + s.out_col;
  p.bias = s.bias;
  p.residual = a.residual != nullptr ? a.residual + s.out_col : nullptr;
  p.T = a.T;
  p.n = s.n;
  p.K = a.K;
  p.ldo = a.ldo;
  const auto even = [](const float* at) { return reinterpret_cast<uintptr_t>(at) % sizeof(float2) == 0; };
  const bool wide = even(p.out) && even(p.bias) && even(p.residual) && a.ldo % 2 == 0;
  const dim3 grid(static_cast<unsigned>((a.T + kRows - 1) / kRows),
                  static_cast<unsigned>((s.n + kOutputs - 1) / kOutputs));
  return {launch(wgmma_product, grid, kThreads, kShared, stream, x, w, p, wide)};
}

template <class Own>
LibraryStatus run_all(const MatmulArgs& a, const Gate& gate, void* scratch, Stream stream, const Own& own) {
  if (a.T <= 0) return {};
  bool narrowed = false;
  for (int64_t i = 0; i < a.num_segments; ++i) {
    const MatmulSegment& s = a.segments[i];
    if (!takes(a, s)) {
      MatmulArgs one = a;
      one.segments = &s;
      one.num_segments = 1;
      if (LibraryStatus failed = said(own(one), "our other product"); !failed.ok()) return failed;
      continue;
    }
    if (!narrowed) {
      if (const int error = narrow_rows(scratch, a, gate, stream); error != 0)
        return said({error}, "rounding rows to bf16");
      narrowed = true;
    }
    if (LibraryStatus failed = said(multiply(a, s, scratch, stream), "a product of warp groups");
        !failed.ok())
      return failed;
  }
  return {};
}

}  // namespace

uint64_t WarpGroupProducts::scratch(const MatmulArgs& a) {
  bool any = false;
  for (int64_t i = 0; i < a.num_segments; ++i) any = any || takes(a, a.segments[i]);
  return any && a.T > 0 ? narrow_bytes(a) : 0;
}

LibraryStatus WarpGroupProducts::run(const MatmulArgs& a, void* scratch, Stream stream) {
  return run_all(a, {nullptr, 0, UnaryOp::kSilu}, scratch, stream,
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
