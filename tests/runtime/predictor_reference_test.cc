// The same model at two levels of the processor: its best kernels, and the scalar ones with sums in double
// (PredictorOptions::reference). Whatever the kernels do with layouts, packing and tiles, results must agree.
#include <algorithm>
#include <cmath>
#include <random>

#include "engine/runtime/predictor.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar_test;

namespace {

// Extents that a model leaves open: one image of 32 x 96.
Shape concrete(const IoSpec& spec) {
  const int64_t open[] = {1, 3, 32, 96};
  std::vector<int64_t> dims;
  for (size_t k = 0; k < spec.dims.size(); ++k)
    dims.push_back(spec.dims[k].value > 0 ? spec.dims[k].value : open[std::min<size_t>(k, 3)]);
  return Shape(std::span<const int64_t>(dims));
}

std::vector<Datum> random_inputs(const Predictor& p) {
  std::mt19937 random(11);
  std::uniform_real_distribution<float> u(-1, 1);
  std::vector<Datum> in;
  for (const IoSpec& spec : p.inputs()) {
    auto t = Tensor::allocate(concrete(spec), Format::f32());
    REQUIRE_OK(t);
    for (float& x : t->mutable_values<float>()) x = u(random);
    in.emplace_back(std::move(*t));
  }
  return in;
}

}  // namespace

TEST_CASE("ordinary models: the reference level agrees with the best one") {
  size_t rounded_otherwise = 0;
  for (const char* name :
       {"det", "det.onnx", "rec", "cls", "conv_bn", "conv_bn_relu", "conv_bn_hard_swish"}) {
    INFO(name);
    const std::string path = source_path(std::string("tests/data/ocr/") + name);
    PredictorOptions options;
    options.threads = 2;
    const auto best = Predictor::open(path, options);
    options.reference = true;
    const auto reference = Predictor::open(path, options);
    REQUIRE_OK(best);
    REQUIRE_OK(reference);
    const std::vector<Datum> in = random_inputs(**best);
    const auto a = (*best)->run(in), b = (*reference)->run(in);
    REQUIRE_OK(a);
    REQUIRE_OK(b);
    REQUIRE(a->size() == b->size());
    for (size_t k = 0; k < a->size(); ++k) {
      REQUIRE((*a)[k].tensor.shape() == (*b)[k].tensor.shape());
      const auto x = (*a)[k].tensor.values<float>(), y = (*b)[k].tensor.values<float>();
      float worst = 0, scale = 1;
      for (size_t i = 0; i < x.size(); ++i) {
        worst = std::max(worst, std::abs(x[i] - y[i]));
        scale = std::max(scale, std::abs(y[i]));
        rounded_otherwise += x[i] != y[i];
      }
      // Sums of up to 4,608 products in f32 over some twenty layers, and Winograd's share.
      CHECK(worst / scale < 2e-4f);
    }
  }
  // Not twice the same kernels.
  CHECK(rounded_otherwise > 0);
}
