// Nodes of ordinary models bound to kernels: what one run bound serves the next with the same sizes, and
// sizes that are others are noticed.
#include <random>

#include "engine/graph/evaluate.h"
#include "engine/graph/pass.h"
#include "engine/import/import.h"
#include "tests/import/onnx_predictor.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
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
      layers += n.is("conv") || n.is("linear");
    }
    CHECK(layers > 3);
    CHECK(kernels >= layers);

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

TEST_CASE("bound calls: a loop's body is bound once for all of its trips") {
  const Proto body =
      graph_proto({node_proto("MatMul", {"v", "w"}, {"p"}), node_proto("Identity", {"go"}, {"go_out"})},
                  {tensor_proto("w", {3, 3}, {0, 1, 0, 0, 0, 1, 1, 0, 0})},
                  {value_proto("i", {}, 7), value_proto("go", {}, 9), value_proto("v", {-1, 3})},
                  {name_proto("go_out"), name_proto("p")});
  ImportedModel model = import_test_model(model_bytes(
      graph_proto({node_proto("Loop", {"n", "", "x"}, {"y"}, {graph_attr("body", body)})},
                  {ints_proto("n", {1000})}, {value_proto("x", {-1, 3})}, {value_proto("y", {-1, 3})})));
  REQUIRE_OK(run_passes(*model.graph, tensor_passes(), {}));
  const auto evaluator = Evaluator::create(model.graph);
  REQUIRE_OK(evaluator);
  const auto run = [&](const Shape& shape, std::vector<float> v) {
    auto out = (*evaluator)->run({input(shape, v)}, {});
    REQUIRE_OK(out);
    const auto got = (*out)[0].tensor.values<float>();
    return std::vector<float>(got.begin(), got.end());
  };
  // The permutation's cube is the identity, and 1,000 leaves one more.
  CHECK(run({1, 3}, {1, 2, 3}) == std::vector<float>{3, 1, 2});
  CHECK((*evaluator)->bindings() == 1);
  run({1, 3}, {4, 5, 6});
  CHECK((*evaluator)->bindings() == 1);
  CHECK(run({2, 3}, {1, 2, 3, 4, 5, 6}) == std::vector<float>{3, 1, 2, 6, 4, 5});
  CHECK((*evaluator)->bindings() == 2);
}

TEST_CASE("bound calls: what follows an op whose size depends on values runs as kernels") {
  // The images whose flag is not zero.
  const std::vector<float> w(4 * 3 * 3 * 3, 0.25f);
  ImportedModel model = import_test_model(model_bytes(
      graph_proto({node_proto("NonZero", {"flags"}, {"at"}), node_proto("Squeeze", {"at", "axis"}, {"rows"}),
                   node_proto("Gather", {"x", "rows"}, {"some"}),
                   node_proto("Conv", {"some", "w"}, {"a"},
                              {ints_attr("kernel_shape", {3, 3}), ints_attr("pads", {1, 1, 1, 1})}),
                   node_proto("Relu", {"a"}, {"b"}), node_proto("GlobalAveragePool", {"b"}, {"y"})},
                  {tensor_proto("w", {4, 3, 3, 3}, w), ints_proto("axis", {0})},
                  {value_proto("flags", {-1}), value_proto("x", {-1, 3, 8, 8})}, {name_proto("y")})));
  REQUIRE_OK(run_passes(*model.graph, tensor_passes(), {}));
  const auto evaluator = Evaluator::create(model.graph);
  REQUIRE_OK(evaluator);
  // Both counts again: what was bound for them is found.
  uint64_t after_two = 0;
  for (const std::vector<float>& flags : {std::vector<float>{0, 1, 1}, std::vector<float>{1, 0, 0},
                                          std::vector<float>{1, 1, 0}, std::vector<float>{0, 0, 1}}) {
    BoundCalls bound(model.graph->nodes().size());
    EvalOptions options;
    options.bound = &bound;
    const std::vector<float> x(3 * 3 * 8 * 8, 1);
    const auto out = (*evaluator)->run({input({3}, flags), input({3, 3, 8, 8}, x)}, options);
    REQUIRE_OK(out);
    CHECK((*out)[0].tensor.shape()[0] == std::count(flags.begin(), flags.end(), 1));
    int kernels = 0;
    for (size_t i = 0; i < bound.size(); ++i) {
      const Node& n = model.graph->nodes()[i];
      if (!n.is("conv") && !n.is("global_average_pool")) continue;
      CHECK(bound[i] != nullptr);
      kernels += bound[i] != nullptr && bound[i]->op != nullptr;
    }
    CHECK(kernels == 2);
    if (flags[0] == 1 && flags[1] == 0) after_two = (*evaluator)->bindings();
  }
  CHECK((*evaluator)->bindings() == after_two);
}

namespace {

// A model behind its passes, run alone and with what it was bound to.
struct Bound {
  std::shared_ptr<Graph> graph;
  std::unique_ptr<const Evaluator> evaluator;
  BoundCalls calls;

  Bound(const std::string& bytes, Precision precision) {
    graph = import_test_model(bytes).graph;
    REQUIRE_OK(run_passes(*graph, tensor_passes(precision, calling_thread_backend()), {}));
    auto made = Evaluator::create(graph);
    REQUIRE_OK(made);
    evaluator = std::move(*made);
  }
  Result<std::vector<Datum>> run(std::vector<Datum> in) {
    calls.assign(graph->nodes().size(), nullptr);
    EvalOptions options;
    options.bound = &calls;
    return evaluator->run(std::move(in), options);
  }
  // The kernels that node `op` is bound to.
  std::vector<KernelFamily> families(std::string_view op) const {
    std::vector<KernelFamily> out;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (!graph->nodes()[i].is(op) || calls[i] == nullptr) continue;
      for (const BoundCall::Launch& l : calls[i]->launches) out.push_back(l.op->kernel()->family);
    }
    return out;
  }
};

std::vector<float> some(int64_t n, uint32_t seed) { return random_floats(static_cast<size_t>(n), seed); }

}  // namespace

TEST_CASE("bound calls: images of a large batch go through Winograd's kernel in groups, bits as alone") {
  constexpr int64_t kChannels = 64, kSide = 56, kImages = 5;  // two images a group
  const std::string bytes = model_bytes(
      graph_proto({node_proto("Conv", {"x", "w", "b"}, {"y"},
                              {ints_attr("kernel_shape", {3, 3}), ints_attr("pads", {1, 1, 1, 1})})},
                  {tensor_proto("w", {kChannels, kChannels, 3, 3}, some(kChannels * kChannels * 9, 1)),
                   tensor_proto("b", {kChannels}, some(kChannels, 2))},
                  {value_proto("x", {-1, kChannels, kSide, kSide})}, {name_proto("y")}));
  Bound model(bytes, Precision::kF32);
  const int64_t image = kChannels * kSide * kSide;
  const std::vector<float> x = some(kImages * image, 3);
  const auto all = model.run({input({kImages, kChannels, kSide, kSide}, x)});
  REQUIRE_OK(all);
  if (calling_thread_backend().find_kernel({KernelFamily::kWinograd}) != nullptr)
    CHECK(model.families("conv") == std::vector<KernelFamily>(3, KernelFamily::kWinograd));
  for (int64_t n = 0; n < kImages; ++n) {
    const auto one = model.run(
        {input({1, kChannels, kSide, kSide}, {x.begin() + n * image, x.begin() + (n + 1) * image})});
    REQUIRE_OK(one);
    const auto got = (*all)[0].tensor.values<float>(), alone = (*one)[0].tensor.values<float>();
    CHECK(std::equal(alone.begin(), alone.end(), got.begin() + n * image));
  }
}

TEST_CASE("bound calls: layers in fewer bits and recurrent ones are two kernels each") {
  const std::string conv =
      model_bytes(graph_proto({node_proto("Conv", {"x", "w"}, {"c"}), node_proto("Relu", {"c"}, {"y"})},
                              {tensor_proto("w", {32, 32, 1, 1}, some(32 * 32, 1))},
                              {value_proto("x", {-1, 32, 9, 7})}, {name_proto("y")}));
  Bound narrow(conv, Precision::kInt8);
  const auto y = narrow.run({input({2, 32, 9, 7}, some(2 * 32 * 63, 2))});
  REQUIRE_OK(y);
  CHECK(narrow.families("conv") ==
        std::vector<KernelFamily>{KernelFamily::kNarrow, KernelFamily::kQuantizedConv});

  const auto lstm = [](bool lengths) {
    std::vector<Proto> inputs{value_proto("x", {-1, -1, 6})};
    if (lengths) inputs.push_back(value_proto("l", {-1}, 6));
    return model_bytes(graph_proto(
        {node_proto("LSTM", {"x", "w", "r", "", lengths ? "l" : ""}, {"y"}, {int_attr("hidden_size", 4)})},
        {tensor_proto("w", {1, 16, 6}, some(96, 3)), tensor_proto("r", {1, 16, 4}, some(64, 4))}, inputs,
        {name_proto("y")}));
  };
  const std::vector<float> x = some(5 * 2 * 6, 5);
  Bound plain(lstm(false), Precision::kF32);
  const auto whole = plain.run({input({5, 2, 6}, x)});
  REQUIRE_OK(whole);
  CHECK(plain.families("lstm") == std::vector<KernelFamily>{KernelFamily::kConv, KernelFamily::kRecurrent});
  // No step, and no entry.
  for (const Shape& shape : {Shape({0, 2, 6}), Shape({5, 0, 6})}) {
    const auto none = plain.run({input(shape, {})});
    REQUIRE_OK(none);
    CHECK((*none)[0].tensor.numel() == 0);
  }

  Bound cut(lstm(true), Precision::kF32);
  const auto lengths = [](std::vector<int32_t> v) {
    Tensor t = must(allocate_elements({static_cast<int64_t>(v.size())}, DType::kI32));
    std::copy(v.begin(), v.end(), mutable_elements<int32_t>(t));
    return Datum(std::move(t));
  };
  const auto part = cut.run({input({5, 2, 6}, x), lengths({5, 3})});
  REQUIRE_OK(part);
  const auto all = (*whole)[0].tensor.values<float>(), got = (*part)[0].tensor.values<float>();
  for (size_t k = 0; k < got.size(); ++k) {  // (step, direction, entry, value)
    const bool beyond = k / 8 >= 3 && k / 4 % 2 == 1;
    CHECK(got[k] == (beyond ? 0.f : all[k]));
  }
  for (const std::vector<int32_t>& bad : {std::vector<int32_t>{6, 3}, std::vector<int32_t>{5, -1}}) {
    const auto refused = cut.run({input({5, 2, 6}, x), lengths(bad)});
    CHECK(refused.status().code() == StatusCode::kInvalidArgument);
    CHECK(refused.status().message().find("is outside of [0, 5]") != std::string::npos);
  }
  const auto few = cut.run({input({5, 2, 6}, x), lengths({5})});
  CHECK(few.status().message().find("lengths must be 2 integers") != std::string::npos);
}
