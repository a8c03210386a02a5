#include "quant/calibrate/group_fit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "quant/calibrate/for_each_isa.h"

namespace oar::calibrate {
namespace {

constexpr float kMagic = 12582912.f;  // 1.5 * 2^23: adding and subtracting it rounds to nearest even
constexpr float kInfinity = std::numeric_limits<float>::infinity();

OAR_BODY float round_clamped(float v, float low, float high) {
  v = v < low ? low : v;
  v = v > high ? high : v;
  return (v + kMagic) - kMagic;
}

float farther_end(Extremes e) { return -e.low >= e.high ? e.low : e.high; }

// ---- clip search

constexpr int kMaxSteps = 128, kMaxCandidates = 2 * kMaxSteps;

struct Candidates {
  const float *x, *importance;  // n each; importance may be null
  int64_t n;
  float low, high;  // codes
  // What fits: a range with its zero, or one end over the code that it takes, and over `other_level` too
  // where that is not 0.
  bool has_zero;
  Extremes range;
  float end, level, other_level;
  int steps, count;  // shrinking steps; candidates, rounded up to a multiple of 16
  alignas(64) float scale[kMaxCandidates], zero[kMaxCandidates], inverse[kMaxCandidates],
      loss[kMaxCandidates];
};

// As spanning(), for every step.
OAR_BODY void make_candidates(Candidates& c) {
  float part[kMaxSteps];
  for (int k = 0; k < c.steps; ++k) part[k] = 1 - 0.01f * static_cast<float>(k);
  if (c.has_zero) {
    const float length = c.range.high - c.range.low, sum = c.range.high + c.range.low;
    for (int k = 0; k < c.steps; ++k) {
      c.scale[k] = length * part[k] / (c.high - c.low);
      c.zero[k] = c.low - (sum / 2 - length * part[k] / 2) / c.scale[k];
    }
  } else {
    const bool two = c.other_level != 0;
    for (int k = 0; k < c.steps; ++k) c.scale[k] = c.end * part[k] / c.level;
    for (int k = 0; k < c.steps && two; ++k) c.scale[c.steps + k] = c.end * part[k] / c.other_level;
    for (int k = 0; k < c.count; ++k) c.zero[k] = 0;
  }
  const int real = c.has_zero || c.other_level == 0 ? c.steps : 2 * c.steps;
  for (int k = real; k < c.count; ++k) {  // to whole vectors
    c.scale[k] = c.scale[0];
    c.zero[k] = c.zero[0];
  }
  for (int k = 0; k < c.count; ++k) c.inverse[k] = c.scale[k] != 0 ? 1 / c.scale[k] : 0;
}

// loss[k] = sum of importance * error^2 of rounding x onto grid k.
OAR_BODY void squared_losses_body(Candidates& c) {
  make_candidates(c);
  const float low = c.low, high = c.high;
  const int count = c.count / 16 * 16;
  for (int k = 0; k < count; ++k) c.loss[k] = 0;
  for (int64_t i = 0; i < c.n; ++i) {
    const float x = c.x[i], weigh = c.importance != nullptr ? c.importance[i] : 1.f;
    for (int k = 0; k < count; ++k) {
      const float q = round_clamped(x * c.inverse[k] + c.zero[k], low, high);
      const float e = x - c.scale[k] * (q - c.zero[k]);
      c.loss[k] += weigh * (e * e);
    }
  }
}
OAR_FOR_EACH_ISA(squared_losses, squared_losses_body, Candidates)

void power_losses(Candidates& c, double norm) {
  make_candidates(c);
  for (int k = 0; k < c.count; ++k) {
    double sum = 0;
    for (int64_t i = 0; i < c.n; ++i) {
      const float q = round_clamped(c.x[i] * c.inverse[k] + c.zero[k], c.low, c.high);
      const double e = std::abs(static_cast<double>(c.x[i]) -
                                static_cast<double>(c.scale[k]) * static_cast<double>(q - c.zero[k]));
      sum += (c.importance != nullptr ? static_cast<double>(c.importance[i]) : 1.0) * std::pow(e, norm);
    }
    c.loss[k] = static_cast<float>(sum);
  }
}

// ---- half-quadratic

// log2 and exp2 by polynomials, errors 3e-6 and 6e-5 relative, far below what the shrinkage needs: plain
// arithmetic that vectorizes, which std::pow does not. log2 takes normal positive numbers, exp2 what is
// within +-126.
OAR_BODY float fast_log2(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  const auto e = static_cast<float>((bits >> 23) - 127);
  const float m = std::bit_cast<float>((bits & 0x007fffff) | 0x3f800000) - 1;
  // log2(1 + m) = m + m (1 - m) p(m), p by least squares at Chebyshev's points: error below 2.6e-6.
  const float p = 0.44252727f + m * (-0.27538621f + m * (0.1811542f + m * (-0.09481475f + m * 0.02528551f)));
  return e + m + m * (1 - m) * p;
}

OAR_BODY float fast_exp2(float x) {
  const float magic = x + kMagic, f = x - (magic - kMagic);
  const float p = 1 + f * (0.693147181f + f * (0.240226507f + f * (0.0555041087f + f * 0.00961812911f)));
  // The low bits of `magic` are the rounded x.
  const int32_t exponent = std::bit_cast<int32_t>(magic) - std::bit_cast<int32_t>(kMagic);
  return p * std::bit_cast<float>((exponent + 127) << 23);
}

constexpr int kGroups = 64;  // side by side; what they need stays in the first-level cache

struct Pass {
  const float* x;  // [n][kGroups]
  int64_t n;
  float low, high, per_beta;
  int count;  // of the groups, a multiple of 16
  alignas(64) float scale[kGroups], zero[kGroups], inverse[kGroups], unit[kGroups], per_unit[kGroups];
  alignas(64) float error[kGroups], zeros[kGroups], qx[kGroups], qq[kGroups];
};

// One iteration's sums over each group: of |error|, of the zeros that would be best, of q clean and q q.
OAR_BODY void hqq_sums_body(Pass& p) {
  constexpr float kNorm = 0.7f;
  const float low = p.low, high = p.high, per_beta = p.per_beta;
  const int count = p.count / 16 * 16;
  for (int k = 0; k < count; ++k) p.error[k] = p.zeros[k] = p.qx[k] = p.qq[k] = 0;
  for (int64_t i = 0; i < p.n; ++i) {
    const float* row = p.x + i * kGroups;
    for (int k = 0; k < count; ++k) {
      const float x = row[k];
      const float q = round_clamped(x * p.inverse[k] + p.zero[k], low, high);
      const float d = (x - p.scale[k] * (q - p.zero[k])) * p.per_unit[k];
      const float magnitude = std::abs(d), bounded = magnitude < 1e-6f ? 1e-6f : magnitude;
      p.error[k] += magnitude;
      const float rest = magnitude - fast_exp2((kNorm - 1) * fast_log2(bounded)) * per_beta;
      const float clean = x - std::copysign(rest < 0 ? 0.f : rest, d) * p.unit[k];
      p.zeros[k] += q - clean * p.inverse[k];
      p.qx[k] += q * clean;
      p.qq[k] += q * q;
    }
  }
}
OAR_FOR_EACH_ISA(hqq_sums, hqq_sums_body, Pass)

void fit_hqq_side_by_side(const float* values, int count, int64_t n, const GridSpec& spec, int iterations,
                          std::vector<float>& scratch, GroupGrid* out) {
  constexpr float kGrowth = 1.01f;
  scratch.assign(static_cast<size_t>(n) * kGroups, 0.f);
  for (int k = 0; k < count; ++k) {
    for (int64_t i = 0; i < n; ++i) scratch[static_cast<size_t>(i * kGroups + k)] = values[k * n + i];
  }
  Pass p = {scratch.data(),        n, static_cast<float>(spec.low), static_cast<float>(spec.high), 0,
            (count + 15) / 16 * 16};
  float least[kGroups];
  bool moving[kGroups];
  for (int k = 0; k < count; ++k) {
    const Extremes e = extremes(values + k * n, n, spec);
    out[k] = spanning(e, spec, 1);
    moving[k] = out[k].scale != 0 && e.low != e.high;
    p.scale[k] = out[k].scale;
    p.zero[k] = out[k].zero;
    p.unit[k] = std::abs(out[k].scale);
    p.per_unit[k] = reciprocal(p.unit[k]);
    least[k] = kInfinity;
  }
  float beta = 10;
  for (int step = 0; step < iterations && std::find(moving, moving + count, true) != moving + count; ++step) {
    for (int k = 0; k < p.count; ++k) p.inverse[k] = reciprocal(p.scale[k]);
    p.per_beta = 1 / beta;
    hqq_sums(p);
    for (int k = 0; k < count; ++k) {
      moving[k] = moving[k] && p.error[k] < least[k];
      if (!moving[k]) continue;
      least[k] = p.error[k];
      out[k] = {p.scale[k], p.zero[k]};
      if (spec.has_zero) p.zero[k] = p.zeros[k] / static_cast<float>(n);
      else if (p.qq[k] > 0) p.scale[k] = p.qx[k] / p.qq[k];
      moving[k] = p.scale[k] != 0;
    }
    beta *= kGrowth;
  }
}

}  // namespace

Extremes extremes(const float* x, int64_t n, const GridSpec& spec) {
  Extremes e = spec.zero_in_range ? Extremes{} : Extremes{x[0], x[0]};
  for (int64_t i = 0; i < n; ++i) {
    e.low = std::min(e.low, x[i]);
    e.high = std::max(e.high, x[i]);
  }
  return e;
}

GroupGrid spanning(Extremes e, const GridSpec& spec, float part) {
  const auto low = static_cast<float>(spec.low), high = static_cast<float>(spec.high);
  if (!spec.has_zero) {
    // Codes reach farther down than up: with a free sign the farther end takes the longer side, otherwise
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
  const GroupGrid whole = spanning(e, spec, 1);
  if (whole.scale == 0 || e.low == e.high) return whole;
  const bool two_signs = spec.signed_scale && !spec.has_zero && spec.low != -spec.high;
  Candidates c;
  c.x = x;
  c.importance = importance;
  c.n = n;
  c.low = static_cast<float>(spec.low);
  c.high = static_cast<float>(spec.high);
  c.has_zero = spec.has_zero;
  c.range = e;
  c.end = farther_end(e);
  c.level = spec.signed_scale ? c.low : std::copysign(c.high, c.end);
  c.other_level = two_signs ? c.high : 0;
  c.steps = std::min(o.shrink_steps + 1, kMaxSteps);
  const int real = (two_signs ? 2 : 1) * c.steps;
  c.count = (real + 15) / 16 * 16;
  if (o.norm == 2) squared_losses(c);
  else power_losses(c, o.norm);
  float least = kInfinity;
  GroupGrid best = whole;
  for (int k = 0; k < real; ++k) {
    if (!(c.loss[k] < least)) continue;
    least = c.loss[k];
    best = {c.scale[k], c.zero[k]};
  }
  return best;
}

// min |W - W'|_p^p with p = 0.7 is split by an auxiliary error E:
//   E <- shrink(W - W', beta),  shrink(e) = sign(e) max(|e| - |e|^(p-1) / beta, 0),  beta <- 1.01 beta
//   zero <- mean(q - (W - E) / scale), or, without a zero, scale <- <q, W - E> / <q, q>
// Errors are counted in units of the first scale, so that beta means the same for every layer. Ends when the
// mean |error| no longer falls; the best grid stays.
void fit_hqq(const float* x, int64_t count, int64_t n, const GridSpec& spec, int iterations, GroupGrid* out) {
  std::vector<float> scratch;
  for (int64_t k = 0; k < count; k += kGroups) {
    const int some = static_cast<int>(std::min<int64_t>(kGroups, count - k));
    fit_hqq_side_by_side(x + k * n, some, n, spec, iterations, scratch, out + k);
  }
}

}  // namespace oar::calibrate
