// Packing of filters into panels: plain moves, done once at load (or once per product for matrices that are
// no constants).
#include "kernels/conv.h"

#include <cstring>

namespace oar {

int64_t panel_width(Isa isa) {
  if (isa >= Isa::kAvx512) return 16;
  return isa == Isa::kAvx2 ? 8 : 4;
}

int64_t packed_filter_floats(int64_t M, int64_t groups, int64_t taps, int64_t c_per_group, int64_t width) {
  const int64_t per = M / groups;
  return groups * ((per + width - 1) / width) * taps * c_per_group * width;
}

void pack_filters(float* dst, const float* w, int64_t M, int64_t groups, int64_t taps, int64_t c_per_group,
                  int64_t stride_m, int64_t stride_c, int64_t stride_tap, int64_t width) {
  const int64_t per = M / groups;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t m = 0; m < per; m += width) {
      const int64_t n = per - m < width ? per - m : width;
      const float* from = w + (g * per + m) * stride_m;
      for (int64_t t = 0; t < taps; ++t) {
        for (int64_t c = 0; c < c_per_group; ++c, dst += width) {
          const float* p = from + t * stride_tap + c * stride_c;
          if (stride_m == 1) std::memcpy(dst, p, static_cast<size_t>(n) * sizeof(float));
          else
            for (int64_t i = 0; i < n; ++i) dst[i] = p[i * stride_m];
          for (int64_t i = n; i < width; ++i) dst[i] = 0.f;
        }
      }
    }
  }
}

}  // namespace oar
