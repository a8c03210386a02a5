// Packing of filters into panels: plain moves, done once at load (or once per product for matrices that are
// no constants).
#include "kernels/conv.h"

#include <cstring>

#include "kernels/register_turn.h"

namespace oar {
namespace {

// A whole panel of a matrix whose rows, `stride` apart, are filters: blocks of 4 x 4, a line of each row at a
// time. Rows that are powers of two apart would throw out one another's lines before these are used up.
void pack_turned(float* dst, const float* w, int64_t stride, int64_t C, int64_t width) {
  constexpr int64_t kBlock = 4, kLine = 16;
  const int64_t whole = C / kBlock * kBlock;
  for (int64_t c0 = 0; c0 < whole; c0 += kLine) {
    for (int64_t m = 0; m < width; m += kBlock) {
      for (int64_t c = c0; c < whole && c < c0 + kLine; c += kBlock) {
        Lanes32 block[kBlock];
        for (int64_t i = 0; i < kBlock; ++i) block[i] = load_lanes<Lanes32>(w + (m + i) * stride + c);
        turn_block(block);
        for (int64_t i = 0; i < kBlock; ++i) store_lanes(dst + (c + i) * width + m, block[i]);
      }
    }
  }
  for (int64_t c = whole; c < C; ++c)
    for (int64_t m = 0; m < width; ++m) dst[c * width + m] = w[m * stride + c];
}

// A whole panel whose filters lie beside each other.
template <int64_t kWidth>
void pack_straight(float* dst, const float* w, int64_t stride, int64_t C) {
  for (int64_t c = 0; c < C; ++c) std::memcpy(dst + c * kWidth, w + c * stride, kWidth * sizeof(float));
}

}  // namespace

int64_t panel_width(Isa isa) {
  if (isa >= Isa::kAvx512) return 16;
  return isa == Isa::kAvx2 ? 8 : 4;
}

bool groups_share_panels(int64_t M, int64_t groups, int64_t c_per_group, int64_t width) {
  const int64_t per = M / groups;
  return groups > 1 && per < width && width % per == 0 && c_per_group <= per;
}

int64_t packed_filter_floats(int64_t M, int64_t groups, int64_t taps, int64_t c_per_group, int64_t width) {
  if (groups_share_panels(M, groups, c_per_group, width)) groups = 1;
  const int64_t per = M / groups;
  return groups * ((per + width - 1) / width) * taps * c_per_group * width;
}

void pack_filters(float* dst, const float* w, int64_t M, int64_t groups, int64_t taps, int64_t c_per_group,
                  int64_t stride_m, int64_t stride_c, int64_t stride_tap, int64_t width) {
  if (groups_share_panels(M, groups, c_per_group, width)) groups = 1;
  const int64_t per = M / groups;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t m = 0; m < per; m += width) {
      const int64_t n = per - m < width ? per - m : width;
      const float* from = w + (g * per + m) * stride_m;
      const bool whole = n == width && taps == 1 && (width == 16 || width == 8 || width == 4);
      if (whole && stride_c == 1) {
        pack_turned(dst, from, stride_m, c_per_group, width);
        dst += c_per_group * width;
        continue;
      }
      if (whole && stride_m == 1) {
        if (width == 16) pack_straight<16>(dst, from, stride_c, c_per_group);
        else if (width == 8) pack_straight<8>(dst, from, stride_c, c_per_group);
        else pack_straight<4>(dst, from, stride_c, c_per_group);
        dst += c_per_group * width;
        continue;
      }
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

int64_t winograd_filter_floats(int64_t M, int64_t C, int64_t width) {
  return 36 * ((M + width - 1) / width) * C * width;
}

// G g G^T of `width` output channels beside each other.
void pack_winograd(float* dst, const float* w, int64_t M, int64_t C, int64_t width) {
  constexpr int64_t kMaxWidth = 16;
  const int64_t panels = (M + width - 1) / width, matrix = panels * C * width;
  // out[0..6) = G g[0..3), `step` apart: the filter's polynomial at each point p, divided by the product of
  // p's distances to the others.
  constexpr double a = kWinogradA, b = kWinogradB, a2 = a * a, b2 = b * b;
  constexpr double at_0 = 1 / (a2 * b2), at_a = 1 / (2 * a2 * (a2 - b2)), at_b = 1 / (2 * b2 * (b2 - a2));
  const auto expand = [](const double* g0, const double* g1, const double* g2, double* out, int64_t step) {
    for (int64_t i = 0; i < kMaxWidth; ++i) {
      out[i] = g0[i] * at_0;
      out[step + i] = (g0[i] + a2 * g2[i] + a * g1[i]) * at_a;
      out[2 * step + i] = (g0[i] + a2 * g2[i] - a * g1[i]) * at_a;
      out[3 * step + i] = (g0[i] + b2 * g2[i] + b * g1[i]) * at_b;
      out[4 * step + i] = (g0[i] + b2 * g2[i] - b * g1[i]) * at_b;
      out[5 * step + i] = g2[i];
    }
  };
  double g[9][kMaxWidth] = {}, half[6][3][kMaxWidth], full[6][6][kMaxWidth];
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t n = M - p * width < width ? M - p * width : width;
    for (int64_t c = 0; c < C; ++c) {
      for (int64_t i = 0; i < width; ++i) {
        const float* from = w + ((p * width + i) * C + c) * 9;
        for (int64_t t = 0; t < 9; ++t) g[t][i] = i < n ? static_cast<double>(from[t]) : 0;
      }
      for (int64_t j = 0; j < 3; ++j) expand(g[j], g[3 + j], g[6 + j], half[0][j], 3 * kMaxWidth);
      for (int64_t i = 0; i < 6; ++i) expand(half[i][0], half[i][1], half[i][2], full[i][0], kMaxWidth);
      for (int64_t k = 0; k < 36; ++k) {
        float* to = dst + k * matrix + (p * C + c) * width;
        for (int64_t i = 0; i < width; ++i) to[i] = static_cast<float>(full[k / 6][k % 6][i]);
      }
    }
  }
}

}  // namespace oar
