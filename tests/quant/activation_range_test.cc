// Ranges of activations: against what the methods promise, computed here from the values themselves.
#include <algorithm>
#include <cmath>
#include <limits>

#include "quant/calibrate/activation_range.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

using namespace oar;
using namespace oar::calibrate;

namespace {

ActivationHistogram histogram_of(std::span<const float> values, size_t chunk = 1 << 30) {
  ActivationHistogram h;
  const auto each = [&](auto&& f) {
    for (size_t k = 0; k < values.size(); k += chunk)
      f(values.subspan(k, std::min(chunk, values.size() - k)));
  };
  each([&](std::span<const float> v) { CHECK(h.add_extremes(v)); });
  each([&](std::span<const float> v) { h.add_counts(v); });
  return h;
}

// The squared error of rounding every value to one of 256 steps over the range, 0 exact.
double squared_error(std::span<const float> values, ActivationRange r) {
  const double scale = (static_cast<double>(r.high) - static_cast<double>(r.low)) / 255;
  const double zero = std::nearbyint(-static_cast<double>(r.low) / scale);
  double sum = 0;
  for (const float v : values) {
    const double q = std::clamp(std::nearbyint(static_cast<double>(v) / scale) + zero, 0.0, 255.0);
    const double d = static_cast<double>(v) - (q - zero) * scale;
    sum += d * d;
  }
  return sum;
}

// Sums of uniform numbers: most values near 0, a few far out.
std::vector<float> bell(size_t n, uint32_t seed) {
  std::vector<float> out(n);
  for (uint32_t k = 0; k < 12; ++k) {
    const auto part = oar_test::random_floats(n, seed + k);
    for (size_t i = 0; i < n; ++i) out[i] += part[i];
  }
  return out;
}

}  // namespace

TEST_CASE("activation range: extremes reach every value, and 0") {
  for (const auto method : {RangeMethod::kMinMax, RangeMethod::kPercentile, RangeMethod::kMse}) {
    INFO(range_method_name(method));
    CHECK(parse_range_method(range_method_name(method)) == method);
    const std::vector<float> above = {3, 4, 5}, zeros(10, 0.f);
    const ActivationRange r = histogram_of(above).range(method), z = histogram_of(zeros).range(method);
    CHECK(r.low == 0);
    CHECK(r.high > 0);
    CHECK((z.low == 0 && z.high == 0));
    const ActivationRange none = ActivationHistogram().range(method);
    CHECK((none.low == 0 && none.high == 0));
  }
  const auto r = histogram_of(std::vector<float>{-1, 7, 2}).range(RangeMethod::kMinMax);
  CHECK((r.low == -1 && r.high == 7));
  CHECK_FALSE(parse_range_method("entropy"));
}

TEST_CASE("activation range: one value far out does not cost the others their steps") {
  auto values = bell(40000, 1);
  values[7] = 500;
  const auto h = histogram_of(values, 999);
  const ActivationRange all = h.range(RangeMethod::kMinMax), part = h.range(RangeMethod::kPercentile),
                        best = h.range(RangeMethod::kMse);
  CHECK(all.high == 500);
  // A bin is 0.25 wide here; all but two values at either end stay.
  CHECK(part.high < 10);
  const auto beyond =
      std::count_if(values.begin(), values.end(), [&](float v) { return v > part.high || v < part.low; });
  CHECK(beyond <= 4);
  // What the loss promises: no range of the same centre does better by more than the bins blur.
  const double least = squared_error(values, best);
  for (double p = 0.02; p <= 1; p += 0.02) {
    const ActivationRange tried{static_cast<float>(p * static_cast<double>(all.low)),
                                static_cast<float>(p * static_cast<double>(all.high))};
    if (p >= 0.1) CHECK(squared_error(values, tried) >= 0.9 * least);
  }
}

TEST_CASE("activation range: the least squared error, of values after a ReLU too") {
  auto values = bell(60000, 30);
  for (const bool relu : {false, true}) {
    if (relu)
      std::replace_if(
          values.begin(), values.end(), [](float v) { return v < 0; }, 0.f);
    const auto h = histogram_of(values, 1000);
    const double mse = squared_error(values, h.range(RangeMethod::kMse)),
                 extremes = squared_error(values, h.range(RangeMethod::kMinMax));
    CHECK(mse < extremes);
    const ActivationRange all = h.range(RangeMethod::kMinMax);
    for (double p = 0.2; p <= 1; p += 0.01) {
      const ActivationRange tried{static_cast<float>(p * static_cast<double>(all.low)),
                                  static_cast<float>(p * static_cast<double>(all.high))};
      // The model of uniform roundings and 2048 bins against the values themselves: a few hundredths.
      REQUIRE(squared_error(values, tried) >= 0.95 * mse);
    }
  }
}

TEST_CASE("activation range: order and pieces do not matter, what is not finite is told") {
  auto values = bell(10000, 50);
  const auto whole = histogram_of(values), pieces = histogram_of(values, 77);
  std::reverse(values.begin(), values.end());
  const auto turned = histogram_of(values);
  for (const auto method : {RangeMethod::kMinMax, RangeMethod::kPercentile, RangeMethod::kMse}) {
    for (const auto& other : {pieces, turned}) {
      CHECK(whole.range(method).low == other.range(method).low);
      CHECK(whole.range(method).high == other.range(method).high);
    }
  }
  ActivationHistogram h;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  CHECK_FALSE(h.add_extremes(std::vector<float>{1, nan}));
  CHECK_FALSE(h.add_extremes(std::vector<float>{-inf}));
  // Widest and narrowest ranges that there are.
  const float most = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::denorm_min();
  for (const auto& v : {std::vector<float>{-most, most, 1}, std::vector<float>{least, 0, 2 * least}}) {
    const auto r = histogram_of(v).range(RangeMethod::kMse);
    CHECK((std::isfinite(r.low) && std::isfinite(r.high) && r.low <= 0 && r.high >= 0));
  }
}
