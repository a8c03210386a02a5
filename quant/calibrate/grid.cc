#include "quant/calibrate/grid.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "quant/dtype.h"

namespace oar::calibrate {
namespace {

constexpr float kMagic = 12582912.f;  // 1.5 * 2^23

struct GroupGrid {
  float scale = 0, zero = 0;
};

float round_clamped(float v, float low, float high) {
  v = v < low ? low : v;
  v = v > high ? high : v;
  return (v + kMagic) - kMagic;
}

// Sum of importance * error^2 of rounding x onto the grid. Plain loops over floats: the compiler vectorizes.
float squared_loss(const float* x, const float* importance, int64_t n, GroupGrid g, float low, float high) {
  const float inverse = reciprocal(g.scale);
  constexpr int kLanes = 8;
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) {
      const float q = round_clamped(x[i + k] * inverse + g.zero, low, high);
      const float e = x[i + k] - g.scale * (q - g.zero);
      sums[k] += (importance ? importance[i + k] : 1.f) * e * e;
    }
  }
  for (; i < n; ++i) {
    const float q = round_clamped(x[i] * inverse + g.zero, low, high);
    const float e = x[i] - g.scale * (q - g.zero);
    sums[0] += (importance ? importance[i] : 1.f) * e * e;
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

float power_loss(const float* x, const float* importance, int64_t n, GroupGrid g, float low, float high,
                 double norm) {
  if (norm == 2) return squared_loss(x, importance, n, g, low, high);
  const float inverse = reciprocal(g.scale);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float q = round_clamped(x[i] * inverse + g.zero, low, high);
    const double e = std::abs(static_cast<double>(x[i]) - static_cast<double>(g.scale) * (q - g.zero));
    sum += (importance ? static_cast<double>(importance[i]) : 1.0) * std::pow(e, norm);
  }
  return static_cast<float>(sum);
}

struct Extremes {
  float low = 0, high = 0;
};

Extremes extremes(const float* x, int64_t n, const GridSpec& spec) {
  Extremes e = spec.zero_in_range ? Extremes{} : Extremes{x[0], x[0]};
  for (int64_t i = 0; i < n; ++i) {
    e.low = std::min(e.low, x[i]);
    e.high = std::max(e.high, x[i]);
  }
  return e;
}

float farther_end(Extremes e) { return -e.low >= e.high ? e.low : e.high; }

// The grid on which [e.low, e.high], shrunk by `part`, just fits.
GroupGrid spanning(Extremes e, const GridSpec& spec, float part) {
  const auto low = static_cast<float>(spec.low), high = static_cast<float>(spec.high);
  if (!spec.has_zero) {
    // Levels reach farther down than up: with a free sign the farther end takes the longer side, otherwise
    // both ends must fit the shorter one.
    const float end = farther_end(e);
    return {end * part / (spec.signed_scale ? low : std::copysign(high, end)), 0};
  }
  const float scale = (e.high - e.low) * part / (high - low);
  if (!(scale > 0)) {
    // A constant group: one step away from zero says it exactly.
    return e.low == 0 ? GroupGrid{} : GroupGrid{e.low, low - 1};
  }
  // Shrinks towards the middle, so that both ends lose alike.
  const float first = (e.high + e.low) / 2 - (e.high - e.low) * part / 2;
  return {scale, low - first / scale};
}

GroupGrid fit_mse(const float* x, const float* importance, int64_t n, const GridSpec& spec,
                  const FitOptions& o) {
  const Extremes e = extremes(x, n, spec);
  const auto low = static_cast<float>(spec.low), high = static_cast<float>(spec.high);
  GroupGrid best = spanning(e, spec, 1);
  if (best.scale == 0 || e.low == e.high) return best;
  float least = std::numeric_limits<float>::infinity();
  const auto consider = [&](GroupGrid g) {
    const float loss = power_loss(x, importance, n, g, low, high, o.norm);
    if (!(loss < least)) return;
    least = loss;
    best = g;
  };
  const bool two_signs = spec.signed_scale && !spec.has_zero && spec.low != -spec.high;
  for (int step = 0; step <= o.shrink_steps; ++step) {
    const float part = 1 - 0.01f * static_cast<float>(step);
    consider(spanning(e, spec, part));
    if (two_signs) consider({farther_end(e) * part / high, 0});
  }
  return best;
}

// log2 and exp2 by polynomials, errors 3e-6 and 6e-5 relative, far below what the shrinkage needs: plain
// arithmetic that vectorizes, which std::pow does not. Arguments are normal and positive.
float fast_log2(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const float e = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  const float m = std::bit_cast<float>((bits & 0x007fffffu) | 0x3f800000u) - 1;
  // log2(1 + m) = m + m (1 - m) p(m), p by least squares at Chebyshev's points: error below 2.6e-6.
  const float p = 0.44252727f + m * (-0.27538621f + m * (0.1811542f + m * (-0.09481475f + m * 0.02528551f)));
  return e + m + m * (1 - m) * p;
}

float fast_exp2(float x) {
  x = std::clamp(x, -126.f, 126.f);
  const float rounded = (x + kMagic) - kMagic, f = x - rounded;
  const float p = 1 + f * (0.693147181f + f * (0.240226507f + f * (0.0555041087f + f * 0.00961812911f)));
  return p * std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(rounded) + 127) << 23);
}

// Half-quadratic quantization of one group. min |W - W'|_p^p with p = 0.7 is split by an auxiliary error E:
//   E <- shrink(W - W', beta),  shrink(e) = sign(e) max(|e| - |e|^(p-1) / beta, 0),  beta <- 1.01 beta
//   zero <- mean(q - (W - E) / scale), or, without a zero, scale <- <q, W - E> / <q, q>
// Errors are counted in units of the first scale, so that beta means the same for every layer. Ends when the
// mean |error| no longer falls; the best grid stays.
GroupGrid fit_hqq(const float* x, int64_t n, const GridSpec& spec, int iterations) {
  constexpr float kNorm = 0.7f, kGrowth = 1.01f;
  const auto low = static_cast<float>(spec.low), high = static_cast<float>(spec.high);
  const Extremes e = extremes(x, n, spec);
  GroupGrid g = spanning(e, spec, 1), best = g;
  if (g.scale == 0 || e.low == e.high) return g;
  const float unit = std::abs(g.scale), per_unit = 1 / unit;
  float beta = 10, least = std::numeric_limits<float>::infinity();
  for (int k = 0; k < iterations; ++k) {
    const float inverse = reciprocal(g.scale);
    float error = 0, zeros = 0, qx = 0, qq = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float q = round_clamped(x[i] * inverse + g.zero, low, high);
      const float d = (x[i] - g.scale * (q - g.zero)) * per_unit, magnitude = std::abs(d);
      error += magnitude;
      const float pull = fast_exp2((kNorm - 1) * fast_log2(std::max(magnitude, 1e-6f))) / beta;
      const float shrunk = std::copysign(std::max(magnitude - pull, 0.f), d) * unit;
      const float clean = x[i] - shrunk;
      zeros += q - clean * inverse;
      qx += q * clean;
      qq += q * q;
    }
    if (!(error < least)) break;
    least = error;
    best = g;
    if (spec.has_zero) g.zero = zeros / static_cast<float>(n);
    else if (qq > 0) g.scale = qx / qq;
    if (g.scale == 0) break;
    beta *= kGrowth;
  }
  return best;
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
    // The zero keeps the value that the lowest level stood for.
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
  for (int64_t g = 0, begin = 0; begin < cols; ++g, begin += width) {
    const int64_t n = std::min(width, cols - begin);
    const float* x = row.data() + begin;
    const float* weigh = importance.empty() ? nullptr : importance.data() + begin;
    GroupGrid fitted;
    if (options.method == FitMethod::kAbsMax) fitted = spanning(extremes(x, n, spec), spec, 1);
    else if (options.method == FitMethod::kMse) fitted = fit_mse(x, weigh, n, spec, options);
    else fitted = fit_hqq(x, n, spec, options.hqq_iterations);
    scale[static_cast<size_t>(g)] = fitted.scale;
    zero[static_cast<size_t>(g)] = fitted.zero;
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
