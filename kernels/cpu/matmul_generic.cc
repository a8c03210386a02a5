// Matmul in portable C++: four-lane vectors of the compiler, which every processor has in some form. The
// fallback where no instruction set below has a kernel, and what a port to a new architecture starts from.
#include <cstring>

#include "kernels/cpu/matmul_decode.h"

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

using F32Core = RowDotCore<GenericArch<float>>;
using F16Core = RowDotCore<GenericArch<f16>>;
using Bf16Core = RowDotCore<GenericArch<bf16>>;

}  // namespace

void append_matmul_generic(KernelList& list) {
  MatmulDriver<F32Core>::append(list, Format::f32(), Isa::kGeneric, "matmul.f32.generic",
                                "grouped_matmul.f32.generic");
  MatmulDriver<F16Core>::append(list, Format::f16(), Isa::kGeneric, "matmul.f16.generic",
                                "grouped_matmul.f16.generic");
  MatmulDriver<Bf16Core>::append(list, Format::bf16(), Isa::kGeneric, "matmul.bf16.generic",
                                 "grouped_matmul.bf16.generic");
  MatmulDriver<DecodeCore<F32Core>>::append(list, std::nullopt, Isa::kGeneric, "matmul.any.generic",
                                            "grouped_matmul.any.generic");
}

}  // namespace oar
