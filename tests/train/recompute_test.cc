// What is computed again on the way back: the same bits, less memory, and nothing that a pass takes back.
#include <algorithm>

#include "engine/graph/pass.h"
#include "engine/ops/train/ops.h"
#include "tests/train/training_fixture.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

constexpr Recompute kAll[] = {Recompute::kNone, Recompute::kActivations, Recompute::kLayers,
                              Recompute::kFull};

// A tiny model with so many layers of the tiny golden's kind.
ModelGraphs deep_graphs(int64_t layers, Recompute how) {
  const TinyGolden golden = load_tiny_golden("llama3");
  Checkpoint c = load_checkpoint(write_tiny_model(golden, TinyDtype::f32)).value();
  c.config["num_hidden_layers"] = layers;
  const TensorMap stored = c.tensors;
  for (const auto& [name, tensor] : stored) {
    const std::string first = "model.layers.0.";
    for (int64_t k = 2; k < layers && name.starts_with(first); ++k)
      c.tensors[cat("model.layers.", k, ".", name.substr(first.size()))] = tensor;
  }
  GraphOptions o;
  o.tokens = 64;
  o.full = true;
  o.recompute = how;
  return build_model_graphs(c, read_model_config(c.config).value(), o).value();
}

size_t count(const Graph& g, const OpDef& op) {
  return static_cast<size_t>(
      std::count_if(g.nodes().begin(), g.nodes().end(), [&](const Node& n) { return n.op == &op; }));
}

}  // namespace

TEST_CASE("recomputation changes no bit of losses and weights") {
  for (const char* name : {"llama3", "gemma2", "qwen3-moe", "gpt2"}) {
    for (const bool full : {true, false}) {
      std::vector<double> losses[4];
      std::vector<Tensor> values[4];
      for (const Recompute how : kAll) {
        const auto k = static_cast<size_t>(how);
        TinyRun run(name);
        run.options.graph.full = full;
        run.options.graph.recompute = how;
        run.options.accumulate = 2;
        run.options.rate = 1e-2;
        const auto t = run.trainer();
        for (int n = 0; n < 3; ++n) losses[k].push_back(t->step().value().loss);
        for (size_t p = 0; p < t->parameters().size(); ++p) values[k].push_back(t->value(p));
      }
      INFO(name << (full ? " full" : " lora"));
      CHECK(losses[0][0] != losses[0][2]);
      for (const size_t k : {1, 2, 3}) {
        CHECK(losses[0] == losses[k]);
        for (size_t p = 0; p < values[0].size(); ++p) CHECK(same_bits(values[0][p], values[k][p]));
      }
    }
  }
}

TEST_CASE("a layer is computed twice, between kept ones thrice, and cse merges none of it") {
  constexpr size_t kLayers = 9, kLinear = 7;  // of them in a layer
  size_t linear[4];
  for (const Recompute how : kAll) {
    Graph g = *deep_graphs(kLayers, how).step;
    linear[static_cast<size_t>(how)] = count(g, op_rows_linear);
    CHECK((count(g, op_barrier) > 0) == (how != Recompute::kNone));
    REQUIRE(passes::cse(g).ok());
    REQUIRE(passes::dce(g).ok());
    CHECK(count(g, op_rows_linear) == linear[static_cast<size_t>(how)]);
  }
  CHECK(linear[0] == kLayers * kLinear);
  // A layer's last product leads to the next one's input, which is kept; the last one's to the final norm.
  CHECK(linear[1] == linear[0]);
  CHECK(linear[2] == linear[0] + kLayers * (kLinear - 1) + 1);
  CHECK(linear[3] == linear[2] + (kLayers - 3) * kLinear);
}

TEST_CASE("a step takes less memory the less is kept") {
  uint64_t bytes[4];
  const auto backend = cpu(1);
  for (const Recompute how : kAll) {
    const ModelGraphs graphs = deep_graphs(16, how);
    const auto evaluator = Evaluator::create(graphs.step, *backend).value();
    std::vector<Tensor> states;
    for (int twice = 0; twice < 2; ++twice)
      for (const Parameter& p : graphs.parameters)
        states.push_back(Tensor::without_bytes(p.shape, Format::f32()));
    EvalOptions o;
    o.backend = backend.get();
    o.states = states;
    const Datum row(i32(std::vector<int32_t>(64)));
    bytes[static_cast<size_t>(how)] =
        evaluator->size({row, row, row, row, Datum(f32({}, {1}))}, o).value().peak_bytes();
  }
  CHECK(bytes[1] < bytes[0]);
  CHECK(bytes[2] < bytes[0] / 2);
  CHECK(bytes[3] < bytes[2]);
}

TEST_CASE("values lie where they were planned, however rows are cut into segments") {
  const auto backend = cpu(1);
  const ModelGraphs graphs = deep_graphs(6, Recompute::kNone);
  const auto evaluator = Evaluator::create(graphs.step, *backend).value();
  std::vector<Tensor> states;
  for (int twice = 0; twice < 2; ++twice)
    for (const Parameter& p : graphs.parameters)
      states.push_back(Tensor::zeros(p.shape, Format::f32()).value());
  EvalOptions o;
  o.backend = backend.get();
  o.states = states;
  // Attention asks for other blocks than those of one segment, for which it was sized.
  std::vector<int32_t> rows(64), positions, segments;
  for (const int32_t length : {3, 16, 5, 1, 39}) {
    for (int32_t k = 0; k < length; ++k) segments.push_back(length), positions.push_back(k);
  }
  const std::vector<Datum> in{Datum(i32(rows)), Datum(i32(positions)), Datum(i32(segments)), Datum(i32(rows)),
                              Datum(f32({}, {1}))};
  RunMemory memory;
  REQUIRE(memory.begin(std::make_shared<const BlockPlan>(evaluator->size(in, o).value())).ok());
  size_t outside = 0;
  o.memory = &memory;
  o.observe = [&](const Node&, std::span<const Datum> results) {
    for (const Datum& d : results)
      outside += d.tensor.buffer().transient() && !memory.in_arena(d.tensor.data()) ? 1 : 0;
    return ok_status();
  };
  const auto out = evaluator->run(in, o);
  INFO((out.ok() ? std::string() : out.status().message()));
  REQUIRE(out.ok());
  CHECK(outside == out->size());  // results, which outlive the arena
}
