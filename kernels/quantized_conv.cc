// Packing of narrow filters: plain moves, done once at load.
#include "kernels/quantized_conv.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace oar {
namespace {

// put(m, index in w, where its first byte belongs) for every weight; a panel at a time, so that matrices are
// read along their rows whichever way they lie.
template <class Put>
void each_weight(int8_t* dst, int64_t width, int64_t M, int64_t taps, int64_t C, int64_t stride_m,
                 int64_t stride_tap, int64_t stride_c, Put&& put) {
  const int64_t Kp = quantized_k(taps * C, width), group = 4 / width;
  for (int64_t first = 0; first < M; first += kQuantizedPanel) {
    const int64_t filters = std::min(kQuantizedPanel, M - first);
    int64_t k = 0;
    for (int64_t t = 0; t < taps; ++t) {
      for (int64_t c = 0; c < C; ++c, ++k) {
        const int64_t from = first * stride_m + t * stride_tap + c * stride_c;
        int8_t* to = dst + first * Kp + k / group * 4 * kQuantizedPanel + k % group * width;
        for (int64_t m = 0; m < filters; ++m) put(first + m, from + m * stride_m, to + 4 * m);
      }
    }
  }
}

}  // namespace

int64_t quantized_filter_bytes(int64_t M, int64_t K, int64_t width) {
  return (M + kQuantizedPanel - 1) / kQuantizedPanel * kQuantizedPanel * quantized_k(K, width);
}

void pack_quantized_filters(int8_t* dst, int32_t* sums, const int8_t* w, int64_t M, int64_t taps, int64_t C,
                            int64_t stride_m, int64_t stride_tap, int64_t stride_c) {
  std::memset(dst, 0, static_cast<size_t>(quantized_filter_bytes(M, taps * C)));
  std::memset(sums, 0, static_cast<size_t>(M) * sizeof(int32_t));
  each_weight(dst, 1, M, taps, C, stride_m, stride_tap, stride_c, [&](int64_t m, int64_t from, int8_t* to) {
    *to = w[from];
    sums[m] += w[from];
  });
}

void pack_bf16_filters(int8_t* dst, const float* w, int64_t M, int64_t taps, int64_t C, int64_t stride_m,
                       int64_t stride_tap, int64_t stride_c) {
  std::memset(dst, 0, static_cast<size_t>(quantized_filter_bytes(M, taps * C, 2)));
  each_weight(dst, 2, M, taps, C, stride_m, stride_tap, stride_c, [&](int64_t, int64_t from, int8_t* to) {
    const bf16 rounded = to_bf16(w[from]);
    std::memcpy(to, &rounded, sizeof(rounded));
  });
}

void pack_rounded_filters(int8_t* dst, int32_t* sums, float* scale, const float* w, int64_t M, int64_t taps,
                          int64_t C, int64_t stride_m, int64_t stride_tap, int64_t stride_c) {
  std::memset(dst, 0, static_cast<size_t>(quantized_filter_bytes(M, taps * C)));
  std::memset(sums, 0, static_cast<size_t>(M) * sizeof(int32_t));
  std::fill_n(scale, M, 0.f);
  each_weight(dst, 1, M, taps, C, stride_m, stride_tap, stride_c,
              [&](int64_t m, int64_t from, int8_t*) { scale[m] = std::max(scale[m], std::fabs(w[from])); });
  for (int64_t m = 0; m < M; ++m) scale[m] /= 127;
  each_weight(dst, 1, M, taps, C, stride_m, stride_tap, stride_c, [&](int64_t m, int64_t from, int8_t* to) {
    // A scale may be too small to divide by. Adding and taking 1.5 2^23 rounds half to even.
    constexpr float kRound = 12582912.f;
    const float q = scale[m] > 0 ? std::clamp(w[from] / scale[m], -127.f, 127.f) : 0.f;
    *to = static_cast<int8_t>((q + kRound) - kRound);
    sums[m] += *to;
  });
}

}  // namespace oar
