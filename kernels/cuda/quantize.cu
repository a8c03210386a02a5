// Four elements a thread where values are aligned to 16 bytes and codes to 4, else one: the arithmetic of an
// element is the same. An own range is found in a launch before: each block leaves its part, and those behind
// put all parts together, which in any order is the same.
#include "kernels/cuda/quantize.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/math.h"
#include "kernels/cuda/pack.h"

namespace oar::cuda {
namespace {

constexpr int kWarps = kPackThreads / kWarp;
constexpr int64_t kMostParts = kPackThreads;  // one a thread of the blocks behind
constexpr int64_t kOfPart = 16 * kPackThreads;

// Of values and 0: how far the largest is above it, and the least below.
struct Reach {
  float above, below;
};
OAR_DEVICE Reach joined(Reach r, float x) { return {fmaxf(r.above, x), fmaxf(r.below, -x)}; }

// Of all threads of the block.
OAR_DEVICE Reach of_block(Reach mine, float2* shared) {
  mine = {warp_max(mine.above), warp_max(mine.below)};
  if (lane() == 0) store(shared + warp(), make_float2(mine.above, mine.below));
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float2 other = load(shared + w);
    mine = {fmaxf(mine.above, other.x), fmaxf(mine.below, other.y)};
  }
  return mine;
}

__global__ void __launch_bounds__(kPackThreads) reach_kernel(QuantizeArgs a, float2* parts) {
  wait_for_launches();
  float2* const shared = SharedMemory().take<float2>(kWarps);
  Reach r{};
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * kPackThreads + threadIdx.x; i < a.n;
       i += int64_t{gridDim.x} * kPackThreads)
    r = joined(r, load(a.values + i));
  r = of_block(r, shared);
  if (threadIdx.x == 0) store(parts + blockIdx.x, make_float2(r.above, r.below));
}

// How codes stand for values.
struct Scaled {
  float scale;
  int32_t zero;
};
OAR_DEVICE int32_t as_code(const QuantizeArgs& a, uint8_t byte) {
  return a.is_signed ? static_cast<int8_t>(byte) : static_cast<int32_t>(byte);
}
OAR_DEVICE Scaled scaled_of(const QuantizeArgs& a, int64_t i) {
  const int64_t k = a.count == 1 ? 0 : i / a.inner % a.count;
  Scaled s{1.f, 0};
  if (a.scale != nullptr) s.scale = a.scale[k];
  if (a.zero != nullptr) s.zero = as_code(a, a.zero[k]);
  return s;
}
OAR_DEVICE Scaled own_scaled(Reach r) {
  Scaled s{__fdiv_rn(__fadd_rn(r.above, r.below), 255.f), 0};
  if (s.scale > 0.f)
    s.zero = static_cast<int32_t>(rintf(fminf(fmaxf(__fdiv_rn(r.below, s.scale), 0.f), 255.f)));
  return s;
}

OAR_DEVICE uint8_t code_of(float x, Scaled s, int32_t least) {
  const float t = __fdiv_rn(x, s.scale), low = static_cast<float>(least - s.zero);
  if (t != t) return 0;
  return static_cast<uint8_t>(static_cast<int32_t>(rintf(fminf(fmaxf(t, low), low + 255.f))) + s.zero);
}

// kOwnRange: of the parts that reach_kernel() left.
template <int kWidth, bool kOwnRange>
__global__ void __launch_bounds__(kPackThreads)
    to_codes_kernel(QuantizeArgs a, const float2* parts, int64_t num_parts) {
  wait_for_launches();
  Scaled own{};
  if constexpr (kOwnRange) {
    float2* const shared = SharedMemory().take<float2>(kWarps);
    Reach r{};
    if (threadIdx.x < num_parts) {
      const float2 part = load(parts + threadIdx.x);
      r = {part.x, part.y};
    }
    own = own_scaled(of_block(r, shared));
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      *a.own_scale = own.scale;
      *a.own_zero = static_cast<uint8_t>(own.zero);
    }
  }
  const int64_t i = first_element<kWidth>();
  if (i >= a.n) return;
  const Pack<kWidth> x = load_pack<kWidth>(a.values + i);
  uint32_t codes = 0;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const Scaled s = kOwnRange ? own : scaled_of(a, i + e);
    if (kOwnRange && !(s.scale > 0.f)) continue;  // a range so small counts as none
    codes |= uint32_t{code_of(x.v[e], s, a.is_signed ? -128 : 0)} << 8 * e;
  }
  auto* const to = static_cast<uint8_t*>(a.codes) + i;
  if constexpr (kWidth == kWide) store(reinterpret_cast<uint32_t*>(to), codes);
  else store(to, static_cast<uint8_t>(codes));
}

template <int kWidth>
__global__ void __launch_bounds__(kPackThreads) to_values_kernel(QuantizeArgs a) {
  wait_for_launches();
  const int64_t i = first_element<kWidth>();
  if (i >= a.n) return;
  const auto* from = static_cast<const uint8_t*>(a.codes) + i;
  uint32_t codes;
  if constexpr (kWidth == kWide) codes = load(reinterpret_cast<const uint32_t*>(from));
  else codes = load(from);
  Pack<kWidth> y;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const Scaled s = scaled_of(a, i + e);
    const int32_t code = as_code(a, static_cast<uint8_t>(codes >> 8 * e));
    y.v[e] = __fmul_rn(static_cast<float>(code - s.zero), s.scale);
  }
  store_pack<kWidth>(a.values + i, y);
}

template <int kWidth>
__global__ void __launch_bounds__(kPackThreads) integers_kernel(QuantizeArgs a) {
  wait_for_launches();
  const int64_t i = first_element<kWidth>();
  if (i >= a.n) return;
  const auto* from = static_cast<const int32_t*>(a.codes) + i;
  Pack<kWidth> y;
  if constexpr (kWidth == kWide) {
    const int4 v = load(reinterpret_cast<const int4*>(from));
    y = {
        {static_cast<float>(v.x), static_cast<float>(v.y), static_cast<float>(v.z), static_cast<float>(v.w)}};
  } else {
    y.v[0] = static_cast<float>(load(from));
  }
  store_pack<kWidth>(a.values + i, y);
}

int64_t parts_of(const QuantizeArgs& a) { return std::min(kMostParts, (a.n + kOfPart - 1) / kOfPart); }

// Blocks of a grid; negative: too many.
int64_t grid_of(int64_t n, bool aligned) {
  const int64_t each = kPackThreads * (aligned ? kWide : 1), blocks = (n + each - 1) / each;
  return blocks > 0x7fffffff ? -1 : blocks;
}

}  // namespace

uint64_t quantize_scratch(const QuantizeArgs& a) {
  return a.own_scale == nullptr ? 0 : static_cast<uint64_t>(parts_of(a)) * sizeof(float2);
}

CudaStatus quantize(const QuantizeArgs& a, void* scratch, Stream stream) {
  if (a.n <= 0) return {};
  const bool aligned = wide(a.values, a.n) && reinterpret_cast<uintptr_t>(a.codes) % 4 == 0;
  const int64_t grid = grid_of(a.n, aligned);
  if (grid < 0 || a.count < 1 || a.inner < 1) return {cudaErrorInvalidValue};
  const auto blocks = static_cast<unsigned>(grid);
  if (a.to_values) {
    const auto kernel = aligned ? to_values_kernel<kWide> : to_values_kernel<1>;
    return {launch(kernel, blocks, kPackThreads, 0, stream, a)};
  }
  auto* const parts = static_cast<float2*>(scratch);
  if (a.own_scale == nullptr) {
    const auto kernel = aligned ? to_codes_kernel<kWide, false> : to_codes_kernel<1, false>;
    return {launch(kernel, blocks, kPackThreads, 0, stream, a, parts, int64_t{0})};
  }
  constexpr size_t kShared = kWarps * sizeof(float2);
  const int64_t num_parts = parts_of(a);
  const int error =
      launch(reach_kernel, static_cast<unsigned>(num_parts), kPackThreads, kShared, stream, a, parts);
  if (error != 0) return {error};
  const auto kernel = aligned ? to_codes_kernel<kWide, true> : to_codes_kernel<1, true>;
  return {launch(kernel, blocks, kPackThreads, kShared, stream, a, parts, num_parts)};
}

CudaStatus integers(const QuantizeArgs& a, Stream stream) {
  if (a.n <= 0) return {};
  const bool aligned = wide(a.values, a.n) && reinterpret_cast<uintptr_t>(a.codes) % 16 == 0;
  const int64_t blocks = grid_of(a.n, aligned);
  if (blocks < 0) return {cudaErrorInvalidValue};
  const auto kernel = aligned ? integers_kernel<kWide> : integers_kernel<1>;
  return {launch(kernel, static_cast<unsigned>(blocks), kPackThreads, 0, stream, a)};
}

}  // namespace oar::cuda
