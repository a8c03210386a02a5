// A small network over images, written as importers write one: types are found out, gradients taken.
#include "engine/graph/evaluate.h"
#include "engine/graph/passes/typed.h"
#include "tests/train/gradient_check.h"

namespace {
using namespace oar;
using Ints = std::vector<int64_t>;

struct Images {
  Graph graph;
  oar_test::Inputs inputs;
  std::vector<std::string> weights;
  std::mt19937 random{4};

  ValueId input(const std::string& name, Ints dims, bool weight, double low = -1, double high = 1) {
    HostValue v;
    v.shape = Shape(dims);
    v.f = oar_test::apart(v.shape.numel(), low, high, random);
    inputs[name] = v;
    if (weight) weights.push_back(name);
    return graph.add_input(name, TensorType::unknown());
  }
  ValueId op(const char* name, std::vector<ValueId> in, Attrs attrs = {}) {
    return graph.append(find_op(name), std::move(in), 1, std::move(attrs), {}, cat("node of ", name))[0];
  }
  std::map<std::string, TensorType> types() const {
    std::map<std::string, TensorType> out;
    for (const auto& [name, v] : inputs) out[name] = oar_test::type_of(v);
    return out;
  }
};

}  // namespace

TEST_CASE("a network over images that knew no types learns by gradients that equal differences") {
  Images n;
  ValueId x =
      n.op("conv",
           {n.input("x", {3, 1, 8, 8}, false), n.input("w1", {4, 1, 3, 3}, true), n.input("b1", {4}, true)},
           {{"pads", Ints{1, 1, 1, 1}}});
  x = n.op("batch_norm",
           {x, n.input("scale", {4}, true, 0.5, 1.5), n.input("shift", {4}, true),
            n.input("mean", {4}, false), n.input("variance", {4}, false, 0.5, 1)},
           {{"training_mode", int64_t{1}}});
  const ValueId kept = x;
  x = n.op("max_pool", {n.op("silu", {x})}, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}});
  x = n.op("conv", {x, n.input("w2", {4, 2, 3, 3}, true)}, {{"group", int64_t{2}}, {"strides", Ints{2, 2}}});
  x = n.op("add", {x, n.op("average_pool", {kept}, {{"kernel_shape", Ints{8, 8}}, {"strides", Ints{8, 8}}})});
  // Sizes as files compute them: (rows of x, -1).
  HostValue one;
  one.shape = Shape({1}), one.dtype = DType::kI64, one.i = {0};
  const ValueId zero = n.graph.add_constant("zero", *to_tensor(one));
  one.i = {-1};
  const ValueId rest = n.graph.add_constant("rest", *to_tensor(one));
  const ValueId rows = n.op("gather", {n.op("shape_of", {x}), zero});
  x = n.op("reshape", {x, n.op("concat", {rows, rest}, {{"axis", int64_t{0}}})});
  x = n.op("linear", {x, kNoValue, n.input("w3", {5, 4}, true), n.input("b3", {5}, true)});
  HostValue t;
  t.shape = Shape({3}), t.dtype = DType::kI64, t.i = {0, 4, 2};
  n.inputs["t"] = t;
  x = n.op("softmax_cross_entropy_loss", {x, n.graph.add_input("t", TensorType::unknown())});
  n.graph.add_output("L", x);

  const ValueId outputs[] = {x}, inputs[] = {*passes::find_value(n.graph, "w1")};
  CHECK(passes::grad(n.graph, outputs, inputs).status().message().find("typed()") != std::string::npos);
  CHECK(passes::typed(n.graph).status().message().find("'x'") != std::string::npos);
  const auto typed = passes::typed(n.graph, n.types());
  REQUIRE_OK(typed);
  CHECK(typed->to_string().find("shape_of") == std::string::npos);
  oar_test::check_gradients(*typed, n.inputs, n.weights, 2, 1e-7, 1e-4);

  Images branches;
  const ValueId parts = branches.graph.append(find_op("split"), {branches.input("x", {4, 2}, false)}, 2,
                                              {{"axis", int64_t{0}}})[1];
  branches.graph.add_output("L", parts);
  CHECK(passes::typed(branches.graph, branches.types()).status().code() == StatusCode::kUnimplemented);
}
