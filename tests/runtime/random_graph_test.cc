// Random models, run in ways that must agree: with passes and without, by the best kernels, by the scalar
// ones and by evaluation alone, for the first time and with what the first run left behind; and, with types,
// as a Program, whose extents are numbers or symbols.
#include <cmath>
#include <map>
#include <optional>

#include "engine/graph/run.h"
#include "tests/import/onnx_predictor.h"
#include "tests/import/random_model.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"

using namespace oar;
using namespace oar_test;

namespace {

std::vector<Datum> random_inputs(RandomModel& model) {
  std::vector<Datum> in;
  for (const auto& dims : model.inputs()) {
    const Shape shape{std::span<const int64_t>(dims)};
    in.push_back(input(shape, model.floats(shape.numel())));
  }
  return in;
}

// Empty, or how far results are apart.
std::string difference(const std::vector<Datum>& a, const std::vector<Datum>& b, double allowed) {
  if (a.size() != b.size()) return "another number of results";
  for (size_t k = 0; k < a.size(); ++k) {
    if (!(a[k].tensor.shape() == b[k].tensor.shape()))
      return cat("result ", k, " is ", a[k].to_string(), " and ", b[k].to_string());
    const auto x = a[k].tensor.values<float>(), y = b[k].tensor.values<float>();
    double scale = 1, worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i]) != std::isnan(y[i]))
        return cat("result ", k, " element ", i, ": ", x[i], " and ", y[i]);
      if (std::isnan(x[i]) || x[i] == y[i]) continue;
      scale = std::max(scale, std::abs(double(x[i])));
      worst = std::max(worst, std::abs(double(x[i]) - double(y[i])));
    }
    if (worst > allowed * scale) return cat("result ", k, " is ", worst, " apart at a scale of ", scale);
  }
  return {};
}

// By the ops' evaluations alone, without passes and kernels.
std::vector<Datum> evaluated_plainly(RandomModel& model, const std::vector<Datum>& in) {
  const ImportedModel imported = import_test_model(model.bytes());
  const auto evaluator = Evaluator::create(imported.graph);
  REQUIRE_OK(evaluator);
  EvalOptions options;
  options.plainly = true;
  auto out = (*evaluator)->run(in, options);
  REQUIRE_OK(out);
  return *out;
}

void check_graphs(uint32_t count) {
  const auto pool = std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 2});
  std::map<std::string, int> rewrites;
  for (uint32_t seed = 1; seed <= count; ++seed) {
    RandomModel model(seed);
    INFO("seed " << seed);
    PredictorOptions plain;
    plain.resources.pool = pool;
    plain.reference = true;
    for (const Pass& p : tensor_passes()) plain.disabled_passes.insert(p.name);
    PredictorOptions reference = plain;
    reference.disabled_passes.clear();
    PredictorOptions best = reference;
    best.reference = false;
    const auto a = open_test_model(model.bytes(), plain), b = open_test_model(model.bytes(), reference),
               c = open_test_model(model.bytes(), best);
    for (const PassReport& r : b->passes()) rewrites[r.name] += r.rewrites;
    const std::vector<Datum> in = random_inputs(model);
    const auto expected = a->run(in), passed = b->run(in), fast = c->run(in);
    REQUIRE_OK(expected);
    REQUIRE_OK(passed);
    REQUIRE_OK(fast);
    // f32 between ops, in another order; Winograd's transforms.
    CHECK(difference(evaluated_plainly(model, in), *expected, 2e-5) == "");
    CHECK(difference(*expected, *passed, 2e-5) == "");
    CHECK(difference(*expected, *fast, 2e-4) == "");
    for (int round = 0; round < 2; ++round) {
      const auto again = c->run(in);
      REQUIRE_OK(again);
      CHECK(difference(*fast, *again, 0) == "");
    }
    // The caller's inputs are not written.
    CHECK(difference(*c->run(in), *fast, 0) == "");
  }
  for (const char* pass :
       {"fold_evaluated", "cse", "matmul_to_linear", "fuse_epilogues", "channels_last", "winograd", "dce"}) {
    INFO(pass);
    CHECK(rewrites[pass] > 0);
  }
}

// The first axis of every input as a number, or as one symbol for each extent.
struct Typed {
  Graph graph;
  std::vector<int64_t> symbols;  // their values
};
// The same graph with types; nothing where a shape rule does not take a node.
std::optional<Typed> with_types(const Graph& g, const std::vector<Datum>& in, bool by_symbols) {
  Typed t;
  std::map<int64_t, SymbolId> symbols;
  std::map<ValueId, ValueId> to{{kNoValue, kNoValue}};
  for (size_t k = 0; k < in.size(); ++k) {
    TensorType type{in[k].tensor.format(), {}};
    for (const int64_t d : in[k].tensor.shape()) {
      if (!by_symbols || !type.shape.empty() || d < 2) {
        type.shape.emplace_back(d);
        continue;
      }
      if (!symbols.contains(d)) {
        symbols[d] = t.graph.add_symbol(cat("n", d), 4 * d);
        t.symbols.push_back(d);
      }
      type.shape.push_back(t.graph.dim(symbols[d]));
    }
    to[g.inputs()[k]] = t.graph.add_input(cat("x", k), type);
  }
  const auto moved = [&](ValueId v) {
    if (!to.contains(v)) to[v] = t.graph.add_constant("", g.value(v).constant);
    return to[v];
  };
  for (const Node& n : g.nodes()) {
    if (n.outputs.size() != 1 || !n.subgraphs.empty()) return std::nullopt;
    std::vector<ValueId> ids;
    for (const ValueId v : n.inputs) ids.push_back(moved(v));
    const auto made = t.graph.add_node(n.op, ids, n.attrs);
    if (!made.ok()) return std::nullopt;
    to[n.outputs[0]] = (*made)[0];
  }
  for (const auto& o : g.outputs()) {
    const ValueId v = moved(o.value);
    if (t.graph.value(v).kind != ValueKind::kResult || !(t.graph.value(v).type.format == Format::f32()))
      return std::nullopt;
    t.graph.add_output(o.name, v);
  }
  return t;
}

std::vector<Datum> planned(Typed t, const std::vector<Datum>& in, Backend& backend) {
  const auto program = Program::create(std::move(t.graph), backend, {});
  REQUIRE_OK(program);
  const auto run = Run::create(*program);
  REQUIRE_OK(run);
  std::vector<const void*> bytes;
  for (const Datum& d : in) bytes.push_back(d.tensor.data());
  REQUIRE_OK((*run)->run(t.symbols, bytes));
  std::vector<Datum> out;
  for (size_t k = 0; k < (*program)->graph().outputs().size(); ++k) {
    const Operand y = (*run)->output(k);
    Tensor result =
        must(Tensor::allocate(Shape(std::span(y.dims, static_cast<size_t>(y.rank))), Format::f32()));
    REQUIRE_OK((*run)->read_output(k, result.mutable_values<float>()));
    out.emplace_back(std::move(result));
  }
  return out;
}

void check_programs(uint32_t count) {
  const auto backend =
      make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 2}), best_isa());
  uint32_t numbers = 0, symbols = 0;
  for (uint32_t seed = 1; seed <= count; ++seed) {
    RandomModel model(seed);
    INFO("seed " << seed);
    const ImportedModel imported = import_test_model(model.bytes());
    const std::vector<Datum> in = random_inputs(model);
    auto typed = with_types(*imported.graph, in, false);
    if (!typed) continue;
    ++numbers;
    const auto evaluator = Evaluator::create(imported.graph, *backend);
    REQUIRE_OK(evaluator);
    EvalOptions options;
    options.backend = backend.get();
    const auto evaluated = (*evaluator)->run(in, options);
    REQUIRE_OK(evaluated);
    const std::vector<Datum> by_numbers = planned(std::move(*typed), in, *backend);
    CHECK(difference(*evaluated, by_numbers, 2e-4) == "");
    auto general = with_types(*imported.graph, in, true);
    if (!general || general->symbols.empty()) continue;
    ++symbols;
    CHECK(difference(by_numbers, planned(std::move(*general), in, *backend), 0) == "");
  }
  // Of the others ops are of ordinary graphs alone: branches, several results, sizes that are values.
  INFO(numbers << " of " << count << " as numbers, " << symbols << " as symbols");
  CHECK(numbers > count / 8);
  CHECK(symbols > count / 50);
}

}  // namespace

TEST_CASE("random graphs: a Program computes what evaluation does, with symbols as with numbers") {
  check_programs(400);
}
TEST_CASE("random graphs: passes, kernels and plans change nothing") {
  check_graphs(oar_test::kSlow ? 400 : 1500);
}
TEST_CASE("random graphs: a hundred thousand", "[.][slow]") {
  check_graphs(100000);
  check_programs(100000);
}
