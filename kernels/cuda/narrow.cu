#include "kernels/cuda/narrow.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/hadamard.h"
#include "kernels/cuda/hadamard_run.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/norm_rows.h"

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

// Where rounded rows go: put(row, k, four of its elements). Of codes a warp comes together, with kNarrowGroup
// k.
struct Bf16Rows {
  uint16_t* to;
  int64_t K;

  OAR_DEVICE void put(int64_t row, int64_t k, float4 v) const {
    store(reinterpret_cast<uint2*>(to + row * K + k), make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)));
  }
};
constexpr float kMostCode = 448.f;
struct CodeRows {
  NarrowCodes to;
  int64_t K;

  OAR_DEVICE void put(int64_t row, int64_t k, float4 v) const {
    static_assert(kNarrowGroup == 4 * kWarp);
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
    if (lane() == 0) to.scales[k / kNarrowGroup * to.ld_scales + row] = scale;
  }
};

// The same in e4m3, a warp for each kNarrowGroup elements of a row.
template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    narrow_codes_kernel(CodeRows to, const float* x, const float* gate, int64_t ldx, int64_t ld_gate,
                        UnaryOp act) {
  wait_for_launches();
  const int64_t row = blockIdx.x, group = int64_t{blockIdx.y} * (kThreads / kWarp) + warp(),
                k = group * kNarrowGroup + 4 * lane();
  if (k >= to.K) return;
  float4 v = load_four<kAligned>(x + row * ldx + k);
  if (gate != nullptr) {
    const float4 g = load_four<kAligned>(gate + row * ld_gate + k);
    v = make_float4(gated(act, g.x, v.x), gated(act, g.y, v.y), gated(act, g.z, v.z), gated(act, g.w, v.w));
  }
  to.put(row, k, v);
}

// Rows of a norm, or gated ones, a block each: put(first element, four of them). A lane has elements as in
// norm_rows.h, so a warp has kNarrowGroup side by side.
template <bool kAligned, class Put>
OAR_DEVICE void make_row(const RmsNormArgs& a, int64_t row, float* partial, const Put& put) {
  rms_norm_rows<kAligned>(a, row, 1, partial, [&](int64_t, int64_t i, const Quad& h) { put(i, h); });
}
template <bool kAligned, class Put>
OAR_DEVICE void make_row(const SwiGluArgs& a, int64_t row, float*, const Put& put) {
  for (int64_t i = int64_t{kNormWidth} * threadIdx.x; i < a.F; i += kNormWidth * kNormThreads) {
    const Quad gate = load_quad<kAligned>(a.gate + row * a.ldg, i, a.F);
    Quad h = load_quad<kAligned>(a.up + row * a.ldu, i, a.F);
#pragma unroll
    for (int j = 0; j < kNormWidth; ++j) h.v[j] = gated(a, gate.v[j], h.v[j]);
    put(i, h);
  }
}
OAR_DEVICE float4 four(const Quad& q) { return make_float4(q.v[0], q.v[1], q.v[2], q.v[3]); }

// Rows as `made` has them, then transformed (rows == 0: not), of which `count` from `first` on are rounded.
// A step reads what the one before has stored. cols is a multiple of 4.
template <bool kAligned, class Made, class To>
__global__ void __launch_bounds__(kNormThreads)
    made_rows_kernel(Made made, HadamardArgs transform, float scale, To to, int64_t first, int64_t count) {
  wait_for_launches();
  SharedMemory shared;
  float* const partial = shared.take<float>(kNormWarps);
  const int64_t r = blockIdx.x, row = r - first, cols = to.K;
  const bool rounds = row >= 0 && row < count;
  const bool transforms = transform.rows > 0;
  make_row<kAligned>(made, r, partial, [&](int64_t i, const Quad& h) {
    store_quad<kAligned>(made.out + r * made.ldo, i, cols, h);
    if (rounds && !transforms) to.put(row, i, four(h));
  });
  if (!transforms) return;
  __syncthreads();
  float* const buffers = shared.take<float>(2 * static_cast<int>(transform.block));
  for (int64_t run = 0; run < cols / transform.block; ++run)
    transform_run<BlockTeam<kNormThreads>>(transform, r, run, buffers, scale);
  if (!rounds) return;
  __syncthreads();
  const float* const out = transform.out + r * transform.ldo;
  for (int64_t i = int64_t{kNormWidth} * threadIdx.x; i < cols; i += kNormWidth * kNormThreads)
    to.put(row, i, four(load_quad<kAligned>(out, i, cols)));
}

size_t shared_bytes(const HadamardArgs& transform) {
  constexpr size_t kPiece = 128;
  static_assert(kNormWarps * sizeof(float) <= kPiece);
  return kPiece + (2 * static_cast<size_t>(transform.block) * sizeof(float) + kPiece - 1) / kPiece * kPiece;
}

bool made_aligned(const RmsNormArgs& a) { return norm_rows_aligned(a); }
bool made_aligned(const SwiGluArgs& a) {
  return a.ldg % kNormWidth == 0 && a.ldu % kNormWidth == 0 && a.ldo % kNormWidth == 0 &&
         norm_aligned(a.gate) && norm_aligned(a.up) && norm_aligned(a.out);
}

template <class To>
int make_and_narrow(const RowSteps& s, const To& to, const MatmulArgs& a, Stream stream) {
  const HadamardArgs transform = s.transform.value_or(HadamardArgs{});
  const int64_t first = (a.x - s.out()) / s.ld();
  return std::visit(
      [&](const auto& made) {
        using Made = std::decay_t<decltype(made)>;
        const bool aligned =
            made_aligned(made) && norm_aligned(transform.out) && transform.ldo % kNormWidth == 0;
        return launch(aligned ? made_rows_kernel<true, Made, To> : made_rows_kernel<false, Made, To>,
                      static_cast<unsigned>(s.rows()), kNormThreads, shared_bytes(transform), stream, made,
                      transform, hadamard_scale(transform.block), to, first, a.T);
      },
      s.made);
}

bool wide(const float* p, int64_t ld) {
  return p == nullptr || (reinterpret_cast<uintptr_t>(p) % 16 == 0 && ld % 4 == 0);
}

}  // namespace

const float* RowSteps::out() const {
  if (transform) return transform->out;
  return std::visit([](const auto& a) -> const float* { return a.out; }, made);
}
int64_t RowSteps::ld() const {
  return transform ? transform->ldo : std::visit([](const auto& a) { return a.ldo; }, made);
}
int64_t RowSteps::rows() const {
  const auto* norm = std::get_if<RmsNormArgs>(&made);
  return norm != nullptr ? norm->rows : std::get<SwiGluArgs>(made).T;
}
int64_t RowSteps::cols() const {
  const auto* norm = std::get_if<RmsNormArgs>(&made);
  return norm != nullptr ? norm->cols : std::get<SwiGluArgs>(made).F;
}

bool takes_transform(const HadamardArgs& a) { return a.block > 0 && hadamard_scratch(a) == 0; }

int make_rows(const RowSteps& s, Stream stream) {
  const auto* norm = std::get_if<RmsNormArgs>(&s.made);
  const CudaStatus made =
      norm != nullptr ? rms_norm(*norm, stream) : swiglu(std::get<SwiGluArgs>(s.made), stream);
  return made.ok() && s.transform ? hadamard(*s.transform, nullptr, stream).code : made.code;
}

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
  const CodeRows rows{to, a.K};
  if (g.steps != nullptr) return make_and_narrow(*g.steps, rows, a, stream);
  constexpr int64_t kOfBlock = int64_t{kThreads / kWarp} * kNarrowGroup;
  const dim3 grid(static_cast<unsigned>(a.T), static_cast<unsigned>((a.K + kOfBlock - 1) / kOfBlock));
  const bool both = wide(a.x, a.ldx) && wide(g.gate, g.ld);
  return launch(both ? narrow_codes_kernel<true> : narrow_codes_kernel<false>, grid, kThreads, 0, stream,
                rows, a.x, g.gate, a.ldx, g.ld, g.act);
}

int narrow_rows(void* to, const MatmulArgs& a, const Gate& g, Stream stream) {
  if (g.steps != nullptr)
    return make_and_narrow(*g.steps, Bf16Rows{static_cast<uint16_t*>(to), a.K}, a, stream);
  const dim3 grid(static_cast<unsigned>(a.T),
                  static_cast<unsigned>((a.K / kElements + kThreads - 1) / kThreads));
  const bool both = wide(a.x, a.ldx) && wide(g.gate, g.ld);
  return launch(both ? narrow_kernel<true> : narrow_kernel<false>, grid, kThreads, 0, stream,
                static_cast<uint16_t*>(to), a.x, g.gate, a.K, a.ldx, g.ld, g.act);
}

}  // namespace oar::cuda
