#include "quant/calibrate/grid.h"

#include <algorithm>
#include <cmath>

#include "quant/calibrate/group_fit.h"
#include "quant/dtype.h"

namespace oar::calibrate {
namespace {

// Nearest, ties to even.
float round_clamped(float v, float low, float high) {
  constexpr float kMagic = 12582912.f;  // 1.5 * 2^23
  v = v < low ? low : v;
  v = v > high ? high : v;
  return (v + kMagic) - kMagic;
}

void snap_f16(const GridSpec& spec, std::span<float> scale, std::span<float> zero) {
  for (size_t g = 0; g < scale.size(); ++g) {
    const float stored = to_f32(to_f16(scale[g]));
    if (!spec.has_zero) {
      scale[g] = stored;
      continue;
    }
    const float minimum = to_f32(to_f16((static_cast<float>(spec.low) - zero[g]) * scale[g]));
    if (stored == 0) {
      scale[g] = 0;
      continue;
    }
    scale[g] = stored;
    zero[g] = static_cast<float>(spec.low) - minimum / stored;
  }
}

void snap_zero_f16(std::span<float> scale, std::span<float> zero) {
  for (size_t g = 0; g < scale.size(); ++g) {
    scale[g] = to_f32(to_f16(scale[g]));
    zero[g] = to_f32(to_f16(zero[g]));
  }
}

// One unit for all of `scale`, each a multiple of it: -127 .. 127, or 1 .. 255.
void snap_to_multiples(std::span<float> scale, bool with_sign, bool f16_unit) {
  float largest = 0;
  for (const float s : scale) largest = std::max(largest, std::abs(s));
  const float exact = largest / (with_sign ? 127 : 255), unit = f16_unit ? to_f32(to_f16(exact)) : exact;
  for (float& s : scale) {
    if (unit == 0 || s == 0) s = 0;
    else s = unit * (with_sign ? round_clamped(s / unit, -127, 127) : round_clamped(s / unit, 1, 255));
  }
}

void snap_progressive(std::span<const float> row, const GridSpec& spec, std::span<float> scale,
                      std::span<float> zero) {
  float largest = 0;
  for (const float v : row) largest = std::max(largest, std::abs(v));
  const float unit = largest / 119;
  const auto low = static_cast<float>(spec.low), high = static_cast<float>(spec.high);
  for (size_t g = 0; g < scale.size(); ++g) {
    float multiple = unit > 0 ? round_clamped(scale[g] / unit, 1, 16) : 1;
    // The zero keeps the value that the lowest code stood for.
    const float first = (low - zero[g]) * scale[g];
    while (true) {
      zero[g] = unit > 0 ? round_clamped(low - first / (unit * multiple), low, high) : low;
      if ((high - zero[g]) * multiple <= 127 && (zero[g] - low) * multiple <= 128) break;
      --multiple;  // at 8 and below both always hold
    }
    scale[g] = unit * multiple;
  }
}

}  // namespace

void fit_row(std::span<const float> row, std::span<const float> importance, const GridSpec& spec,
             const FitOptions& options, std::span<float> scale, std::span<float> zero) {
  const auto cols = static_cast<int64_t>(row.size()), width = spec.columns(cols);
  std::vector<GroupGrid> fitted(scale.size());
  if (options.method == FitMethod::kHqq) {
    const int64_t whole = cols / width, rest = cols % width;
    fit_hqq(row.data(), whole, width, spec, options.hqq_iterations, fitted.data());
    if (rest != 0) fit_hqq(row.data() + whole * width, 1, rest, spec, options.hqq_iterations, &fitted.back());
  } else {
    for (int64_t g = 0, begin = 0; begin < cols; ++g, begin += width) {
      const int64_t n = std::min(width, cols - begin);
      const float* x = row.data() + begin;
      const float* weigh = importance.empty() ? nullptr : importance.data() + begin;
      fitted[static_cast<size_t>(g)] = options.method == FitMethod::kMse
                                           ? fit_mse(x, weigh, n, spec, options)
                                           : spanning(extremes(x, n, spec), spec, 1);
    }
  }
  for (size_t g = 0; g < fitted.size(); ++g) {
    scale[g] = fitted[g].scale;
    zero[g] = fitted[g].zero;
  }
  if (spec.scales == ScaleRule::kF16) snap_f16(spec, scale, zero);
  if (spec.scales == ScaleRule::kF16Zero) snap_zero_f16(scale, zero);
  if (spec.scales == ScaleRule::kRowTimesU8) snap_to_multiples(scale, false, false);
  if (spec.scales == ScaleRule::kProgressive) snap_progressive(row, spec, scale, zero);
  if (spec.scales == ScaleRule::kBlockTimesI8) {
    const auto block = static_cast<size_t>(256 / spec.group);
    for (size_t g = 0; g < scale.size(); g += block) {
      snap_to_multiples(scale.subspan(g, std::min(block, scale.size() - g)), true, true);
    }
  }
}

void round_row(std::span<const float> row, const GridSpec& spec, std::span<const float> scale,
               std::span<const float> zero, std::span<int8_t> levels) {
  const auto cols = static_cast<int64_t>(row.size()), width = spec.columns(cols);
  for (int64_t g = 0, begin = 0; begin < cols; ++g, begin += width) {
    const auto k = static_cast<size_t>(g);
    const float inverse = reciprocal(scale[k]);
    for (int64_t i = begin; i < std::min(begin + width, cols); ++i) {
      const auto at = static_cast<size_t>(i);
      levels[at] = static_cast<int8_t>(level_of(spec, row[at], inverse, zero[k]));
    }
  }
}

void read_row(std::span<const int8_t> levels, const GridSpec& spec, std::span<const float> scale,
              std::span<const float> zero, std::span<float> row) {
  const auto cols = static_cast<int64_t>(row.size()), width = spec.columns(cols);
  for (int64_t i = 0; i < cols; ++i) {
    const auto at = static_cast<size_t>(i), g = static_cast<size_t>(i / width);
    const int level = spec.high > 127 ? static_cast<uint8_t>(levels[at]) : levels[at];
    row[at] = scale[g] * (static_cast<float>(level) - zero[g]);
  }
}

}  // namespace oar::calibrate
