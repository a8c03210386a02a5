// Models of f32 computed in bf16 and 8-bit integers: results stay within bounds derived from the rounding of
// the operands; batches, threads and the cache change nothing.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/graph/passes/narrow_layers.h"
#include "tests/import/onnx_predictor.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar_test;

namespace {

std::unique_ptr<Predictor> open_with(const std::string& bytes, Precision precision, int threads = 1,
                                     bool explain = false) {
  PredictorOptions o;
  o.threads = threads;
  o.precision = precision;
  o.explain = explain;
  return open_test_model(bytes, o);
}

// The precisions that this processor computes.
std::vector<Precision> narrow_precisions() {
  std::vector<Precision> out = {Precision::kInt8};
  if (passes::has_products(calling_thread_backend(), Precision::kBf16)) out.push_back(Precision::kBf16);
  return out;
}

// One layer: y = conv(x, w) of 3x3 with pads 1, or y = x . w.
struct Layer {
  bool conv;
  int64_t C, M;
  int64_t taps() const { return conv ? 9 : 1; }
  std::vector<int64_t> x_dims(int64_t n) const {
    return conv ? std::vector<int64_t>{n, C, 9, 7} : std::vector<int64_t>{n, C};
  }
  Shape x_shape(int64_t n) const { return conv ? Shape{n, C, 9, 7} : Shape{n, C}; }
  std::string model(const std::vector<float>& w) const {
    const Proto node = conv ? node_proto("Conv", {"x", "w"}, {"y"}, {ints_attr("pads", {1, 1, 1, 1})})
                            : node_proto("MatMul", {"x", "w"}, {"y"});
    const Proto weight = conv ? tensor_proto("w", {M, C, 3, 3}, w) : tensor_proto("w", {C, M}, w);
    return model_bytes(graph_proto(
        {node}, {weight}, {value_proto("x", x_dims(-1))},
        {value_proto("y", conv ? std::vector<int64_t>{-1, M, 9, 7} : std::vector<int64_t>{-1, M})}));
  }
};

std::vector<float> absolute(std::vector<float> v) {
  for (float& e : v) e = std::abs(e);
  return v;
}

// Two convolutions that meet, an activation of each kind, a layer at the end.
std::string small_network() {
  const auto w = [](const char* name, const std::vector<int64_t>& dims, uint32_t seed) {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    auto v = random_floats(static_cast<size_t>(n), seed);
    for (float& e : v) e *= 0.2f;
    return tensor_proto(name, dims, v);
  };
  const std::vector<Proto> pads = {ints_attr("pads", {1, 1, 1, 1})};
  return model_bytes(
      graph_proto({node_proto("Conv", {"x", "w0", "b0"}, {"a"}, pads), node_proto("Relu", {"a"}, {"a1"}),
                   node_proto("Conv", {"a1", "w1"}, {"b"}, pads), node_proto("HardSwish", {"b"}, {"b1"}),
                   node_proto("Conv", {"b1", "w2"}, {"c"}), node_proto("Add", {"c", "a1"}, {"d"}),
                   node_proto("Sigmoid", {"d"}, {"d1"}), node_proto("GlobalAveragePool", {"d1"}, {"e"}),
                   node_proto("Flatten", {"e"}, {"f"}), node_proto("Gemm", {"f", "w3", "b3"}, {"y"})},
                  {w("w0", {32, 16, 3, 3}, 1), w("b0", {32}, 2), w("w1", {48, 32, 3, 3}, 3),
                   w("w2", {32, 48, 1, 1}, 4), w("w3", {32, 10}, 5), w("b3", {10}, 6)},
                  {value_proto("x", {-1, 16, 12, 11})}, {value_proto("y", {-1, 10})}));
}

}  // namespace

TEST_CASE("precision: the error of a layer is that of its rounded operands") {
  for (const Layer layer : {Layer{true, 20, 24}, Layer{true, 64, 17}, Layer{false, 100, 33}}) {
    const int64_t N = 3, K = layer.C * layer.taps();
    const auto w = random_floats(static_cast<size_t>(layer.M * K), 11);
    const Shape shape = layer.x_shape(N);
    const auto x = random_floats(static_cast<size_t>(shape.numel()), 12);
    const auto wanted = values(*open_with(layer.model(w), Precision::kF32), input(shape, x));
    // Sums of the operands' magnitudes, for the bounds.
    const auto sum_xw =
        values(*open_with(layer.model(absolute(w)), Precision::kF32), input(shape, absolute(x)));
    const auto sum_w = values(*open_with(layer.model(absolute(w)), Precision::kF32),
                              input(shape, std::vector<float>(x.size(), 1)));
    const auto sum_x = values(*open_with(layer.model(std::vector<float>(w.size(), 1)), Precision::kF32),
                              input(shape, absolute(x)));
    const float x_most = *std::max_element(x.begin(), x.end()),
                x_least = *std::min_element(x.begin(), x.end());
    const float w_most = *std::max_element(w.begin(), w.end()),
                w_least = *std::min_element(w.begin(), w.end());
    // Steps: the range of x over 255, of w over 127; the largest of all rows and filters.
    const float sx = (std::max(x_most, 0.f) - std::min(x_least, 0.f)) / 255;
    const float sw = std::max(w_most, -w_least) / 127;
    for (const Precision precision : narrow_precisions()) {
      INFO(precision_name(precision) << (layer.conv ? " conv" : " dense") << " K " << K);
      const auto p = open_with(layer.model(w), precision);
      CHECK(p->summary().find(std::string(precision_name(precision)) + ": 1 of 1 layers") !=
            std::string::npos);
      const auto y = values(*p, input(shape, x));
      REQUIRE(y.size() == wanted.size());
      double worst = 0;
      for (size_t k = 0; k < y.size(); ++k) {
        // bf16: each operand within 2^-8 of its value. int8: x within sx, w within sw / 2.
        // Both and the f32 results compared with: K additions in f32 (and Winograd's transforms).
        const double rounding = 1e-6 * K * static_cast<double>(sum_xw[k]) + 1e-5;
        const double bound = precision == Precision::kBf16
                                 ? (2 * 0x1p-8 + 0x1p-16) * static_cast<double>(sum_xw[k]) + rounding
                                 : static_cast<double>(sx * sum_w[k] + sw / 2 * sum_x[k] +
                                                       sx * sw / 2 * static_cast<float>(K)) +
                                       rounding;
        const double error = std::abs(static_cast<double>(y[k]) - static_cast<double>(wanted[k]));
        REQUIRE(error <= bound);
        worst = std::max(worst, error);
      }
      CHECK(worst > 1e-4);  // it does compute in fewer bits
    }
  }
}

TEST_CASE("precision: residuals, activations and layers of a network; batches and threads change nothing") {
  const std::string model = small_network();
  const Shape one{1, 16, 12, 11}, three{3, 16, 12, 11};
  const auto x = random_floats(static_cast<size_t>(three.numel()), 21);
  const auto wanted = values(*open_with(model, Precision::kF32), input(three, x));
  double norm = 0;
  for (float v : wanted) norm += static_cast<double>(v) * static_cast<double>(v);
  for (const Precision precision : narrow_precisions()) {
    INFO(precision_name(precision));
    const auto p = open_with(model, precision);
    INFO(p->summary());
    CHECK(p->summary().find(": 4 of 4 layers") != std::string::npos);
    const auto y = values(*p, input(three, x));
    double error = 0;
    for (size_t k = 0; k < y.size(); ++k) {
      const double d = static_cast<double>(y[k]) - static_cast<double>(wanted[k]);
      error += d * d;
    }
    // Four layers, each rounding its operands by at most 1 % of their norm (int8: a step of 1/127 of the
    // largest weight, 1/255 of the range).
    CHECK(std::sqrt(error / norm) < 0.04);
    CHECK(error > 0);
    CHECK(values(*open_with(model, precision, 3), input(three, x)) == y);
    for (size_t n = 0; n < 3; ++n) {
      const auto each = static_cast<size_t>(one.numel());
      const auto alone = values(*p, input(one, std::span(x).subspan(n * each, each)));
      CHECK(std::equal(alone.begin(), alone.end(), y.begin() + static_cast<ptrdiff_t>(n * 10)));
    }
  }
}

TEST_CASE("precision: what is not finite shows in the results") {
  const Layer layer{false, 64, 16};
  auto x = random_floats(128, 1);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  for (const Precision precision : narrow_precisions()) {
    const auto y = values(*open_with(layer.model(random_floats(64 * 16, 2)), precision), input({2, 64}, x));
    CHECK(std::all_of(y.begin(), y.begin() + 16, [](float v) { return std::isnan(v); }));
    CHECK(std::all_of(y.begin() + 16, y.end(), [](float v) { return std::isfinite(v); }));
  }
}

TEST_CASE("precision: what stays f32, and why") {
  const auto conv = [](int64_t M, int64_t C, int64_t group, float first = 0.5f) {
    auto w = random_floats(static_cast<size_t>(M * C / group * 9), 1);
    w[0] = first;
    return model_bytes(graph_proto({node_proto("Conv", {"x", "w"}, {"y"}, {int_attr("group", group)})},
                                   {tensor_proto("w", {M, C / group, 3, 3}, w)},
                                   {value_proto("x", {1, C, 8, 8})}, {value_proto("y", {1, M, 6, 6})}));
  };
  for (const auto& [model, reason] :
       {std::pair{conv(32, 32, 32), "there are groups"}, std::pair{conv(32, 3, 1), "the input is in planes"},
        std::pair{conv(4, 32, 1), "there are fewer than 8 filters"},
        std::pair{conv(32, 32, 1, 65505.f), "a weight is not finite, or beyond 65504"}}) {
    const auto p = open_with(model, Precision::kInt8, 1, true);
    INFO(p->summary());
    CHECK(p->summary().find("precision f32") != std::string::npos);
    bool said = false;
    for (const PassReport& r : p->passes()) {
      for (const Refusal& f : r.refusals)
        said = said || (r.name == "lower_precision" && f.reason.starts_with(reason));
    }
    CHECK(said);
  }
  CHECK_FALSE(parse_precision("fp16").ok());
  for (const char* name : {"f32", "bf16", "f16", "tf32", "int8"})
    CHECK(std::string(precision_name(*parse_precision(name))) == name);
}

TEST_CASE("precision: the cache holds each precision apart, with the same results") {
  const std::string folder = oar_test::temp_dir() + "/precision_cache";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/model.onnx";
  std::ofstream(path, std::ios::binary) << small_network();
  const Shape shape{1, 16, 12, 11};
  const Datum x = input(shape, random_floats(static_cast<size_t>(shape.numel()), 31));
  std::vector<Precision> all = narrow_precisions();
  all.push_back(Precision::kF32);
  for (const Precision precision : all) {
    PredictorOptions o;
    o.threads = 1, o.precision = precision;
    auto plain = Predictor::open(path, o);
    REQUIRE_OK(plain);
    o.cache_dir = folder;
    for (int load = 0; load < 2; ++load) {
      INFO(precision_name(precision) << " load " << load);
      auto p = Predictor::open(path, o);
      REQUIRE_OK(p);
      CHECK(values(**p, x) == values(**plain, x));
    }
  }
  size_t entries = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(folder + "/prepared")) ++entries;
  CHECK(entries == all.size());
}
