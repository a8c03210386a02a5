// The range of a value for which 8-bit integers are best spent, from samples of it: 256 steps of equal width
// over [low, high], 0 exact, what lies beyond taken for the nearer end. Wide ranges cost precision, narrow
// ones cut peaks. Two walks over the samples, in any order: extremes first, then counts in bins between them.
//
// Deterministic: the same samples in the same order give the same range.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace oar::calibrate {

enum class RangeMethod : uint8_t {
  kMinMax,      // what the samples reached: nothing is cut
  kPercentile,  // what all but one value of 20,000 at either end reached
  kMse,         // what loses least: squared rounding within the range and squared cuts beyond it
};
// "minmax", "percentile", "mse".
const char* range_method_name(RangeMethod m);
std::optional<RangeMethod> parse_range_method(std::string_view name);

struct ActivationRange {
  float low = 0, high = 0;  // low <= 0 <= high
};

class ActivationHistogram {
 public:
  // First walk: false where a value is not finite.
  bool add_extremes(std::span<const float> values);
  // Second walk, over the same samples.
  void add_counts(std::span<const float> values);

  // Of everything seen, 0 included. Needs the first walk, and the second but for kMinMax.
  ActivationRange range(RangeMethod method) const;

 private:
  // The loss of [low, high] per value, by the counts.
  double loss(double low, double high) const;
  double bin_width() const;

  ActivationRange extremes_;
  uint64_t zeros_ = 0;  // exact whatever the range: after a ReLU half of the values
  std::vector<uint64_t> bins_;
};

}  // namespace oar::calibrate
