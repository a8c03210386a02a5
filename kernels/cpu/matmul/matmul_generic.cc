// Matmul in portable C++: four-lane vectors of the compiler, which every processor has in some form. The
// fallback where no instruction set below has a kernel, and what a port to a new architecture starts from.
#include <cstring>

#include "kernels/cpu/matmul/int4_generic.h"
#include "kernels/cpu/matmul/matmul_decode.h"

namespace oar {
namespace {

using F32x4 = float __attribute__((vector_size(16)));

inline F32x4 widen(const float* p) {
  F32x4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class Narrow>
inline F32x4 widen(const Narrow* p) {
  return F32x4{to_f32(p[0]), to_f32(p[1]), to_f32(p[2]), to_f32(p[3])};
}

template <class Weight>
struct GenericArch {
  using W = Weight;
  using X = float;
  using WReg = F32x4;
  using XReg = F32x4;
  using Acc = F32x4;
  static constexpr int kStep = 4, kTileRows = 4, kTileTokens = 2, kGemvRows = 4;
  static Acc zero() { return Acc{}; }
  static WReg load_w(const W* p) { return widen(p); }
  static XReg load_x(const X* p) { return widen(p); }
  static Acc dot(Acc a, WReg w, XReg x) { return a + w * x; }
  static void reduce4(Acc a, Acc b, Acc c, Acc d, float out[4]) {
    const Acc in[4] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) out[i] = (in[i][0] + in[i][2]) + (in[i][1] + in[i][3]);
  }
  static void pack(X* dst, const float* src, int64_t n) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
    for (; n % kStep != 0; ++n) dst[n] = 0.f;
  }
};

// Sixteen rows at a time in plain loops.
struct GenericInt8 {
  struct Dot {
    int32_t v[16];
  };
  struct Sum {
    float v[16];
  };
  using WReg = const int8_t*;
  using XReg = const int8_t*;
  static constexpr int kLanes = 16, kTileVectors = 1, kTileTokens = 2, kGemvVectors = 1;
  static constexpr bool kBiased = false;
  static WReg load_w(const char* line) { return reinterpret_cast<const int8_t*>(line); }
  static XReg load_x(const int8_t* x) { return x; }
  static Dot start(int32_t) { return {}; }
  static Dot dot(Dot d, WReg w, XReg x) {
    for (int i = 0; i < 16; ++i) {
      d.v[i] += w[4 * i] * x[0] + w[4 * i + 1] * x[1] + w[4 * i + 2] * x[2] + w[4 * i + 3] * x[3];
    }
    return d;
  }
  static Sum load(const float* p) {
    Sum s;
    std::memcpy(s.v, p, sizeof s.v);
    return s;
  }
  static Sum flush(Sum s, Dot d, Sum scale_w, float scale_x) {
    for (int i = 0; i < 16; ++i)
      s.v[i] = __builtin_fmaf(static_cast<float>(d.v[i]), scale_w.v[i] * scale_x, s.v[i]);
    return s;
  }
  static Sum add(Sum a, Sum b) {
    for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
    return a;
  }
  static void store(float* p, Sum s) { std::memcpy(p, s.v, sizeof s.v); }
};

using F32Core = RowDotCore<GenericArch<float>>;
using F16Core = RowDotCore<GenericArch<f16>>;
using Bf16Core = RowDotCore<GenericArch<bf16>>;

constexpr auto kEntries = join(MatmulDriver<F32Core>::kernels("f32", Isa::kGeneric),
                               MatmulDriver<F16Core>::kernels("f16", Isa::kGeneric),
                               MatmulDriver<Bf16Core>::kernels("bf16", Isa::kGeneric),
                               int8_kernels<Int8Core<GenericInt8>>(Isa::kGeneric),
                               int4_kernels<GenericInt4<GenericInt8>, Int8Core<GenericInt8>>(Isa::kGeneric),
                               MatmulDriver<DecodeCore<F32Core>>::kernels(nullptr, Isa::kGeneric));

}  // namespace

constinit const KernelTable kernels_matmul_generic{kEntries};

}  // namespace oar
