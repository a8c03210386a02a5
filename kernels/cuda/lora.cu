#include "kernels/cuda/lora.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/device.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kRows = 8;  // of a block

// Four numbers from k on, 0 from K on.
template <bool kAligned>
OAR_DEVICE float4 four(const float* row, int64_t k, int64_t K) {
  if constexpr (kAligned) {
    return load(reinterpret_cast<const float4*>(row + k));
  } else {
    return make_float4(row[k], k + 1 < K ? row[k + 1] : 0.f, k + 2 < K ? row[k + 2] : 0.f,
                       k + 3 < K ? row[k + 3] : 0.f);
  }
}
OAR_DEVICE float bf16_at(const uint16_t* row, int64_t k, int64_t K) { return k < K ? low_bf16(row[k]) : 0.f; }
template <bool kAligned>
OAR_DEVICE float4 four(const uint16_t* row, int64_t k, int64_t K) {
  if constexpr (kAligned) {
    const uint2 w = load(reinterpret_cast<const uint2*>(row + k));
    return make_float4(low_bf16(w.x), high_bf16(w.x), low_bf16(w.y), high_bf16(w.y));
  } else {
    return make_float4(low_bf16(row[k]), bf16_at(row, k + 1, K), bf16_at(row, k + 2, K),
                       bf16_at(row, k + 3, K));
  }
}
OAR_DEVICE float one(const float* p, int64_t i) { return p[i]; }
OAR_DEVICE float one(const uint16_t* p, int64_t i) { return low_bf16(p[i]); }

// Rows [row, end) that lie side by side and have the adapter of the first.
OAR_DEVICE int end_of_run(const LoraArgs& a, int64_t first, int row, int rows) {
  const int32_t slot = a.index[first + row];
  int end = row + 1;
  while (end < rows && a.index[first + end] == slot) ++end;
  return end;
}
OAR_DEVICE int rows_of(const LoraArgs& a, int64_t first) {
  return a.T - first < kRows ? static_cast<int>(a.T - first) : kRows;
}

// low[t, r] = A[r] x[t]: a warp for each r.
template <class Number, bool kAligned>
__global__ void __launch_bounds__(kThreads) lora_down_kernel(LoraArgs a, float* low) {
  wait_for_launches();
  const int64_t first = int64_t{blockIdx.x} * kRows;
  const int r = static_cast<int>(blockIdx.y) * kWarps + warp(), rows = rows_of(a, first);
  for (int row = 0; row < rows;) {
    const int end = end_of_run(a, first, row, rows);
    const int32_t slot = a.index[first + row];
    if (slot >= 0 && r < a.ranks[slot]) {
      const Number* its = static_cast<const Number*>(a.a) + (slot * a.R + r) * a.K;
      float sums[kRows] = {};
      for (int64_t k = 4 * lane(); k < a.K; k += 4 * kWarp) {
        const float4 w = four<kAligned>(its, k, a.K);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (row + i >= end) break;
          const float4 x = four<kAligned>(a.x + (first + row + i) * a.ldx, k, a.K);
          sums[i] = __fmaf_rn(w.x, x.x, sums[i]);
          sums[i] = __fmaf_rn(w.y, x.y, sums[i]);
          sums[i] = __fmaf_rn(w.z, x.z, sums[i]);
          sums[i] = __fmaf_rn(w.w, x.w, sums[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + i >= end) break;
        const float sum = warp_sum(sums[i]);
        if (lane() == 0) low[(first + row + i) * a.R + r] = sum;
      }
    }
    row = end;
  }
}

// y[t, j] += sum over r of B[r, j] low[t, r]: a thread for each j.
template <class Number>
__global__ void __launch_bounds__(kThreads) lora_up_kernel(LoraArgs a, const float* low) {
  wait_for_launches();
  const int64_t first = int64_t{blockIdx.x} * kRows, j = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (j >= a.n) return;
  const int rows = rows_of(a, first);
  // The panel of column j (kernels/lora.h), and what lies between its ranks.
  const int in_panel = static_cast<int>(j % kLoraPanel);
  const int64_t panel = j - in_panel;
  const int width = a.n - panel < kLoraPanel ? static_cast<int>(a.n - panel) : static_cast<int>(kLoraPanel);
  for (int row = 0; row < rows;) {
    const int end = end_of_run(a, first, row, rows);
    const int32_t slot = a.index[first + row], rank = slot >= 0 ? a.ranks[slot] : 0;
    if (rank > 0) {
      const Number* its = static_cast<const Number*>(a.b) + (slot * a.n + panel) * a.R + in_panel;
      float sums[kRows] = {};
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + i < end) sums[i] = a.y[(first + row + i) * a.ldy + j];
      }
      for (int r = 0; r < rank; ++r, its += width) {
        const float w = one(its, 0);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (row + i < end) sums[i] = __fmaf_rn(w, low[(first + row + i) * a.R + r], sums[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + i < end) a.y[(first + row + i) * a.ldy + j] = sums[i];
      }
    }
    row = end;
  }
}

template <class Number>
int run(const LoraArgs& a, float* low, Stream stream) {
  const bool aligned = reinterpret_cast<uintptr_t>(a.x) % 16 == 0 && a.ldx % 4 == 0 && a.K % 4 == 0;
  const auto tiles = static_cast<unsigned>((a.T + kRows - 1) / kRows);
  const auto of = [&](int64_t n, int each) {
    return dim3(tiles, static_cast<unsigned>((n + each - 1) / each));
  };
  const int error = launch(aligned ? lora_down_kernel<Number, true> : lora_down_kernel<Number, false>,
                           of(a.R, kWarps), kThreads, 0, stream, a, low);
  if (error != 0) return error;
  return launch(lora_up_kernel<Number>, of(a.n, kThreads), kThreads, 0, stream, a,
                static_cast<const float*>(low));
}

}  // namespace

uint64_t lora_scratch(const LoraArgs& a) { return static_cast<uint64_t>(a.T * a.R) * sizeof(float); }

template <LoraNumbers kNumbers>
CudaStatus lora(const LoraArgs& a, void* scratch, Stream stream) {
  constexpr int64_t kMostOutputs = int64_t{65535} * kThreads;  // of a grid
  if (a.R > kMostRank || a.n > kMostOutputs) return {cudaErrorInvalidValue};
  if (a.T <= 0 || a.n <= 0 || a.R <= 0) return {};
  auto* low = static_cast<float*>(scratch);
  if constexpr (kNumbers == LoraNumbers::kF32) return {run<float>(a, low, stream)};
  else return {run<uint16_t>(a, low, stream)};
}
template CudaStatus lora<LoraNumbers::kF32>(const LoraArgs&, void*, Stream);
template CudaStatus lora<LoraNumbers::kBF16>(const LoraArgs&, void*, Stream);

}  // namespace oar::cuda
