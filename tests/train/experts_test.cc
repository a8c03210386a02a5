// Routed experts as they are trained: each over its own rows alone, against the definition, which gives every
// expert all rows; and the load-balancing loss against its formula and differences.
#include <cmath>
#include <filesystem>

#include "engine/graph/pass.h"
#include "engine/graph/passes/grad.h"
#include "engine/loader/safetensors_writer.h"
#include "engine/ops/train/balance.h"
#include "engine/ops/train/ops.h"
#include "tests/train/one_op.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

constexpr int64_t kIn = 24, kHidden = 20, kExperts = 5;

// y = sum over a token's two experts of weight down(tanh(gate x) * (up x)), logits given; and its gradients
// by the seed.
struct Mixture {
  Graph graph;
  std::vector<std::string> names{"logits", "x"};
  std::vector<Shape> shapes;

  explicit Mixture(int64_t T, bool own_op, bool biased = false) : shapes{{T, kExperts}, {T, kIn}} {
    Builder b(graph);
    const auto input = [&](const std::string& name, const Shape& s) {
      return Val{graph.add_input(name, {Format::f32(), DimVector(s.begin(), s.end())})};
    };
    const Val logits = input("logits", shapes[0]), x = input("x", shapes[1]);
    const auto route = b.ops("moe_route", std::vector<Val>{logits}, {{"top_k", int64_t{2}}});
    std::vector<Val> first{x, route[0], route[3], Val{}}, second{Val{}, Val{}, route[3], Val{}};
    if (biased) {
      for (const auto& [name, columns, list] :
           {std::tuple("bias", 2 * kHidden, &first), std::tuple("down bias", kIn, &second)}) {
        names.emplace_back(name);
        shapes.push_back({kExperts, columns});
        (*list)[3] = input(name, shapes.back());
      }
    }
    for (int64_t e = 0; e < kExperts; ++e) {
      for (const auto& [name, shape, list] :
           {std::tuple("gate", Shape{kHidden, kIn}, &first), std::tuple("up", Shape{kHidden, kIn}, &first),
            std::tuple("down", Shape{kIn, kHidden}, &second)}) {
        names.push_back(cat(name, e));
        shapes.push_back(shape);
        list->push_back(input(names.back(), shape));
      }
    }
    const Attrs attrs{{"experts", kExperts}};
    const Val made = b.op("grouped_linear", first, attrs);
    const auto part = [&](int64_t from) {
      return b.op("slice", {made},
                  {{"starts", std::vector<int64_t>{from}},
                   {"ends", std::vector<int64_t>{from + kHidden}},
                   {"axes", std::vector<int64_t>{1}}});
    };
    second[0] = b.op("mul", {b.op("tanh", {part(0)}), part(kHidden)});
    const Val y = b.op("moe_combine", {b.op("grouped_linear", second, attrs), route[1], route[2]});
    REQUIRE(b.status().ok());
    graph.add_output("y", y.id);
    const Val seed = input("seed", shapes[1]);
    if (own_op) {
      for (Node& n : graph.nodes()) {
        if (n.is("grouped_linear")) n.op = &op_expert_rows;
        if (n.is("moe_route")) n.op = &op_route;
      }
    }
    std::vector<ValueId> wanted;
    for (const std::string& name : names) wanted.push_back(*passes::find_value(graph, name));
    const ValueId outputs[] = {y.id};
    passes::GradOptions options;
    options.seeds = {seed.id};
    if (own_op) options.keep = [](const Node& n) { return runs_on_values(*n.op) && !n.is("moe_combine"); };
    auto g = passes::grad(graph, outputs, wanted, options);
    REQUIRE_OK(g);
    graph = std::move(*g);
    names.emplace_back("seed");
    shapes.push_back(shapes[1]);
  }
};

}  // namespace

TEST_CASE("experts over their own rows have the results and gradients of their definition") {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (const auto& [T, biased] : std::vector<std::pair<int64_t, bool>>{
           {1, false}, {2, true}, {31, true}, {32, false}, {33, false}, {33, true}, {1025, true}}) {
    const Mixture defined(T, false, biased), own(T, true, biased);
    Inputs wide;
    std::vector<Datum> narrow;
    for (size_t k = 0; k < own.names.size(); ++k) {
      std::vector<float> values(static_cast<size_t>(own.shapes[k].numel()));
      for (float& v : values) v = normal(random) / (own.shapes[k].rank() > 1 && k > 1 ? 4 : 1);
      // Nobody chooses the second expert.
      if (k == 0)
        for (int64_t t = 0; t < T; ++t) values[static_cast<size_t>(t * kExperts + 1)] = -20;
      narrow.emplace_back(guarded(f32(own.shapes[k], values)));
      HostValue v;
      v.shape = own.shapes[k];
      v.f.assign(values.begin(), values.end());
      wide[own.names[k]] = std::move(v);
    }
    const auto want = evaluate_reference(defined.graph, wide);
    REQUIRE_OK(want);
    std::vector<Datum> first;
    for (const auto& [isa, threads] : runs()) {
      if (threads == 1) first.clear();
      // In the order of the graph's inputs: the seed is the last.
      const auto got = run_guarded(own.graph, narrow, {}, threads, isa);
      REQUIRE_OK(got);
      if (first.empty()) first = *got;
      for (size_t k = 0; k < got->size(); ++k) {
        const std::string& name = own.graph.outputs()[k].name;
        INFO(T << " tokens, " << name << ", " << isa_name(isa) << ", threads " << threads);
        CHECK(same_bits((*got)[k].tensor, first[k].tensor));
        const auto values = (*got)[k].tensor.values<float>();
        const auto& w = want->at(name).f;
        REQUIRE(values.size() == w.size());
        for (size_t i = 0; i < w.size(); ++i)
          CHECK(std::abs(values[i] - w[i]) < 1e-5 * (1 + std::abs(w[i])));  // sums of tens of f32 products
        if (name == "grad/up1")
          CHECK(std::all_of(values.begin(), values.end(), [](float v) { return v == 0; }));
      }
    }
  }
}

TEST_CASE("no number in one token reaches others that its experts have") {
  constexpr int64_t T = 33, kSpoiled = 7;
  const Mixture m(T, true);
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  const auto backend = cpu(2);
  const auto evaluator = Evaluator::create(std::make_shared<const Graph>(m.graph), *backend);
  REQUIRE_OK(evaluator);
  EvalOptions o;
  o.backend = backend.get();
  std::vector<Datum> in;
  for (const Shape& shape : m.shapes) {
    std::vector<float> values(static_cast<size_t>(shape.numel()));
    for (float& v : values) v = normal(random);
    in.emplace_back(f32(shape, values));
  }
  const auto good = (*evaluator)->run(in, o);
  REQUIRE_OK(good);
  for (const size_t operand : {size_t{1}, m.shapes.size() - 1}) {  // x, and what flows back
    std::vector<Datum> spoiled = in;
    const auto from = in[operand].tensor.values<float>();
    std::vector<float> values(from.begin(), from.end());
    values[static_cast<size_t>(kSpoiled * kIn + 5)] = NAN;
    spoiled[operand] = Datum(f32(m.shapes[operand], values));
    const auto bad = (*evaluator)->run(spoiled, o);
    REQUIRE_OK(bad);
    bool broken = false;
    for (size_t k = 0; k < good->size(); ++k) {
      const std::string& name = m.graph.outputs()[k].name;
      if (name != "y" && name != "grad/logits" && name != "grad/x") continue;
      INFO(name << ", spoiled " << m.names[operand]);
      const Tensor &was = (*good)[k].tensor, &now = (*bad)[k].tensor;
      CHECK(same_bits(now.slice(0, kSpoiled), was.slice(0, kSpoiled)));
      CHECK(same_bits(now.slice(kSpoiled + 1, T), was.slice(kSpoiled + 1, T)));
      for (const float v : now.slice(kSpoiled, kSpoiled + 1).values<float>())
        broken = broken || std::isnan(v);
    }
    CHECK(broken);
  }
}

TEST_CASE("a trained mixture multiplies each expert by its own rows alone") {
  const TinyGolden golden = load_tiny_golden("mixtral");
  const Checkpoint c = load_checkpoint(write_tiny_model(golden, TinyDtype::f32)).value();
  GraphOptions o;
  o.tokens = 32;
  o.full = true;
  const auto graphs = build_model_graphs(c, read_model_config(c.config).value(), o);
  REQUIRE_OK(graphs);
  size_t rows = 0, back = 0, products = 0;
  for (const Node& n : graphs->step->nodes()) {
    rows += n.op == &op_expert_rows, back += n.op == &op_expert_rows_back;
    products += n.op == &op_expert_products;
  }
  CHECK(rows == 2 * 2);  // gate and up, down; of two layers
  CHECK(back == 2 * 2);
  CHECK(products == rows * static_cast<size_t>(c.config.at("num_local_experts").as_int64()));
}

TEST_CASE("the load-balancing loss is its formula, and its gradient that of differences") {
  constexpr int64_t T = 9, kUsed = 7, X = 4, k = 2;
  Graph g;
  Builder b(g);
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  Inputs inputs;
  std::vector<std::vector<double>> logits;
  for (const char* name : {"a", "b"}) {
    HostValue v;
    v.shape = Shape{T, X};
    for (int64_t i = 0; i < T * X; ++i) v.f.push_back(2 * normal(random));
    logits.push_back(v.f);
    inputs[name] = v;
    const Val in{g.add_input(name, {Format::f32(), {T, X}})};
    b.ops("moe_route", std::vector<Val>{in}, {{"top_k", k}});
  }
  const Val share{g.add_input("share", {Format::f32(), {T}})};
  HostValue shares;
  shares.shape = Shape{T};
  for (int64_t t = 0; t < T; ++t) shares.f.push_back(t < kUsed ? 1.0 / kUsed : 0);
  inputs["share"] = shares;
  REQUIRE(b.status().ok());
  for (Node& n : g.nodes()) n.op = &op_route;
  const auto loss = balance_loss(g, share, 0.5);
  REQUIRE_OK(loss);
  for (Node& n : g.nodes())
    if (n.op == &op_route) n.op = find_op("moe_route");  // which has a reference
  g.add_output("L", loss->id);
  // Over 14 rows of two layers: 0.5 X sum of choices / 14 times probabilities / 14.
  std::vector<double> chosen(X, 0), likely(X, 0);
  for (const auto& layer : logits) {
    for (int64_t t = 0; t < kUsed; ++t) {
      const double* z = layer.data() + t * X;
      double sum = 0;
      for (int64_t e = 0; e < X; ++e) sum += std::exp(z[e]);
      for (int64_t e = 0; e < X; ++e) {
        likely[static_cast<size_t>(e)] += std::exp(z[e]) / sum;
        int64_t better = 0;
        for (int64_t other = 0; other < X; ++other) better += z[other] > z[e];
        chosen[static_cast<size_t>(e)] += better < k;
      }
    }
  }
  double want = 0;
  for (size_t e = 0; e < X; ++e) want += 0.5 * X * chosen[e] * likely[e] / (4.0 * kUsed * kUsed);
  const auto got = evaluate_reference(g, inputs);
  REQUIRE_OK(got);
  CHECK(std::abs(got->at("L").f[0] - want) < 1e-12);
  check_gradients(g, inputs, {"a", "b"}, 1, 1e-7, 1e-6);
}

TEST_CASE("routers learn to balance: the loss takes weight from experts that most tokens choose") {
  std::vector<double> after;
  for (const double weight : {0.0, 1.0}) {
    TinyRun run("mixtral");
    run.configure({{"output_router_logits", true}, {"router_aux_loss_coef", weight}});
    run.options.graph.full = true;
    run.options.held_out = {run.data};
    run.options.rate = 1e-3;
    run.options.accumulate = 2;
    const auto t = run.trainer();
    const auto first = t->step();
    REQUIRE_OK(first);
    const double own = first->loss;
    // With all choices even the formula is coefficient top_k; it is more where they are not.
    after.push_back(own);
    CHECK(t->evaluate().value().loss > 0);
  }
  CHECK(after[1] - after[0] >= 2.0);
  CHECK(after[1] - after[0] < 8.0);
}

TEST_CASE("a balanced mixture in bf16 is the same recomputed, and with any number of threads") {
  std::vector<std::vector<double>> losses;
  for (const auto& [how, threads] : {std::pair(Recompute::kNone, 1), std::pair(Recompute::kLayers, 3)}) {
    TinyRun run("mixtral");
    run.configure({{"output_router_logits", true}, {"router_aux_loss_coef", 0.2}});
    run.options.graph.full = true;
    run.options.graph.precision.level = Amp::kO2;
    run.options.graph.recompute = how;
    run.options.threads = threads;
    run.options.rate = 1e-3;
    const auto t = run.trainer();
    losses.emplace_back();
    for (int n = 0; n < 4; ++n) losses.back().push_back(t->step().value().loss);
  }
  CHECK(losses[0] == losses[1]);
  CHECK(losses[0][3] < losses[0][0]);
}

TEST_CASE("a stack of one expert is trained in the shape that its file has") {
  TinyRun run("gpt-oss");
  run.configure({{"num_local_experts", 1}, {"num_experts_per_tok", 1}});
  const TensorMap tensors = load_checkpoint(run.folder).value().tensors;
  std::vector<SafetensorsTensor> first;
  for (const auto& [name, t] : tensors) {
    const bool of_experts =
        name.find(".experts.") != std::string::npos || name.find(".router.") != std::string::npos;
    first.push_back({name, to_f32(of_experts ? t.slice(0, 1) : t).value()});
  }
  const std::string file = run.folder + "/model.safetensors";
  REQUIRE_OK(write_safetensors(file + ".new", first, {}));
  std::filesystem::rename(file + ".new", file);
  run.options.graph.full = true;
  auto t = run.trainer();
  size_t stacks = 0;
  for (const Parameter& p : t->parameters()) {
    if (!p.name.ends_with(".experts.gate_up_proj") && !p.name.ends_with(".experts.down_proj")) continue;
    REQUIRE(p.shape.rank() == 3);
    CHECK(p.shape[0] == 1);
    ++stacks;
  }
  CHECK(stacks == 8);
  const auto first_step = t->step();
  REQUIRE_OK(first_step);
  CHECK(std::isfinite(first_step->loss));
}
