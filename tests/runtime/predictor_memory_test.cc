// The memory of a predictor's runs: plans without overlap, results that do not depend on where values lie,
// nothing written that belongs to the caller, and flat use over any number of shapes.
#include <fstream>
#include <random>
#include <thread>

#include "engine/base/format.h"
#include "engine/runtime/predictor.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT

// Where the model of a predictor was read from.
std::map<const Graph*, std::string>& paths() {
  static std::map<const Graph*, std::string> all;
  return all;
}

std::unique_ptr<Predictor> predictor_of(const Proto& graph, int threads = 1,
                                        uint64_t plan_bytes = PredictorOptions().plan_bytes) {
  static int number = 0;
  const std::string path = cat(temp_dir(), "/memory", number++, ".onnx");
  std::ofstream(path, std::ios::binary) << model_bytes(graph);
  PredictorOptions options;
  options.threads = threads;
  options.plan_bytes = plan_bytes;
  auto predictor = Predictor::open(path, options);
  REQUIRE_OK(predictor);
  paths()[&(*predictor)->graph()] = path;
  return std::move(*predictor);
}

Tensor random_tensor(const Shape& shape, uint32_t seed) {
  Tensor t = must(Tensor::allocate(shape, Format::f32()));
  const std::vector<float> v = random_floats(static_cast<size_t>(t.numel()), seed);
  std::copy(v.begin(), v.end(), t.mutable_values<float>().begin());
  return t;
}
bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.format() == b.format() &&
         std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

// Two convolutions with a residual and activations, a pool, and a product: x (batch, 4, side, batch...).
Proto small_cnn() {
  const auto w = [](const char* name, std::vector<int64_t> dims, uint32_t seed) {
    size_t n = 1;
    for (int64_t d : dims) n *= static_cast<size_t>(d);
    return tensor_proto(name, dims, random_floats(n, seed));
  };
  const Proto pads =
      Proto().text(1, "pads").number(8, 1).number(8, 1).number(8, 1).number(8, 1).number(20, 7);
  return graph_proto({node_proto("Conv", {"x", "w1"}, {"a"}, {pads}), node_proto("Relu", {"a"}, {"b"}),
                      node_proto("Conv", {"b", "w2"}, {"c"}, {pads}), node_proto("Add", {"c", "b"}, {"d"}),
                      node_proto("Sigmoid", {"d"}, {"e"}), node_proto("Mul", {"d", "e"}, {"f"}),
                      node_proto("Softplus", {"f"}, {"g"}), node_proto("Sub", {"g", "d"}, {"h"}),
                      node_proto("GlobalAveragePool", {"h"}, {"i"}), node_proto("Flatten", {"i"}, {"j"}),
                      node_proto("MatMul", {"j", "w3"}, {"y"})},
                     {w("w1", {16, 4, 3, 3}, 1), w("w2", {16, 16, 3, 3}, 2), w("w3", {16, 10}, 3)},
                     {value_proto("x", {-1, 4, -1, -1})}, {value_proto("y", {-1, 10}), value_proto("h", {})});
}
// Its input: one symbol for batch, height and width.
Shape cnn_input(int64_t side) { return {side, 4, side, side}; }

// The same run with every value in memory of its own.
std::vector<Datum> plainly(const Predictor& p, const std::vector<Datum>& in) {
  auto model = import_model(paths()[&p.graph()]);
  REQUIRE_OK(model);
  REQUIRE_OK(run_passes(*model->graph, tensor_passes(), {}));
  auto evaluator = Evaluator::create(model->graph);
  REQUIRE_OK(evaluator);
  auto results = (*evaluator)->run(in, {});
  REQUIRE_OK(results);
  return *results;
}

}  // namespace

TEST_CASE("memory plans: random lives never overlap, and little is wasted") {
  std::mt19937 random(5);
  double worst = 1;
  for (int round = 0; round < 200; ++round) {
    std::vector<BlockLife> lives;
    std::vector<size_t> alive;
    uint32_t tick = 0;
    const size_t n = 1 + random() % 120;
    while (lives.size() < n || !alive.empty()) {
      if (lives.size() < n && (alive.empty() || random() % 5 < 3)) {
        alive.push_back(lives.size());
        lives.push_back({1 + random() % (random() % 2 ? 100000 : 500), tick++, BlockLife::kHeld});
      } else {
        const size_t k = random() % alive.size();
        if (random() % 20) lives[alive[k]].end = tick++;
        alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(k));
      }
    }
    const BlockPlan plan = plan_blocks(lives);
    uint64_t results = 0;
    for (size_t i = 0; i < n; ++i) {
      const BlockLife& a = lives[i];
      if (a.end == BlockLife::kHeld) {
        results += a.bytes;
        REQUIRE(plan.offsets[i] == BlockPlan::kOutside);
        continue;
      }
      REQUIRE(plan.offsets[i] % Buffer::kAlignment == 0);
      REQUIRE(plan.offsets[i] + a.bytes <= plan.arena_bytes);
      for (size_t j = 0; j < i; ++j) {
        const BlockLife& b = lives[j];
        if (b.end == BlockLife::kHeld || b.end <= a.begin || a.end <= b.begin) continue;
        REQUIRE(
            (plan.offsets[i] + a.bytes <= plan.offsets[j] || plan.offsets[j] + b.bytes <= plan.offsets[i]));
      }
    }
    REQUIRE(plan.result_bytes == results);
    REQUIRE(plan.arena_bytes >= plan.live_bytes);
    if (plan.live_bytes > 0) {
      worst = std::max(worst, static_cast<double>(plan.arena_bytes) / static_cast<double>(plan.live_bytes));
    }
  }
  // Random lives are much harder than a network's; a bound that shows a planner gone wrong.
  CHECK(worst < 1.5);
}

TEST_CASE("run memory: a plan of another run is a hint, blocks in use never overlap") {
  std::mt19937 random(6);
  RunMemory memory;
  std::shared_ptr<const BlockPlan> plan;
  for (int run = 0; run < (oar_test::kSlow ? 20 : 50); ++run) {
    REQUIRE(memory.begin(plan).ok());
    struct Block {
      Buffer buffer;
      uint8_t mark;
    };
    std::vector<Block> blocks;
    for (int step = 0; step < 300; ++step) {
      if (blocks.empty() || random() % 2) {
        auto buffer = memory.allocate(1 + random() % 5000);
        REQUIRE_OK(buffer);
        REQUIRE(buffer->transient());
        REQUIRE(buffer->holders() == 1);
        const auto mark = static_cast<uint8_t>(random());
        std::memset(buffer->mutable_data(), mark, buffer->size());
        blocks.push_back({std::move(*buffer), mark});
      } else {
        const size_t k = random() % blocks.size();
        const auto* p = static_cast<const uint8_t*>(blocks[k].buffer.data());
        for (uint64_t i = 0; i < blocks[k].buffer.size(); ++i) REQUIRE(p[i] == blocks[k].mark);
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(k));
      }
    }
    // Now and then some outlive the run, which must not disturb the next.
    static std::vector<Block> kept;
    kept = run % 3 == 0 ? std::move(blocks) : std::vector<Block>();
    blocks.clear();
    plan = std::make_shared<const BlockPlan>(plan_blocks(memory.end()));
  }
  CHECK(memory.arena_bytes() > 0);
}

TEST_CASE("predictor memory: planned before the first run, used as planned, given back") {
  const auto p = predictor_of(small_cnn());
  const Shape shape = cnn_input(12);
  const auto plan = p->plan(std::vector<Shape>{shape});
  REQUIRE_OK(plan);
  CHECK((*plan)->arena_bytes > 0);
  CHECK((*plan)->arena_bytes < 2 * (*plan)->live_bytes);
  CHECK(p->arena_bytes() == 0);
  const std::vector<Datum> in{random_tensor(shape, 1)};
  const std::vector<Datum> expected = plainly(*p, in);
  for (int run = 0; run < 3; ++run) {
    const auto results = p->run(in);
    REQUIRE_OK(results);
    for (size_t k = 0; k < expected.size(); ++k) CHECK(same((*results)[k].tensor, expected[k].tensor));
    CHECK(p->arena_bytes() == (*plan)->arena_bytes);
  }
  // What sizing foresaw is what the runs asked for: the plan was not corrected.
  const auto again = p->plan(std::vector<Shape>{shape});
  REQUIRE_OK(again);
  CHECK(again->get() == plan->get());
  CHECK(p->shrink() == (*plan)->arena_bytes);
  CHECK(p->arena_bytes() == 0);
  CHECK(p->kept_plans() == 0);
  const auto results = p->run(in);
  REQUIRE_OK(results);
  CHECK(same((*results)[0].tensor, expected[0].tensor));
}

TEST_CASE("predictor memory: plans are kept by bytes, those used last") {
  constexpr int64_t kShapes = 12;
  const auto run = [](const Predictor& p, int64_t n) {
    REQUIRE_OK(p.run(std::vector<Datum>{random_tensor(cnn_input(n), 1)}));
  };
  size_t before = 0;
  for (const uint64_t bytes : {0, 1, 16 << 10, 32 << 10, 1 << 20}) {
    INFO(bytes);
    const auto p = predictor_of(small_cnn(), 1, bytes);
    for (int64_t n = 1; n <= kShapes; ++n) run(*p, n + 8);
    const size_t kept = p->kept_plans();
    CHECK(kept >= before);
    if (bytes == 0) CHECK(kept == 0);
    if (bytes == 1) CHECK(kept == 1);
    if (bytes == 16 << 10) CHECK((kept > 1 && kept < kShapes));
    if (bytes == 1 << 20) CHECK(kept == kShapes);
    before = kept;
  }
}

TEST_CASE("predictor memory: of new shapes only a handle's first are sized before they run") {
  const auto p = predictor_of(small_cnn());
  const auto run = [](const Predictor& handle, int64_t side) {
    REQUIRE_OK(handle.run(std::vector<Datum>{random_tensor(cnn_input(side), 1)}));
  };
  CHECK(p->sizing_passes() == 0);
  for (const int64_t side : {7, 9, 6}) run(*p, side);
  CHECK(p->sizing_passes() == 1);
  CHECK(p->kept_plans() == 3);
  const auto other = p->clone();
  run(*other, 9);  // its plan is there
  CHECK(p->sizing_passes() == 1);
  const auto third = p->clone();
  run(*third, 5);
  CHECK(p->sizing_passes() == 2);
  REQUIRE_OK(p->plan(std::vector<Shape>{cnn_input(8)}));
  run(*p, 8);
  CHECK(p->sizing_passes() == 3);
}

TEST_CASE("predictor memory: results stay whole while later runs go on") {
  const auto p = predictor_of(small_cnn());
  const std::vector<Datum> in{random_tensor(cnn_input(9), 1)};
  const auto first = p->run(in);
  REQUIRE_OK(first);
  const std::vector<Datum> expected = plainly(*p, in);
  for (uint32_t seed = 2; seed < 6; ++seed) {
    REQUIRE_OK(p->run(std::vector<Datum>{random_tensor(cnn_input(9 + seed % 2), seed)}));
  }
  for (size_t k = 0; k < expected.size(); ++k) CHECK(same((*first)[k].tensor, expected[k].tensor));
}

TEST_CASE("predictor memory: the caller's input is never written, also through views of it") {
  // relu over a reshape of the input: the view has its last use there, its bytes are the caller's.
  const auto p =
      predictor_of(graph_proto({node_proto("Flatten", {"x"}, {"a"}), node_proto("Relu", {"a"}, {"b"}),
                                node_proto("Exp", {"b"}, {"c"}), node_proto("Identity", {"x"}, {"d"}),
                                node_proto("Add", {"d", "d"}, {"e"}), node_proto("Add", {"c", "e"}, {"y"})},
                               {}, {value_proto("x", {-1, 64})}, {value_proto("y", {-1, 64})}));
  const Tensor x = random_tensor({32, 64}, 4);
  const std::vector<float> before(x.values<float>().begin(), x.values<float>().end());
  const auto results = p->run(std::vector<Datum>{x});
  REQUIRE_OK(results);
  for (size_t k = 0; k < before.size(); ++k) {
    REQUIRE(x.values<float>()[k] == before[k]);
    const double want = std::exp(std::max(0.0, static_cast<double>(before[k]))) + 2.0 * before[k];
    // Two roundings of values below 5: 2^-21 each, and the kernel's exp within 4 units of 2^-22.
    REQUIRE(std::abs(static_cast<double>((*results)[0].tensor.values<float>()[k]) - want) < 4e-6);
  }
}

TEST_CASE("predictor memory: sizes that depend on values are said so, and run right") {
  const auto p = predictor_of(
      graph_proto({node_proto("Relu", {"x"}, {"r"}), node_proto("NonZero", {"r"}, {"i"}),
                   node_proto("Cast", {"i"}, {"f"}, {int_attr("to", 1)}), node_proto("Exp", {"f"}, {"y"})},
                  {}, {value_proto("x", {-1, 50})}, {value_proto("y", {2, -1})}));
  const auto plan = p->plan(std::vector<Shape>{{7, 50}});
  REQUIRE(plan.status().code() == StatusCode::kFailedPrecondition);
  CHECK(plan.status().message().find("non_zero") != std::string::npos);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<Datum> in{random_tensor({7, 50}, seed)};
    const auto results = p->run(in);
    REQUIRE_OK(results);
    CHECK(same((*results)[0].tensor, plainly(*p, in)[0].tensor));
  }
}

namespace {

void random_shapes(int rounds) {
  const auto p =
      predictor_of(graph_proto({node_proto("MatMul", {"x", "w"}, {"a"}), node_proto("Relu", {"a"}, {"b"}),
                                node_proto("Softmax", {"b"}, {"c"}), node_proto("Add", {"c", "a"}, {"y"})},
                               {tensor_proto("w", {24, 40}, random_floats(960, 1))},
                               {value_proto("x", {-1, -1, 24})}, {value_proto("y", {-1, -1, 40})}));
  std::mt19937 random(9);
  constexpr int64_t kMost = 60;
  const auto largest = p->plan(std::vector<Shape>{{kMost, kMost, 24}});
  REQUIRE_OK(largest);
  uint64_t arena = 0;
  for (int k = 0; k < rounds; ++k) {
    const auto n = static_cast<int64_t>(1 + random() % kMost);
    const auto results = p->run(std::vector<Datum>{random_tensor({n, n, 24}, 3)});
    if (!results.ok()) REQUIRE_OK(results);
    if (p->arena_bytes() < arena) FAIL("the arena shrank");
    arena = p->arena_bytes();
  }
  // Never more than the largest shape needs.
  CHECK(arena <= (*largest)->arena_bytes);
}

}  // namespace

TEST_CASE("predictor memory: flat over random shapes") { random_shapes(oar_test::kSlow ? 400 : 1500); }
TEST_CASE("predictor memory: flat over 100000 random shapes", "[slow][.]") { random_shapes(100000); }

TEST_CASE("predictor memory: clones on threads of their own, and one handle on many, with shapes at once") {
  const auto p = predictor_of(small_cnn(), 2);
  const PredictorPool pool(p->clone(), 3);
  REQUIRE(pool.size() == 3);
  std::map<int64_t, std::vector<Datum>> inputs, expected;
  for (int64_t side = 5; side < 9; ++side) {
    inputs[side] = {random_tensor(cnn_input(side), static_cast<uint32_t>(side))};
    expected[side] = plainly(*p, inputs[side]);
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const Predictor& mine = t < 3 ? pool.at(t) : *p;
      for (int64_t k = 0; k < 12; ++k) {
        const int64_t side = 5 + (k + static_cast<int64_t>(t)) % 4;
        const auto results = mine.run(inputs.at(side));
        // One thread or two divide sums alike here: the same bytes.
        if (!results.ok() || !same((*results)[0].tensor, expected.at(side)[0].tensor)) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
  CHECK(pool.shrink() > 0);
}

TEST_CASE("predictor memory: a budget pays for weights, arenas and results, or refuses them") {
  constexpr int64_t kWide = 1024;
  const Proto graph = graph_proto({node_proto("MatMul", {"x", "w"}, {"h"}), node_proto("Relu", {"h"}, {"i"}),
                                   node_proto("MatMul", {"i", "w"}, {"y"})},
                                  {tensor_proto("w", {kWide, kWide}, random_floats(kWide * kWide, 1))},
                                  {value_proto("x", {-1, kWide})}, {value_proto("y", {-1, kWide})});
  const std::string path = cat(temp_dir(), "/budget.onnx");
  std::ofstream(path, std::ios::binary) << model_bytes(graph);
  constexpr uint64_t kMiB = 1 << 20;
  PredictorOptions options;
  options.threads = 1;
  options.name = "wide";
  options.resources.memory = MemoryBudget::make(3 * kMiB);
  const auto refused = Predictor::open(path, options);
  CHECK(refused.status().code() == StatusCode::kResourceExhausted);
  for (const char* words : {"memory budget of 3.0 MiB", "for wide", "raise the memory"})
    CHECK(refused.status().message().find(words) != std::string::npos);
  CHECK(options.resources.memory->reserved() == 0);

  options.resources.memory = MemoryBudget::make(16 * kMiB);
  const MemoryBudget& budget = *options.resources.memory;
  auto predictor = Predictor::open(path, options);
  REQUIRE_OK(predictor);
  const uint64_t weights = budget.reserved();
  CHECK(weights >= 4 * kMiB);  // the matrix, whatever its layout
  CHECK(weights <= 9 * kMiB);
  {
    auto results = (*predictor)->run({Datum(random_tensor({256, kWide}, 2))});
    REQUIRE_OK(results);
    CHECK(budget.reserved() >= weights + kMiB + (*predictor)->arena_bytes());
  }
  // What results lay in is kept for the next run.
  CHECK(budget.reserved() == weights + kMiB + (*predictor)->arena_bytes());
  const auto too_wide = (*predictor)->run({Datum(random_tensor({4096, kWide}, 2))});
  CHECK(too_wide.status().code() == StatusCode::kResourceExhausted);
  REQUIRE_OK((*predictor)->run({Datum(random_tensor({256, kWide}, 2))}));
  (*predictor)->shrink();
  CHECK(budget.reserved() == weights);
  predictor = internal_error("gone");
  CHECK(budget.reserved() == 0);
}

TEST_CASE("predictor memory: forty sets of shapes keep the bytes of one") {
  constexpr int64_t kWide = 96;
  const Proto graph =
      graph_proto({node_proto("Conv", {"x", "c"}, {"a"}), node_proto("GlobalAveragePool", {"a"}, {"b"}),
                   node_proto("Flatten", {"b"}, {"d"}), node_proto("MatMul", {"d", "w"}, {"e"}),
                   node_proto("MatMul", {"e", "w"}, {"y"})},
                  {tensor_proto("c", {kWide, 3, 3, 3}, random_floats(kWide * 27, 1)),
                   tensor_proto("w", {kWide, kWide}, random_floats(kWide * kWide, 2))},
                  {value_proto("x", {-1, 3, -1, -1})}, {value_proto("y", {-1, kWide})});
  const std::string path = cat(temp_dir(), "/forty.onnx");
  std::ofstream(path, std::ios::binary) << model_bytes(graph);
  PredictorOptions options;
  options.threads = 1;
  options.resources.memory = MemoryBudget::make(uint64_t{64} << 20);
  const MemoryBudget& budget = *options.resources.memory;
  const auto p = Predictor::open(path, options);
  REQUIRE_OK(p);
  const uint64_t weights = budget.reserved();
  CHECK(weights >= static_cast<uint64_t>(kWide * (kWide + 27)) * sizeof(float));
  const auto run = [&](int64_t rows, int64_t side) {
    REQUIRE_OK((*p)->run({Datum(random_tensor({rows, 3, side, side + 1}, 3))}));
  };
  run(9, 24);  // the largest
  const uint64_t one = budget.reserved(), arena = (*p)->arena_bytes();
  CHECK(one > weights);
  for (int64_t k = 0; k < 39; ++k) run(1 + k % 8, 4 + k % 19);
  CHECK((*p)->kept_plans() >= 20);
  CHECK((*p)->arena_bytes() == arena);
  CHECK(budget.reserved() <= one);
  (*p)->shrink();
  CHECK(budget.reserved() == weights);
}
