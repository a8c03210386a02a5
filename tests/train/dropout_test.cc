// Dropout drawn from a counter: its share and scale, its gradient, and runs of adapters that drop.
#include <cmath>
#include <map>
#include <set>

#include "engine/graph/pass.h"
#include "engine/graph/passes/grad.h"
#include "engine/ops/train/ops.h"
#include "tests/train/training_fixture.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

// y and the gradient of the sum of seed * y, for one draw.
struct Dropped {
  std::vector<float> y, dx;
};
Dropped drop(const std::vector<float>& x, const std::vector<float>& seed, double rate, int64_t site,
             int64_t draw, int threads) {
  const auto n = static_cast<int64_t>(x.size());
  Graph g;
  Builder b(g);
  const Val in[] = {{g.add_input("x", {Format::f32(), {n}})},
                    {g.add_input("draw", {Format::of(DType::kI64), {}})}};
  const Val s{g.add_input("seed", {Format::f32(), {n}})};
  const Val y = emit(b, op_counted_dropout, in, {{"rate", rate}, {"site", site}}).at(0);
  REQUIRE(b.status().ok());
  g.add_output("y", y.id);
  const ValueId outputs[] = {y.id}, wanted[] = {in[0].id};
  Graph back = passes::grad(g, outputs, wanted, {.seeds = {s.id}}).value();
  const auto backend = cpu(threads);
  const auto evaluator = Evaluator::create(std::make_shared<const Graph>(std::move(back)), *backend).value();
  EvalOptions o;
  o.backend = backend.get();
  Tensor key = Tensor::zeros({}, Format::of(DType::kI64)).value();
  key.mutable_values<int64_t>()[0] = draw;
  const auto got = evaluator->run({Datum(f32({n}, x)), Datum(key), Datum(f32({n}, seed))}, o);
  REQUIRE(got.ok());
  const auto values = [&](size_t k) {
    const auto v = (*got)[k].tensor.values<float>();
    return std::vector<float>(v.begin(), v.end());
  };
  return {values(0), values(1)};
}

}  // namespace

TEST_CASE("a share of the numbers is dropped, the others are scaled, and gradients by the same choice") {
  constexpr size_t kCount = 40001;
  std::vector<float> x(kCount), seed(kCount);
  for (size_t k = 0; k < kCount; ++k)
    x[k] = 1 + static_cast<float>(k), seed[k] = 2 + static_cast<float>(k % 7);
  for (const double rate : {0.0, 0.1, 0.5}) {
    const Dropped d = drop(x, seed, rate, 3, 77, 1);
    const auto scale = static_cast<float>(1 / (1 - rate));
    size_t dropped = 0;
    for (size_t k = 0; k < kCount; ++k) {
      const bool gone = d.y[k] == 0;
      dropped += gone;
      CHECK(d.y[k] == (gone ? 0 : x[k] * scale));
      CHECK(d.dx[k] == (gone ? 0 : seed[k] * scale));
    }
    // Five deviations of a binomial.
    const double mean = rate * kCount, deviation = std::sqrt(mean * (1 - rate));
    CHECK(std::abs(static_cast<double>(dropped) - mean) <= 5 * deviation);
    CHECK(drop(x, seed, rate, 3, 77, 3).y == d.y);
    // Another site or draw is another choice: of two the same number, by the product of their rates.
    for (const Dropped& other : {drop(x, seed, rate, 4, 77, 1), drop(x, seed, rate, 3, 78, 1)}) {
      size_t both = 0;
      for (size_t k = 0; k < kCount; ++k) both += d.y[k] == 0 && other.y[k] == 0;
      const double expected = rate * rate * kCount;
      CHECK(std::abs(static_cast<double>(both) - expected) <= 5 * std::sqrt(expected));
    }
  }
}

TEST_CASE("dropout reads and makes bf16 as it does f32, rounded once") {
  const auto backend = cpu(2);
  std::vector<float> x(1003);
  for (size_t k = 0; k < x.size(); ++k) x[k] = to_f32(to_bf16(0.01f * static_cast<float>(k) - 3));
  const Tensor wide = f32({1003}, x);
  Tensor stored = Tensor::allocate({1003}, Format::bf16()).value();
  Format::bf16().encode_row(x.data(), 1003, stored.mutable_data());
  Tensor key = Tensor::zeros({}, Format::of(DType::kI64)).value();
  key.mutable_values<int64_t>()[0] = 5;
  const auto run = [&](const Tensor& of, int64_t rounded) {
    Graph g;
    Builder b(g);
    const Val in[] = {{g.add_input("x", {of.format(), {1003}})},
                      {g.add_input("draw", {Format::of(DType::kI64), {}})}};
    const Val y =
        emit(b, op_counted_dropout, in, {{"rate", 0.3}, {"site", int64_t{1}}, {"rounded", rounded}}).at(0);
    REQUIRE(b.status().ok());
    g.add_output("y", y.id);
    const auto evaluator = Evaluator::create(std::make_shared<const Graph>(std::move(g)), *backend).value();
    EvalOptions o;
    o.backend = backend.get();
    return evaluator->run({Datum(of), Datum(key)}, o).value()[0].tensor;
  };
  const Tensor want = run(wide, 0);
  for (const Tensor& of : {wide, stored})
    for (const int64_t rounded : {0, 1}) {
      const Tensor got = run(of, rounded);
      CHECK(got.format() == (rounded != 0 ? Format::bf16() : Format::f32()));
      const Tensor plain = to_f32(got).value();
      for (size_t k = 0; k < x.size(); ++k) {
        const float y = want.values<float>()[k];
        CHECK(plain.values<float>()[k] == (rounded != 0 ? to_f32(to_bf16(y)) : y));
      }
    }
}

TEST_CASE("dropout of whole models is in every layer, of each architecture, and in no held-out loss") {
  // Sublayers of a layer, but where attention and MLP are one, and what is added before the first layer.
  const std::map<std::string_view, std::pair<int64_t, int64_t>> known{
      {"llama3", {2, 1}}, {"cohere2", {2, 1}}, {"gpt2", {2, 2}}, {"mamba2", {1, 1}}, {"gemma3", {2, 1}}};
  size_t found = 0;
  for (const std::string& name : tiny_golden_names()) {
    INFO(name);
    const TinyRun run(name);
    const Checkpoint checkpoint = load_checkpoint(run.folder).value();
    const ModelConfig config = read_model_config(checkpoint.config).value();
    GraphOptions o = run.options.graph;
    o.full = true, o.dropout = 0.25;
    const auto graphs = build_model_graphs(checkpoint, config, o);
    if (!graphs.ok()) {
      CHECK(graphs.status().code() == StatusCode::kUnimplemented);
      continue;
    }
    const auto sites = [](const Graph& g) {
      std::set<int64_t> out;
      for (const Node& n : g.nodes())
        if (n.op == &op_counted_dropout) out.insert(n.attrs.get_int("site"));
      return static_cast<int64_t>(out.size());
    };
    CHECK(sites(*graphs->loss) == 0);
    const int64_t layers = config.layers;
    CHECK(sites(*graphs->step) >= layers + 1);
    CHECK(sites(*graphs->step) <= 3 * layers + 2);
    if (const auto k = known.find(name); k != known.end()) {
      ++found;
      CHECK(sites(*graphs->step) == k->second.first * layers + k->second.second);
    }
  }
  CHECK(found == known.size());
}

TEST_CASE(
    "a whole model with dropout, drawn cuts and an average: the same bits for any threads and gone on; what "
    "is "
    "evaluated and written is the average") {
  const auto make = [](int threads) {
    std::vector<int32_t> text(400);
    for (size_t k = 0; k < text.size(); ++k) text[k] = static_cast<int32_t>(k * k * 7 + k / 3) % 251;
    TinyRun run("llama3", {text});
    run.options.held_out = {run.data};
    run.options.samples.draw_cuts = true;
    run.options.graph.full = true;
    run.options.graph.dropout = 0.2;
    run.options.average = 0.9;
    run.options.threads = threads;
    run.options.rate = 1e-2;
    return run;
  };
  const TinyRun run = make(1);
  auto t = run.trainer();
  const double before = t->evaluate().value().loss;
  std::vector<double> losses;
  std::vector<std::vector<float>> means;
  const auto numbers = [](const Tensor& x) {
    const auto v = x.values<float>();
    return std::vector<float>(v.begin(), v.end());
  };
  for (size_t k = 0; k < t->parameters().size(); ++k) means.push_back(numbers(t->value(k)));
  for (int n = 1; n <= 40; ++n) {
    losses.push_back(t->step().value().loss);
    // Of a few numbers; the first steps follow closely.
    const double part = 1 - std::min(0.9, n / (n + 10.0));
    for (size_t k = 0; k < means.size(); ++k) {
      const auto now = numbers(t->value(k));
      for (size_t j = 0; j < now.size(); ++j)
        means[k][j] += static_cast<float>(part) * (now[j] - means[k][j]);
      CHECK(numbers(t->final_values()[k]) == means[k]);
    }
  }
  const double held_out = t->evaluate().value().loss;
  CHECK(held_out < before);
  CHECK(held_out == t->evaluate().value().loss);
  auto again = make(3).trainer();
  for (size_t k = 0; k < 17; ++k) CHECK(again->step().value().loss == losses[k]);
  const std::string path = run.folder + "/run.safetensors";
  REQUIRE(again->save(path, {}).ok());
  auto second = run.trainer();
  REQUIRE(second->restore(path).ok());
  for (size_t k = 17; k < 40; ++k) CHECK(second->step().value().loss == losses[k]);
  CHECK(second->evaluate().value().loss == held_out);
  TinyRun other = run;
  other.options.graph.dropout = 0.1;
  CHECK(other.trainer()->restore(path).status().message().find("another 'dropout'") != std::string::npos);
  const std::string out = run.folder + "/averaged";
  std::filesystem::remove_all(out);
  REQUIRE(second->write_result(out).ok());
  const Checkpoint written = load_checkpoint(out).value();
  for (size_t k = 0; k < means.size(); ++k) {
    const Parameter& p = second->parameters()[k];
    CHECK(numbers(to_f32(written.tensors.at(p.name)).value()) == means[k]);
  }
  // Samples are what --hold-out takes; a document is one.
  other.options.hold_out = 0.5, other.options.held_out.clear();
  CHECK(Trainer::create(other.options, {}).status().message().find("--cuts drawn leaves documents whole") !=
        std::string::npos);
  // Nothing is cut of prompts with completions.
  std::ofstream(run.data) << R"({"prompt":"1 2","completion":"3 4"})";
  CHECK(Trainer::create(run.options, {}).status().message().find("--cuts drawn: --data has no document") ==
        0);
}

TEST_CASE(
    "adapters with dropout: the same bits for any threads, recomputed and gone on; held-out losses without") {
  const auto make = [](double rate, int threads, Recompute how) {
    TinyRun run("llama3");
    run.options.held_out = {run.data};
    run.options.graph.lora.dropout = rate;
    run.options.graph.recompute = how;
    run.options.threads = threads;
    run.options.accumulate = 2;
    run.options.rate = 1e-2;
    return run;
  };
  const TinyRun run = make(0.3, 1, Recompute::kNone);
  auto t = run.trainer(), plain = make(0, 1, Recompute::kNone).trainer();
  // Before the first step B is zero, and so is what an adapter adds, dropped or not.
  CHECK(t->evaluate().value().loss == plain->evaluate().value().loss);
  std::vector<double> losses;
  for (int k = 0; k < 8; ++k) losses.push_back(t->step().value().loss);
  CHECK(losses[0] == plain->step().value().loss);
  CHECK(losses[1] != plain->step().value().loss);
  CHECK(losses[7] < losses[0]);
  const double held_out = t->evaluate().value().loss;
  CHECK(held_out == t->evaluate().value().loss);
  auto again = make(0.3, 3, Recompute::kLayers).trainer();
  for (int k = 0; k < 4; ++k) CHECK(again->step().value().loss == losses[static_cast<size_t>(k)]);
  const std::string path = run.folder + "/run.safetensors";
  REQUIRE(again->save(path, {}).ok());
  auto second = run.trainer();
  REQUIRE(second->restore(path).ok());
  for (size_t k = 4; k < 8; ++k) CHECK(second->step().value().loss == losses[k]);
  CHECK(second->evaluate().value().loss == held_out);
  CHECK(make(0.2, 1, Recompute::kNone)
            .trainer()
            ->restore(path)
            .status()
            .message()
            .find("another 'lora dropout'") != std::string::npos);
  const std::string out = run.folder + "/dropped";
  std::filesystem::remove_all(out);
  REQUIRE(second->write_result(out).ok());
  const json::value config = json::parse(read_small_file(out + "/adapter_config.json", 1 << 20).value());
  CHECK(config.at("lora_dropout") == 0.3);
}
