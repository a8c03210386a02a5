// 8-bit convolution for any processor.
#define OAR_SIMD_NAMESPACE quantized_generic
#include "kernels/cpu/conv/quantized_conv_driver.h"

namespace oar {
namespace {

struct GenericQuantizedCore {
  static constexpr int64_t kRows = 4, kPanels = 1, kWidth = 1, kStep = 4;
  static constexpr bool kTaps = false, kStarts = false, kSignedX = true;
  static void begin() {}
  static void end() {}

  template <class X>
  static void row(const QuantizedTile& t, const uint8_t* bytes, int32_t* acc) {
    const X* x = reinterpret_cast<const X*>(bytes);
    const int8_t* w = t.w;
    std::fill_n(acc, kQuantizedPanel, 0);
    for (int64_t k = 0; k < t.Kp; k += 4, w += 4 * kQuantizedPanel) {
      const int32_t x0 = x[k], x1 = x[k + 1], x2 = x[k + 2], x3 = x[k + 3];
      for (int64_t i = 0; i < kQuantizedPanel; ++i)
        acc[i] += x0 * w[4 * i] + x1 * w[4 * i + 1] + x2 * w[4 * i + 2] + x3 * w[4 * i + 3];
    }
  }
  static void tile(const QuantizedTile& t) {
    for (int64_t r = 0; r < t.rows; ++r) {
      if (t.x_signed) row<int8_t>(t, t.x + r * t.ldx, t.acc + r * t.ldacc);
      else row<uint8_t>(t, t.x + r * t.ldx, t.acc + r * t.ldacc);
    }
  }
};

constexpr KernelEntry kEntries[] = {quantized_conv<GenericQuantizedCore>(Isa::kGeneric)};

}  // namespace

constinit const KernelTable kernels_quantized_conv_generic{kEntries};

}  // namespace oar
