// Nodes of ordinary models bound to kernels: what one run bound serves the next with the same sizes, and
// sizes that are others are noticed.
#include <random>

#include "engine/graph/evaluate.h"
#include "engine/graph/pass.h"
#include "engine/import/import.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar_test;

namespace {

std::vector<Datum> image(int64_t height, int64_t width) {
  auto t = Tensor::allocate({1, 3, height, width}, Format::f32());
  REQUIRE_OK(t);
  std::mt19937 random(3);
  std::uniform_real_distribution<float> u(-1, 1);
  for (float& x : t->mutable_values<float>()) x = u(random);
  return {Datum(std::move(*t))};
}

struct Model {
  std::shared_ptr<Graph> graph;
  std::unique_ptr<const Evaluator> evaluator;

  explicit Model(const char* name) {
    auto model = import_model(source_path(std::string("tests/data/ocr/") + name));
    REQUIRE_OK(model);
    graph = model->graph;
    REQUIRE_OK(run_passes(*graph, tensor_passes(), {}));
    auto made = Evaluator::create(graph);
    REQUIRE_OK(made);
    evaluator = std::move(*made);
  }
  std::vector<float> run(const std::vector<Datum>& in, const BoundCalls* calls, BoundCalls* bound) const {
    EvalOptions options;
    options.calls = calls;
    options.bound = bound;
    auto out = evaluator->run(in, options);
    REQUIRE_OK(out);
    const auto values = (*out)[0].tensor.values<float>();
    return {values.begin(), values.end()};
  }
};

}  // namespace

TEST_CASE("bound calls: convolutions and layers are kernels, and later runs use what the first one bound") {
  for (const char* name : {"det", "rec", "cls"}) {
    INFO(name);
    const Model model(name);
    const std::vector<Datum> in = image(32, 96);
    BoundCalls bound(model.graph->nodes().size());
    const std::vector<float> first = model.run(in, nullptr, &bound);
    int kernels = 0, layers = 0;
    for (size_t i = 0; i < bound.size(); ++i) {
      const Node& n = model.graph->nodes()[i];
      kernels += bound[i] != nullptr && bound[i]->op != nullptr;
      layers += n.is("conv") || n.is("dense");
    }
    CHECK(layers > 3);
    CHECK(kernels >= layers - 1);  // the first convolution reads an image in planes

    BoundCalls again(bound.size());
    CHECK(model.run(in, &bound, &again) == first);
    for (size_t i = 0; i < bound.size(); ++i) CHECK(again[i] == bound[i]);
  }
}

TEST_CASE("bound calls: a call bound to other sizes is not used") {
  const Model model("det");
  BoundCalls small(model.graph->nodes().size()), rebound(small.size());
  model.run(image(32, 96), nullptr, &small);
  const std::vector<Datum> large = image(64, 64);
  const std::vector<float> expected = model.run(large, nullptr, nullptr);
  CHECK(model.run(large, &small, &rebound) == expected);
  int changed = 0;
  for (size_t i = 0; i < small.size(); ++i) changed += small[i] != rebound[i];
  CHECK(changed > 3);
}
