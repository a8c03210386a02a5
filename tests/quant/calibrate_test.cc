// The quantizers against independent numpy implementations (make_calibrate_goldens.py).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <sstream>

#include "engine/base/json.h"
#include "quant/calibrate/channel_scales.h"
#include "quant/calibrate/descent.h"
#include "quant/calibrate/gptq.h"
#include "quant/calibrate/grid.h"
#include "quant/calibrate/grid_format.h"
#include "quant/dtype.h"
#include "tests/support/catch.h"

using namespace oar;
using namespace oar::calibrate;

namespace {

struct Golden {
  json::object o;
  int64_t rows, cols, samples, group;
  std::vector<float> weights, inputs, hessian, importance;

  Golden() {
    std::ifstream file(std::string(OAR_SOURCE_DIR) + "/tests/quant/calibrate_golden.json");
    std::stringstream text;
    text << file.rdbuf();
    o = parse_json(text.str(), "golden").value().as_object();
    rows = o["rows"].to_number<int64_t>();
    cols = o["cols"].to_number<int64_t>();
    samples = o["samples"].to_number<int64_t>();
    group = o["group"].to_number<int64_t>();
    for (double v : numbers("weights")) weights.push_back(static_cast<float>(v));
    for (double v : numbers("inputs")) inputs.push_back(static_cast<float>(v));
    for (int64_t i = 0; i < cols; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        double sum = 0;
        for (int64_t t = 0; t < samples; ++t) sum += double{x(t, i)} * double{x(t, j)};
        hessian.push_back(static_cast<float>(sum));
        if (i == j) importance.push_back(static_cast<float>(sum / static_cast<double>(samples)));
      }
    }
  }
  float x(int64_t t, int64_t j) const { return inputs[static_cast<size_t>(t * cols + j)]; }
  std::vector<double> numbers(const char* key) const {
    std::vector<double> out;
    for (const auto& v : o.at(key).as_array()) out.push_back(v.to_number<double>());
    return out;
  }
  std::span<const float> row(int64_t r) const {
    return std::span(weights).subspan(static_cast<size_t>(r * cols), static_cast<size_t>(cols));
  }
  size_t groups() const { return static_cast<size_t>(cols / group); }
};

// Everything a grid makes of the golden's weights.
struct Fitted {
  std::vector<float> scale, zero, read;
  std::vector<int8_t> levels;
};

Fitted fit(const Golden& g, const GridSpec& spec, const FitOptions& options,
           std::span<const float> importance = {}) {
  Fitted f;
  const size_t cols = static_cast<size_t>(g.cols), n = static_cast<size_t>(spec.groups(g.cols));
  f.scale.resize(static_cast<size_t>(g.rows) * n);
  f.zero.resize(f.scale.size());
  f.levels.resize(g.weights.size());
  f.read.resize(g.weights.size());
  for (size_t r = 0; r < static_cast<size_t>(g.rows); ++r) {
    const auto scale = std::span(f.scale).subspan(r * n, n), zero = std::span(f.zero).subspan(r * n, n);
    const auto levels = std::span(f.levels).subspan(r * cols, cols);
    fit_row(g.row(static_cast<int64_t>(r)), importance, spec, options, scale, zero);
    round_row(g.row(static_cast<int64_t>(r)), spec, scale, zero, levels);
    read_row(levels, spec, scale, zero, std::span(f.read).subspan(r * cols, cols));
  }
  return f;
}

// Loss of each group, in double.
std::vector<double> losses(const Golden& g, const Fitted& f, double norm,
                           std::span<const float> importance = {}) {
  std::vector<double> out(static_cast<size_t>(g.rows) * g.groups());
  for (size_t i = 0; i < g.weights.size(); ++i) {
    const size_t column = i % static_cast<size_t>(g.cols);
    const double e = std::abs(double{g.weights[i]} - double{f.read[i]});
    out[i / static_cast<size_t>(g.group)] +=
        std::pow(e, norm) * (importance.empty() ? 1.0 : double{importance[column]});
  }
  return out;
}

// A search in f32 may prefer a neighbour whose loss is equal to 7 digits.
void check_losses(const std::vector<double>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(want[i]).epsilon(1e-4));
}

}  // namespace

TEST_CASE("rounding to the extremes' grid") {
  const Golden g;
  const Fitted sym = fit(g, {.group = g.group}, {.method = FitMethod::kAbsMax});
  const std::vector<double> want = g.numbers("absmax_levels");
  for (size_t i = 0; i < want.size(); ++i) CHECK(sym.levels[i] == want[i]);
  const Fitted asym =
      fit(g, {.low = 0, .high = 15, .has_zero = true, .group = g.group}, {.method = FitMethod::kAbsMax});
  const std::vector<double> want_asym = g.numbers("asym_levels");
  for (size_t i = 0; i < want_asym.size(); ++i) CHECK(asym.levels[i] == want_asym[i]);
}

TEST_CASE("the clip search finds what an exhaustive one finds") {
  const Golden g;
  const GridSpec sym{.group = g.group}, signed_scale{.signed_scale = true, .group = g.group},
      asym{.low = 0, .high = 15, .has_zero = true, .group = g.group};
  check_losses(losses(g, fit(g, sym, {}), 2), g.numbers("mse_sym"));
  check_losses(losses(g, fit(g, signed_scale, {}), 2), g.numbers("mse_signed"));
  check_losses(losses(g, fit(g, asym, {}), 2), g.numbers("mse_asym"));
  check_losses(losses(g, fit(g, sym, {.norm = 2.4}), 2.4), g.numbers("mse_norm24"));
  const Fitted weighted = fit(g, signed_scale, {}, g.importance);
  check_losses(losses(g, weighted, 2, g.importance), g.numbers("mse_weighted"));
}

TEST_CASE("half-quadratic quantization") {
  const Golden g;
  const GridSpec asym{.low = 0, .high = 15, .has_zero = true, .group = g.group};
  check_losses(losses(g, fit(g, asym, {.method = FitMethod::kHqq}), 1), g.numbers("hqq_asym"));
  // Without a zero it is the scale that moves; it must not lose against the extremes in the norm it
  // minimizes.
  const GridSpec sym{.signed_scale = true, .group = g.group};
  const auto hqq = losses(g, fit(g, sym, {.method = FitMethod::kHqq}), 1),
             absmax = losses(g, fit(g, sym, {.method = FitMethod::kAbsMax}), 1);
  for (size_t i = 0; i < hqq.size(); ++i) CHECK(hqq[i] <= absmax[i] * (1 + 1e-6));
}

TEST_CASE("error feedback takes the levels of the paper's formulation") {
  const Golden g;
  const GridSpec spec{.group = g.group};
  const Fitted grid = fit(g, spec, {.method = FitMethod::kAbsMax});
  std::vector<float> difference(g.weights.size());
  for (size_t i = 0; i < difference.size(); ++i) difference[i] = g.weights[i] - grid.read[i];
  const double rounding = output_error(difference, g.rows, g.hessian, g.cols);
  for (const bool order : {false, true}) {
    const std::string name = order ? "gptq_act_order" : "gptq";
    GptqFactor factor;
    REQUIRE(gptq_factor(g.hessian, g.cols, {.activation_order = order}, factor));
    std::vector<int8_t> levels(g.weights.size());
    gptq_rows(g.weights, g.rows, spec, grid.scale, grid.zero, factor, levels);
    const std::vector<double> want = g.numbers((name + "_levels").c_str());
    for (size_t i = 0; i < want.size(); ++i) CHECK(levels[i] == want[i]);
    std::vector<float> read(static_cast<size_t>(g.cols));
    for (int64_t r = 0; r < g.rows; ++r) {
      const size_t at = static_cast<size_t>(r * g.cols), n = g.groups(), s = static_cast<size_t>(r) * n;
      read_row(std::span(levels).subspan(at, read.size()), spec, std::span(grid.scale).subspan(s, n),
               std::span(grid.zero).subspan(s, n), read);
      for (size_t j = 0; j < read.size(); ++j) difference[at + j] = g.weights[at + j] - read[j];
    }
    const double error = output_error(difference, g.rows, g.hessian, g.cols);
    CHECK(error == Approx(g.o.at(name + "_error").to_number<double>()).epsilon(1e-4));
    CHECK(error < rounding);
  }
}

TEST_CASE("the factor of the inverse, over several blocks and any split of the work") {
  for (const int64_t n : {31, 33, 150}) {
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    std::vector<float> samples(static_cast<size_t>(3 * n * n)), hessian(static_cast<size_t>(n * n));
    for (float& x : samples) x = normal(rng);
    const auto at = [n](int64_t i, int64_t j) { return static_cast<size_t>(i * n + j); };
    for (int64_t t = 0; t < 3 * n; ++t) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) hessian[at(i, j)] += samples[at(t, i)] * samples[at(t, j)];
      }
    }
    GptqFactor factor, split;
    REQUIRE(gptq_factor(hessian, n, {}, factor));
    // Backwards, one at a time.
    const Parallel backwards = [](int64_t count, const auto& fn) {
      while (count-- > 0) fn(count, count + 1);
    };
    REQUIRE(gptq_factor(hessian, n, {.parallel = backwards}, split));
    CHECK(split.upper == factor.upper);
    // U^T U (H + damping) = 1. Entries of U are rounded to f32, 2^-24 of each, in both factors; times the
    // condition number of H, ((1 + 1 / sqrt 3) / (1 - 1 / sqrt 3))^2 = 14 for three times as many samples as
    // columns (20 for so few), times sqrt(n) independent roundings.
    double worst = 0;
    for (int64_t a = 0; a < n; ++a) {
      std::vector<double> inverse(static_cast<size_t>(n));
      for (int64_t l = 0; l <= a; ++l) {
        const float* u = triangle_row(factor.upper.data(), n, l);
        for (int64_t k = l; k < n; ++k)
          inverse[static_cast<size_t>(k)] += static_cast<double>(u[a]) * static_cast<double>(u[k]);
      }
      for (int64_t b = 0; b < n; ++b) {
        double sum = a == b ? -1 : 0;
        for (int64_t k = 0; k < n; ++k) {
          const double h = static_cast<double>(
              hessian[at(factor.order[static_cast<size_t>(k)], factor.order[static_cast<size_t>(b)])]);
          sum += inverse[static_cast<size_t>(k)] * (h + (k == b ? factor.damping : 0));
        }
        worst = std::max(worst, std::fabs(sum));
      }
    }
    CHECK(worst < 20 * 2 * std::ldexp(1.0, -24) * std::sqrt(static_cast<double>(n)));
  }
}

TEST_CASE("descent on levels: from anywhere down to where no single level improves") {
  const Golden g;
  const auto n = static_cast<size_t>(g.cols);
  GptqFactor factor;
  REQUIRE(gptq_factor(g.hessian, g.cols, {}, factor));
  for (const GridSpec& spec : {GridSpec{.group = g.group}, GridSpec{.signed_scale = true, .group = g.group},
                               GridSpec{.low = 0, .high = 15, .has_zero = true, .group = g.group}}) {
    const Fitted grid = fit(g, spec, {});
    std::vector<int8_t> feedback(g.weights.size());
    gptq_rows(g.weights, g.rows, spec, grid.scale, grid.zero, factor, feedback);
    // d (H + damping) d^T of one row, in double.
    const auto loss = [&](size_t row, std::span<const int8_t> levels) {
      std::vector<float> read(n);
      const size_t s = row * g.groups();
      read_row(levels, spec, std::span(grid.scale).subspan(s, g.groups()),
               std::span(grid.zero).subspan(s, g.groups()), read);
      double sum = 0;
      for (size_t i = 0; i < n; ++i) {
        const double d = static_cast<double>(g.weights[row * n + i]) - static_cast<double>(read[i]);
        for (size_t j = 0; j < n; ++j) {
          const double e = static_cast<double>(g.weights[row * n + j]) - static_cast<double>(read[j]);
          sum += d * e * (static_cast<double>(g.hessian[i * n + j]) + (i == j ? factor.damping : 0));
        }
      }
      return sum;
    };
    double gained = 0;
    for (const std::vector<int8_t>& start : {grid.levels, feedback}) {
      std::vector<int8_t> levels = start;
      descend_rows(g.weights, g.rows, spec, grid.scale, grid.zero, g.hessian, g.cols,
                   {.damping = factor.damping, .sweeps = 100}, levels);
      for (size_t r = 0; r < static_cast<size_t>(g.rows); ++r) {
        const auto row = std::span(levels).subspan(r * n, n);
        const double before = loss(r, std::span(start).subspan(r * n, n)), after = loss(r, row);
        CHECK(after <= before * (1 + 1e-5));
        gained += before - after;
        for (size_t j = 0; j < n; ++j) {
          const int8_t chosen = row[j];
          for (const int other : {chosen - 1, chosen + 1}) {
            if (other < spec.low || other > spec.high) continue;
            row[j] = static_cast<int8_t>(other);
            CHECK(loss(r, row) >= after * (1 - 1e-5));
          }
          row[j] = chosen;
        }
      }
    }
    CHECK(gained > 0);
  }
}

TEST_CASE("error feedback copes with odd Hessians") {
  GptqFactor factor;
  const std::vector<float> zero(16, 0.f), rank_one(16, 1.f);
  CHECK(gptq_factor(zero, 4, {}, factor));  // nobody ever used the layer
  CHECK(gptq_factor(rank_one, 4, {.damping = 1e-12}, factor));
  CHECK(factor.damping > 0);
  std::vector<float> bad(16, 1.f);
  bad[5] = NAN;
  CHECK_FALSE(gptq_factor(bad, 4, {}, factor));
  bad[5] = INFINITY;
  CHECK_FALSE(gptq_factor(bad, 4, {}, factor));
}

TEST_CASE("channel scales") {
  const Golden g;
  const size_t cols = static_cast<size_t>(g.cols);
  std::vector<float> magnitude(cols), input_max(cols), weight_max(cols);
  for (size_t j = 0; j < cols; ++j) {
    for (int64_t t = 0; t < g.samples; ++t) {
      magnitude[j] += std::abs(g.x(t, static_cast<int64_t>(j))) / static_cast<float>(g.samples);
      input_max[j] = std::max(input_max[j], std::abs(g.x(t, static_cast<int64_t>(j))));
    }
    for (int64_t r = 0; r < g.rows; ++r) weight_max[j] = std::max(weight_max[j], std::abs(g.row(r)[j]));
  }
  const std::vector<double> want = g.numbers("awq_losses");
  size_t step = 0;
  const ChannelScales best = awq_scales(magnitude, 20, [&](std::span<const float> scale) {
    Golden scaled = g;
    for (size_t i = 0; i < scaled.weights.size(); ++i) scaled.weights[i] *= scale[i % cols];
    const Fitted f = fit(scaled, {.group = g.group}, {.method = FitMethod::kAbsMax});
    std::vector<float> difference(f.read.size());
    for (size_t i = 0; i < difference.size(); ++i) {
      difference[i] = f.read[i] / scale[i % cols] - g.weights[i];
    }
    const double loss = output_error(difference, g.rows, g.hessian, g.cols);
    CHECK(loss == Approx(want[step++]).epsilon(1e-3));
    return loss;
  });
  CHECK(step == 20);
  const auto least = std::min_element(want.begin(), want.end());
  CHECK(best.exponent == Approx(static_cast<double>(least - want.begin()) / 20));
  const std::vector<float> smooth = smoothquant_scales(input_max, weight_max, 0.5);
  const std::vector<double> want_smooth = g.numbers("smoothquant");
  for (size_t j = 0; j < cols; ++j) CHECK(smooth[j] == Approx(want_smooth[j]).epsilon(1e-5));
}

TEST_CASE("grids hold what their format can store") {
  const Golden g;
  const GridSpec two_level{.group = g.group, .scales = ScaleRule::kRowTimesU8};
  const Fitted f = fit(g, two_level, {});
  for (int64_t r = 0; r < g.rows; ++r) {
    const float *s = f.scale.data() + r * 2, unit = std::max(s[0], s[1]) / 255;
    for (int k = 0; k < 2; ++k) CHECK(s[k] / unit == Approx(std::round(s[k] / unit)).margin(1e-4));
  }
  const GridSpec progressive{.low = 0,
                             .high = 15,
                             .has_zero = true,
                             .zero_in_range = true,
                             .group = g.group,
                             .scales = ScaleRule::kProgressive};
  const Fitted p = fit(g, progressive, {});
  for (size_t k = 0; k < p.scale.size(); ++k) {
    float largest = 0;
    for (const float w : g.row(static_cast<int64_t>(k / g.groups())))
      largest = std::max(largest, std::abs(w));
    const float multiple = p.scale[k] / (largest / 119), zero = p.zero[k];
    CHECK(multiple == Approx(std::round(multiple)).margin(1e-4));
    CHECK(zero == std::round(zero));
    CHECK(std::round(multiple) * (15 - zero) <= 127);  // the integers of level one fit int8
    CHECK(std::round(multiple) * zero <= 128);
  }
  const Fitted half = fit(g, {.group = g.group, .scales = ScaleRule::kF16}, {});
  for (const float s : half.scale) CHECK(to_f32(to_f16(s)) == s);
}

TEST_CASE("degenerate groups") {
  for (const FitMethod method : {FitMethod::kAbsMax, FitMethod::kMse, FitMethod::kHqq}) {
    for (const bool has_zero : {false, true}) {
      const GridSpec spec{.low = has_zero ? 0 : -8,
                          .high = has_zero ? 15 : 7,
                          .has_zero = has_zero,
                          .signed_scale = !has_zero,
                          .group = 4};
      std::vector<float> row{0, 0, 0, 0, 3, 3, 3, 3, -2, -2}, read(10);  // the last group is short
      std::vector<float> scale(3), zero(3);
      std::vector<int8_t> levels(10);
      fit_row(row, {}, spec, {.method = method}, scale, zero);
      round_row(row, spec, scale, zero, levels);
      read_row(levels, spec, scale, zero, read);
      for (size_t i = 0; i < row.size(); ++i) CHECK(read[i] == Approx(row[i]));
    }
  }
}

TEST_CASE("formats read back what a quantizer chose") {
  const Golden g;
  std::vector<float> row(256), importance;
  for (size_t i = 0; i < row.size(); ++i) row[i] = g.weights[i % g.weights.size()];
  int tested = 0;
  for (const FormatInfo* info : all_formats()) {
    const Format format(info);
    const GridFormat* grid = find_grid_format(format);
    if (grid == nullptr) continue;
    INFO(format.name());
    ++tested;
    for (const FitMethod method : {FitMethod::kAbsMax, FitMethod::kMse, FitMethod::kHqq}) {
      const auto groups = static_cast<size_t>(grid->spec.groups(256));
      std::vector<float> scale(groups), zero(groups), want(256), got(256);
      std::vector<int8_t> levels(256);
      fit_row(row, importance, grid->spec, {.method = method}, scale, zero);
      round_row(row, grid->spec, scale, zero, levels);
      read_row(levels, grid->spec, scale, zero, want);
      std::vector<std::byte> bytes(static_cast<size_t>(*format.row_bytes(256)));
      grid->pack(levels, scale, zero, bytes.data());
      format.decode_row(bytes.data(), 256, got.data());
      // zero * scale is stored rounded where a minimum is: 2^-11 of it.
      for (size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i] == Approx(want[i]).margin(std::abs(row[i]) * 2e-6 + 1e-7));
      }
    }
  }
  CHECK(tested == 14);
}
