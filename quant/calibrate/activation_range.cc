#include "quant/calibrate/activation_range.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace oar::calibrate {
namespace {

// A bin is an eighth of a step of the whole range: fine enough to shrink the range by less than a step.
constexpr size_t kBins = 2048;
constexpr double kSteps = 255;
// kPercentile: the part of all values that may lie beyond either end.
constexpr double kBeyond = 1.0 / 20000;
// kMse: ranges of 1, 0.99 .. 0.10 of the extremes are tried.
constexpr int kShrinks = 90;

}  // namespace

const char* range_method_name(RangeMethod m) {
  return m == RangeMethod::kMinMax ? "minmax" : m == RangeMethod::kPercentile ? "percentile" : "mse";
}

std::optional<RangeMethod> parse_range_method(std::string_view name) {
  for (const RangeMethod m : {RangeMethod::kMinMax, RangeMethod::kPercentile, RangeMethod::kMse}) {
    if (name == range_method_name(m)) return m;
  }
  return std::nullopt;
}

bool ActivationHistogram::add_extremes(std::span<const float> values) {
  float low = extremes_.low, high = extremes_.high;
  int strange = 0;  // NaN compares with nothing, so that the bounds would not show it
  for (const float v : values) {
    low = v < low ? v : low;
    high = v > high ? v : high;
    strange |= !(std::abs(v) <= std::numeric_limits<float>::max());
  }
  extremes_ = {low, high};
  return strange == 0;
}

double ActivationHistogram::bin_width() const {
  return (static_cast<double>(extremes_.high) - static_cast<double>(extremes_.low)) /
         static_cast<double>(kBins);
}

void ActivationHistogram::add_counts(std::span<const float> values) {
  bins_.resize(kBins);
  const double width = bin_width();
  if (!(width > 0)) return;
  const auto inverse = static_cast<float>(1 / width);
  const float low = extremes_.low;
  uint64_t zeros = 0;
  for (const float v : values) {
    zeros += v == 0.f;
    // A range so narrow that 1 / width is infinite: NaN and what is too large count in the last bin.
    const float at = (v - low) * inverse;
    bins_[at < static_cast<float>(kBins) ? static_cast<size_t>(at) : kBins - 1] += v != 0.f;
  }
  zeros_ += zeros;
}

// A value within the range is off by a rounding, uniform over a step: step^2 / 12. Bins stand for their
// middles; those of exact zeros are not counted, since 0 has no error.
double ActivationHistogram::loss(double low, double high) const {
  const double width = bin_width(), step = (high - low) / kSteps, rounding = step * step / 12;
  double sum = 0;
  for (size_t b = 0; b < kBins; ++b) {
    if (bins_[b] == 0) continue;
    const double x = static_cast<double>(extremes_.low) + (static_cast<double>(b) + 0.5) * width;
    const double cut = x < low ? low - x : x > high ? x - high : 0;
    sum += static_cast<double>(bins_[b]) * (cut > 0 ? cut * cut : rounding);
  }
  return sum;
}

ActivationRange ActivationHistogram::range(RangeMethod method) const {
  if (method == RangeMethod::kMinMax || bins_.empty() || !(bin_width() > 0)) return extremes_;
  const auto low = static_cast<double>(extremes_.low), high = static_cast<double>(extremes_.high);
  if (method == RangeMethod::kMse) {
    double best = loss(low, high), part = 1;
    for (int k = 1; k <= kShrinks; ++k) {
      const double p = 1 - 0.01 * k, l = loss(p * low, p * high);
      if (l < best) best = l, part = p;
    }
    return {static_cast<float>(part * low), static_cast<float>(part * high)};
  }
  uint64_t all = zeros_;
  for (const uint64_t n : bins_) all += n;
  const auto most = static_cast<uint64_t>(static_cast<double>(all) * kBeyond);
  size_t first = 0, last = kBins;  // bins [first, last) stay
  for (uint64_t cut = 0; first < kBins && (cut += bins_[first]) <= most;) ++first;
  for (uint64_t cut = 0; last > first && (cut += bins_[last - 1]) <= most;) --last;
  const double width = bin_width();
  return {static_cast<float>(std::min(0.0, low + static_cast<double>(first) * width)),
          static_cast<float>(std::max(0.0, low + static_cast<double>(last) * width))};
}

}  // namespace oar::calibrate
