// Language models differentiated whole: every tiny architecture's loss over its next tokens, by differences
// in double, and by a Program on the processor, which has the gradients of all its weights as outputs.
#include "engine/graph/run.h"
#include "engine/ops/train/ops.h"
#include "tests/support/sample.h"
#include "tests/train/model_loss.h"

namespace {
using namespace oar;

// Of all outputs of a Program on the processor.
std::map<std::string, std::vector<float>> planned(const Graph& graph, const oar_test::Inputs& inputs,
                                                  int64_t n) {
  const auto backend =
      make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 2}), best_isa());
  const auto program = Program::create(graph, *backend, {});
  REQUIRE_OK(program);
  const auto run = Run::create(*program);
  REQUIRE_OK(run);
  std::vector<Tensor> tensors;
  std::vector<const void*> bytes;
  for (const ValueId id : graph.inputs()) {
    const auto t = to_tensor(inputs.at(graph.value(id).name));
    REQUIRE_OK(t);
    tensors.push_back(*t);
    bytes.push_back(tensors.back().data());
  }
  const std::vector<int64_t> symbols(graph.symbols().size(), n);
  REQUIRE_OK((*run)->run(symbols, bytes));
  std::map<std::string, std::vector<float>> out;
  for (size_t k = 0; k < graph.outputs().size(); ++k) {
    std::vector<float>& v = out[graph.outputs()[k].name];
    v.resize(static_cast<size_t>((*run)->output(k).numel()));
    REQUIRE_OK((*run)->read_output(k, v));
  }
  return out;
}

}  // namespace

TEST_CASE("gradients of every architecture equal differences, and the processor computes them") {
  oar_test::Sample sample(11);
  for (const std::string& name : oar_test::tiny_golden_names()) {
    if (!sample.take()) continue;
    const oar_test::TinyGolden golden = oar_test::load_tiny_golden(name);
    INFO(name);
    constexpr size_t kTokens = 5;
    oar_test::ModelLoss m(golden, kTokens, oar_test::ModelLoss::kTwoSamples);
    // state_scan has no derivative; a trainer's graph has segment_scan in its place, in double on one thread.
    bool scans = false;
    for (Node& n : m.graph.nodes())
      if (n.is("state_scan")) n.op = &train::op_segment_scan, scans = true;
    // Routers choose by comparisons, and gates are clamped, in places that differences may cross: those far
    // from a tie or a limit do not at these steps. Of gates there are thousands.
    const bool clamped = golden.config.find("swiglu_limit") != std::string::npos;
    oar_test::check_gradients(m.graph, m.inputs, m.weights, 1, 1e-6, clamped ? 1e-7 : 1e-5);
    if (scans) continue;

    std::vector<ValueId> ids;
    for (const std::string& w : m.weights) ids.push_back(*passes::find_value(m.graph, w));
    const ValueId outputs[] = {*passes::find_value(m.graph, "L")};
    const auto g = passes::grad(m.graph, outputs, ids);
    REQUIRE_OK(g);
    const auto expected = evaluate_reference(*g, m.inputs);
    REQUIRE_OK(expected);
    const auto got = planned(*g, m.inputs, kTokens);
    double most = 1e-3;
    for (const std::string& w : m.weights) {
      for (const double v : expected->at("grad/" + w).f) most = std::max(most, std::abs(v));
    }
    for (const auto& [output, values] : got) {
      INFO(output);
      const std::vector<double>& want = expected->at(output).f;
      REQUIRE(values.size() == want.size());
      // Products of at most a few hundred terms through a few dozen layers of f32: 2^-24 a term, of the
      // largest.
      double worst = 0;
      for (size_t k = 0; k < want.size(); ++k)
        worst = std::max(worst, std::abs(want[k] - static_cast<double>(values[k])));
      CHECK(worst < 2e-4 * most);
    }
  }
}
