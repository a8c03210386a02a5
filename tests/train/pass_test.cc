// Gradients as a pass: what a graph looks like behind it, what is refused and how, graphs at random, and a
// small network that learns.
#include <set>

#include "engine/graph/pass.h"
#include "engine/graph/run.h"
#include "tests/support/sample.h"
#include "tests/train/gradient_check.h"

namespace {
using namespace oar;

HostValue numbers(std::vector<int64_t> dims, std::mt19937& random, double low = -1, double high = 1) {
  HostValue v;
  v.shape = Shape(dims);
  std::uniform_real_distribution<double> u(low, high);
  for (int64_t k = 0; k < v.shape.numel(); ++k) v.f.push_back(u(random));
  return v;
}

// Two layers and the cross-entropy of four classes.
struct Network {
  Graph graph;
  oar_test::Inputs inputs;
  std::vector<std::string> weights{"w1", "b1", "w2", "b2"};
  explicit Network(int64_t rows = 12) {
    std::mt19937 random(5);
    Builder b(graph);
    const auto input = [&](const std::string& name, std::vector<int64_t> dims) {
      inputs[name] = numbers(std::move(dims), random);
      return Val{graph.add_input(name, oar_test::type_of(inputs[name]))};
    };
    const Val x = input("x", {rows, 3}), w1 = input("w1", {16, 3}), b1 = input("b1", {16}),
              w2 = input("w2", {4, 16}), b2 = input("b2", {4});
    HostValue t;
    t.shape = Shape({rows}), t.dtype = DType::kI32;
    for (int64_t k = 0; k < rows; ++k)
      t.i.push_back(inputs["x"].f[static_cast<size_t>(3 * k)] > 0 ? (k % 2) : 2 + k % 2);
    inputs["t"] = t;
    const Val targets{graph.add_input("t", oar_test::type_of(t))};
    const Val h = b.op("relu", {b.op("linear", {x, Val{}, w1, b1})});
    const Val L = b.op("softmax_cross_entropy_loss", {b.op("linear", {h, Val{}, w2, b2}), targets});
    REQUIRE_OK(b.status());
    graph.add_output("L", L.id);
  }
  Result<Graph> differentiated(const passes::GradOptions& options = {}) const {
    std::vector<ValueId> ids;
    for (const std::string& w : weights) ids.push_back(*passes::find_value(graph, w));
    const ValueId outputs[] = {*passes::find_value(graph, "L")};
    return passes::grad(graph, outputs, ids, options);
  }
};

}  // namespace

TEST_CASE("a network of two layers learns its batch in f32 and in f64, with passes and without") {
  Network n;
  oar_test::check_gradients(n.graph, n.inputs, n.weights, 2, 1e-7, 1e-5);  // far from relu's kinks
  auto g = n.differentiated();
  REQUIRE_OK(g);
  Graph fused = *g;
  REQUIRE_OK(run_passes(fused, default_passes(), {}));
  const auto backend =
      make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 2}), best_isa());
  const auto program = Program::create(fused, *backend, {});
  REQUIRE_OK(program);
  const auto run = Run::create(*program);
  REQUIRE_OK(run);
  oar_test::Inputs wide = n.inputs, narrow = n.inputs;
  double loss = 0;
  for (int step = 0; step < 300; ++step) {
    const auto at = evaluate_reference(*g, wide);
    REQUIRE_OK(at);
    loss = at->at("L").f[0];
    std::vector<Tensor> tensors;
    std::vector<const void*> bytes;
    for (const ValueId id : (*program)->graph().inputs()) {
      const auto t = to_tensor(narrow.at((*program)->graph().value(id).name));
      REQUIRE_OK(t);
      tensors.push_back(*t), bytes.push_back(tensors.back().data());
    }
    REQUIRE_OK((*run)->run({}, bytes));
    for (size_t k = 0; k < fused.outputs().size(); ++k) {
      const std::string& name = fused.outputs()[k].name;
      std::vector<float> v(static_cast<size_t>((*run)->output(k).numel()));
      REQUIRE_OK((*run)->read_output(k, v));
      // A step of 0.3 over at most 300 steps of 2^-24 each, and what steps in between make of it.
      for (size_t i = 0; i < v.size() && step < 20; ++i)
        CHECK(std::abs(at->at(name).f[i] - static_cast<double>(v[i])) < 1e-4);
      if (name == "L") continue;
      const std::string w = name.substr(5);
      for (size_t i = 0; i < v.size(); ++i) {
        narrow[w].f[i] -= 0.3 * static_cast<double>(v[i]);
        wide[w].f[i] -= 0.3 * at->at(name).f[i];
      }
    }
  }
  CHECK(loss < 0.05);
}

TEST_CASE("the graph keeps its values, outputs and composites, and prints, plans and differentiates again") {
  Network n;
  const auto g = n.differentiated();
  REQUIRE_OK(g);
  REQUIRE(g->outputs().size() == 5);
  CHECK(g->outputs()[0].name == "L");
  CHECK(g->outputs()[0].value == n.graph.outputs()[0].value);
  CHECK(g->outputs()[1].name == "grad/w1");
  CHECK(g->outputs()[4].name == "grad/b2");
  size_t relus = 0;
  for (const Node& node : g->nodes()) relus += node.is("relu");
  CHECK(relus == 1);
  CHECK(g->to_string().find("grad/w2") != std::string::npos);
  // Replaced first, where nobody keeps them.
  const auto plain = n.differentiated({.keep = [](const Node&) { return false; }});
  REQUIRE_OK(plain);
  for (const Node& node : plain->nodes()) CHECK(node.op->define == nullptr);
  const auto a = evaluate_reference(*g, n.inputs), b = evaluate_reference(*plain, n.inputs);
  REQUIRE_OK(a);
  REQUIRE_OK(b);
  for (const auto& [name, v] : *a) {
    for (size_t k = 0; k < v.f.size(); ++k) CHECK(std::abs(v.f[k] - b->at(name).f[k]) < 1e-12);
  }
  // The same graph every time.
  CHECK(n.differentiated()->to_string() == g->to_string());
}

TEST_CASE("seeds weigh outputs, several outputs add up, and what nobody depends on has zeros") {
  Graph graph;
  Builder b(graph);
  std::mt19937 random(2);
  oar_test::Inputs inputs{
      {"x", numbers({3}, random)}, {"y", numbers({3}, random)}, {"s", numbers({3}, random)}};
  std::map<std::string, Val> v;
  for (const auto& [name, value] : inputs) v[name] = {graph.add_input(name, oar_test::type_of(value))};
  const Val square = b.op("square", {v["x"]}), cube = b.op("mul", {square, v["x"]}),
            steps = b.op("floor", {v["y"]});
  const ValueId outputs[] = {square.id, cube.id, steps.id}, wanted[] = {v["x"].id, v["y"].id, square.id};
  const auto g = passes::grad(graph, outputs, wanted, {.seeds = {kNoValue, v["s"].id, kNoValue}});
  REQUIRE_OK(g);
  const auto at = evaluate_reference(*g, inputs);
  REQUIRE_OK(at);
  for (size_t k = 0; k < 3; ++k) {
    const double x = inputs["x"].f[k], s = inputs["s"].f[k];
    // The square is an input too, so nothing passes through it.
    CHECK(at->at("grad/x").f[k] == Approx(s * x * x));
    CHECK(at->at("grad/y").f[k] == 0);
    CHECK(at->at(cat("grad/%", square.id)).f[k] == Approx(1 + s * x));
  }
}

TEST_CASE("a gradient that does not exist is refused with the op, the node and the input that wanted it") {
  Graph graph;
  Builder b(graph);
  const TensorType four{Format::f32(), {Dim(4)}}, square{Format::f32(), {Dim(2), Dim(2)}};
  const Val x{graph.add_input("x", square)}, other{graph.add_input("other", square)};
  const Val i{graph.add_input("i", {Format::i32(), {Dim(4)}})};
  const Val d = b.op("det", {b.op("mul", {x, other})});
  REQUIRE_OK(b.status());
  graph.nodes().back().name = "volume";
  const ValueId outputs[] = {d.id}, wanted[] = {x.id}, integers[] = {i.id}, beyond[] = {1000};
  const auto refused = passes::grad(graph, outputs, wanted);
  CHECK(refused.status().code() == StatusCode::kUnimplemented);
  for (const char* part : {"det", "'volume'", "'x'"})
    CHECK(refused.status().message().find(part) != std::string::npos);
  CHECK(refused.status().message().find("'other'") == std::string::npos);
  CHECK(passes::grad(graph, outputs, integers).status().message().find("i32[4]") != std::string::npos);
  CHECK_FALSE(passes::grad(graph, outputs, beyond).ok());
  CHECK_FALSE(passes::grad(graph, outputs, {}).ok());
  CHECK_FALSE(passes::grad(graph, wanted, wanted, {.seeds = {i.id}}).ok());
  CHECK_FALSE(passes::grad(graph, wanted, wanted, {.seeds = {x.id, x.id}}).ok());
  const auto once = passes::grad(graph, wanted, wanted);
  REQUIRE_OK(once);
  CHECK(passes::grad(*once, wanted, wanted).status().message().find("grad/x") != std::string::npos);
  CHECK(passes::find_value(graph, "nobody").status().code() == StatusCode::kNotFound);
}

namespace {

// 30 ops of a graph, from `seed`.
void check_random_graph(unsigned seed, int order) {
  INFO("graph " << seed);
  std::mt19937 random(seed);
  const auto choose = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  // All smooth, so that no difference crosses a kink; ranges stay small.
  const char* const unary[] = {"tanh",     "sigmoid", "sin",  "cos",     "erf",
                               "softplus", "gelu",    "silu", "softmax", "neg"};
  Graph graph;
  Builder b(graph);
  oar_test::Inputs inputs;
  std::vector<Val> values;  // (3, 4) or what broadcasts to it
  std::vector<std::string> wanted;
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{3, 4}, {3, 4}, {4}, {3, 1}, {4, 4}}) {
    const std::string name = cat("x", inputs.size());
    inputs[name] = numbers(dims, random);
    wanted.push_back(name);
    values.push_back({graph.add_input(name, oar_test::type_of(inputs[name]))});
  }
  const Val matrix = values.back();
  values.pop_back();
  for (int node = 0; node < 30; ++node) {
    const Val x = values[choose(values.size())], y = values[choose(values.size())];
    const bool whole = b.shape(x).size() == 2 && b.dim(x, 1) == Dim(4);
    switch (choose(7)) {
      case 0: values.push_back(b.op("tanh", {b.op("add", {x, y})})); break;
      case 1: values.push_back(b.op("mul", {x, y})); break;
      case 2: values.push_back(b.op("div", {x, b.op("add", {b.op("square", {y}), b.scalar(1)})})); break;
      case 3:
        values.push_back(whole ? b.op("tanh", {b.op("matmul", {x, matrix})}) : b.op("sub", {x, y}));
        break;
      case 4:
        values.push_back(whole ? b.op("reduce_mean", {x}, {{"axes", std::vector<int64_t>{1}}})
                               : b.op("sin", {x}));
        break;
      default: values.push_back(b.op(unary[choose(std::size(unary))], {x}));
    }
  }
  Val sum;  // of all, so that no node is dead
  for (size_t k = values.size() - 30; k < values.size(); ++k) {
    const Val part = b.op("reduce_sum", {b.op("sin", {values[k]})}, {{"keepdims", int64_t{0}}});
    sum = sum ? b.op("add", {sum, part}) : part;
  }
  REQUIRE_OK(b.status());
  graph.add_output("L", sum.id);
  oar_test::check_gradients(graph, inputs, wanted, order, 1e-6);
}

}  // namespace

TEST_CASE("random graphs have the gradients that differences say") {
  oar_test::Sample sample(7);
  for (unsigned seed = 0; seed < 200; ++seed) {
    if (sample.take()) check_random_graph(seed, seed % 10 == 0 ? 2 : 1);
  }
}
TEST_CASE("ten thousand random graphs have the gradients that differences say", "[graphs]") {
  oar_test::Sample sample(101);
  for (unsigned seed = 1000; seed < 11000; ++seed) {
    if (sample.take()) check_random_graph(seed, seed % 10 == 0 ? 2 : 1);
  }
}
