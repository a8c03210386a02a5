// How a token's key or value becomes codes (kv_quant.h states the formulas): what the reference and the
// vector kernels share, so that both write the same bytes. Internal to kernels/.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/kv_quant.h"

namespace oar {

struct KvScale {
  f16 scale, minimum;     // of int4_mean the minimum is kv_mean_minimum() of the scale, and not stored
  float inverse, offset;  // code = round((x - offset) * inverse)
};

// Of a token's D elements between lo and hi. `poison`: the sum of x - x over the elements, NaN when any is
// NaN or infinite; the scale is NaN then, so that it comes out again, and codes stay in range.
inline KvScale kv_scale(KvCode code, float lo, float hi, float poison, int64_t D) {
  float scale = std::max(hi, -lo) / (code == KvCode::kInt8 ? 127.f : 448.f), minimum = 0;
  if (code == KvCode::kInt4Mean) {
    scale = std::max(hi, -lo) * quant_kv_shrink(code, D) / 7.5f;
  } else if (code == KvCode::kInt4 || code == KvCode::kInt3) {
    const float half = (hi - lo) * 0.5f, middle = lo + half, kept = half * quant_kv_shrink(code, D);
    minimum = middle - kept;
    scale = kept / (code == KvCode::kInt3 ? 3.5f : 7.5f);
  }
  KvScale s{to_f16(scale + poison), to_f16(minimum), 0, 0};
  const float stored = to_f32(s.scale);
  s.inverse = stored > 0 && std::isfinite(stored) ? 1.f / stored : 0.f;
  s.offset = code == KvCode::kInt4Mean ? kv_mean_minimum(stored) : to_f32(s.minimum);
  return s;
}

// int8 keys are stored with an offset of 128.
constexpr uint32_t kv_key_offset(KvCode code) { return code == KvCode::kInt8 ? 0x80u : 0u; }

// The mean key of a page as it is stored: codes of int8 and one scale. What rounding loses of the mean stays
// in the differences. `mean`: D sums over the page's tokens, divided by their number here.
inline float kv_mean_codes(float* mean, int64_t D, int64_t P, int8_t* codes) {
  float largest = 0;
  for (int64_t d = 0; d < D; ++d) {
    mean[d] /= static_cast<float>(P);
    if (!std::isfinite(mean[d])) mean[d] = 0;  // the token it came from says so by its own scale
    largest = std::max(largest, std::fabs(mean[d]));
  }
  const float scale = largest / 127.f, inverse = scale > 0 && std::isfinite(1.f / scale) ? 1.f / scale : 0.f;
  for (int64_t d = 0; d < D; ++d) codes[d] = static_cast<int8_t>(std::nearbyint(mean[d] * inverse));
  return scale;
}

}  // namespace oar
