#include "kernels/cuda/narrow.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/math.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 128;
constexpr float kLeastScale = 1.1754944e-38f;  // below it numbers have fewer bits
constexpr int kElements = 8;                   // of a thread: 16 bytes of bf16

template <bool kAligned>
OAR_DEVICE float4 load_four(const float* p) {
  if constexpr (kAligned) return load(reinterpret_cast<const float4*>(p));
  else return make_float4(p[0], p[1], p[2], p[3]);
}

// out (rows, K) = x, or act(gate) * x, in bf16. A row a block along x. Lanes read 16 bytes side by side, in
// two turns, and write so: of two neighbours the first has both their elements of the first turn, the other
// those of the second. Roofline: 6 bytes an element, 10 with a gate.
template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    narrow_kernel(uint16_t* out, const float* x, const float* gate, int64_t K, int64_t ldx, int64_t ld_gate,
                  UnaryOp act) {
  wait_for_launches();
  constexpr int kTurn = kWarp * kElements / 2;  // elements of a warp
  const int64_t row = blockIdx.x, first = (int64_t{blockIdx.y} * kThreads + warp() * kWarp) * kElements;
  uint2 pairs[2] = {};  // of bf16
#pragma unroll
  for (int turn = 0; turn < 2; ++turn) {
    const int64_t k = first + turn * kTurn + 4 * lane();
    if (k >= K) break;
    float4 v = load_four<kAligned>(x + row * ldx + k);
    if (gate != nullptr) {
      const float4 g = load_four<kAligned>(gate + row * ld_gate + k);
      v = make_float4(gated(act, g.x, v.x), gated(act, g.y, v.y), gated(act, g.z, v.z), gated(act, g.w, v.w));
    }
    pairs[turn] = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
  }
  const bool odd = lane() % 2 != 0;
  const uint2 own = odd ? pairs[1] : pairs[0], other = odd ? pairs[0] : pairs[1];
  const uint2 got =
      make_uint2(__shfl_xor_sync(kAllLanes, other.x, 1), __shfl_xor_sync(kAllLanes, other.y, 1));
  const int64_t k = first + (odd ? kTurn : 0) + lane() / 2 * kElements;
  if (k >= K) return;
  const uint2 low = odd ? got : own, high = odd ? own : got;
  store_wide(reinterpret_cast<float*>(out + row * K + k),
             make_float4(__uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(high.x),
                         __uint_as_float(high.y)));
}

// The same in e4m3, a warp for each kNarrowGroup elements of a row.
constexpr float kMostCode = 448.f;
template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    narrow_codes_kernel(NarrowCodes to, const float* x, const float* gate, int64_t K, int64_t ldx,
                        int64_t ld_gate, UnaryOp act) {
  wait_for_launches();
  static_assert(kNarrowGroup == 4 * kWarp);
  const int64_t row = blockIdx.x, group = int64_t{blockIdx.y} * (kThreads / kWarp) + warp(),
                k = group * kNarrowGroup + 4 * lane();
  if (k >= K) return;
  float4 v = load_four<kAligned>(x + row * ldx + k);
  if (gate != nullptr) {
    const float4 g = load_four<kAligned>(gate + row * ld_gate + k);
    v = make_float4(gated(act, g.x, v.x), gated(act, g.y, v.y), gated(act, g.z, v.z), gated(act, g.w, v.w));
  }
  const float most = warp_max(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
  const float scale = fmaxf(__fdiv_rn(most, kMostCode), kLeastScale);
  const float elements[4] = {v.x, v.y, v.z, v.w};
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes |= uint32_t{__nv_cvt_float_to_fp8(__fdiv_rn(elements[i], scale), __NV_SATFINITE, __NV_E4M3)}
             << 8 * i;
  }
  store(reinterpret_cast<uint32_t*>(to.codes + row * K + k), codes);
  if (lane() == 0) to.scales[group * to.ld_scales + row] = scale;
}

bool wide(const float* p, int64_t ld) {
  return p == nullptr || (reinterpret_cast<uintptr_t>(p) % 16 == 0 && ld % 4 == 0);
}

}  // namespace

uint64_t narrow_bytes(const MatmulArgs& a) {
  constexpr uint64_t kAlignment = 256;
  return (static_cast<uint64_t>(a.T * a.K) * sizeof(uint16_t) + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t narrow_codes_bytes(const MatmulArgs& a) {
  const NarrowCodes all = narrow_codes(a, nullptr);
  return reinterpret_cast<uintptr_t>(all.scales) +
         static_cast<uint64_t>(a.K / kNarrowGroup * all.ld_scales) * sizeof(float);
}

NarrowCodes narrow_codes(const MatmulArgs& a, void* memory) {
  auto* const codes = static_cast<uint8_t*>(memory);
  const int64_t bytes = (a.T * a.K + 255) / 256 * 256, rows = (a.T + 3) / 4 * 4;
  return {codes, reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(codes) + static_cast<uintptr_t>(bytes)),
          rows};
}

int narrow_rows_to_codes(const NarrowCodes& to, const MatmulArgs& a, const Gate& g, Stream stream) {
  constexpr int64_t kOfBlock = int64_t{kThreads / kWarp} * kNarrowGroup;
  const dim3 grid(static_cast<unsigned>(a.T), static_cast<unsigned>((a.K + kOfBlock - 1) / kOfBlock));
  const bool both = wide(a.x, a.ldx) && wide(g.gate, g.ld);
  return launch(both ? narrow_codes_kernel<true> : narrow_codes_kernel<false>, grid, kThreads, 0, stream, to,
                a.x, g.gate, a.K, a.ldx, g.ld, g.act);
}

int narrow_rows(void* to, const MatmulArgs& a, const Gate& g, Stream stream) {
  const dim3 grid(static_cast<unsigned>(a.T),
                  static_cast<unsigned>((a.K / kElements + kThreads - 1) / kThreads));
  const bool both = wide(a.x, a.ldx) && wide(g.gate, g.ld);
  return launch(both ? narrow_kernel<true> : narrow_kernel<false>, grid, kThreads, 0, stream,
                static_cast<uint16_t*>(to), a.x, g.gate, a.K, a.ldx, g.ld, g.act);
}

}  // namespace oar::cuda
