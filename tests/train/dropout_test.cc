// Dropout drawn from a counter: its share and scale, its gradient, and runs of adapters that drop.
#include <cmath>

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
