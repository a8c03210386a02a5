// Packing of 8-bit filters: plain moves, done once at load.
#include "kernels/quantized_conv.h"

#include <cstring>

namespace oar {

int64_t quantized_filter_bytes(int64_t M, int64_t K) {
  return (M + kQuantizedPanel - 1) / kQuantizedPanel * kQuantizedPanel * quantized_k(K);
}

void pack_quantized_filters(int8_t* dst, int32_t* sums, const int8_t* w, int64_t M, int64_t taps, int64_t C,
                            int64_t stride_m, int64_t stride_tap, int64_t stride_c) {
  const int64_t Kp = quantized_k(taps * C);
  std::memset(dst, 0, static_cast<size_t>(quantized_filter_bytes(M, taps * C)));
  for (int64_t m = 0; m < M; ++m) {
    int8_t* panel = dst + m / kQuantizedPanel * kQuantizedPanel * Kp + m % kQuantizedPanel * 4;
    int32_t sum = 0;
    int64_t k = 0;
    for (int64_t t = 0; t < taps; ++t) {
      const int8_t* from = w + m * stride_m + t * stride_tap;
      for (int64_t c = 0; c < C; ++c, ++k) {
        const int8_t v = from[c * stride_c];
        panel[k / 4 * 4 * kQuantizedPanel + k % 4] = v;
        sum += v;
      }
    }
    sums[m] = sum;
  }
}

}  // namespace oar
