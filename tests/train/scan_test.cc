// The recurrence of gated delta and Mamba-2 layers, differentiated: against differences in double.
#include <cmath>
#include <limits>

#include "engine/ops/train/ops.h"
#include "tests/train/gradient_check.h"

using namespace oar;
using namespace oar::train;

namespace {

constexpr int64_t T = 7, Hk = 2, Hv = 4, Dk = 3, Dv = 2;
const char* const kNames[] = {"q", "k", "v", "g", "beta"};

struct Scan {
  Graph graph;
  oar_test::Inputs inputs;
  std::vector<std::string> wanted{std::begin(kNames), std::end(kNames)};

  explicit Scan(int64_t delta, std::vector<int64_t> segments = {0, 0, 0, 1, 2, 2, 2}) {
    std::mt19937 random(5);
    const auto rows = static_cast<int64_t>(segments.size());
    const Shape shapes[] = {{rows, Hk, Dk}, {rows, Hk, Dk}, {rows, Hv, Dv}, {rows, Hv}, {rows, Hv}};
    std::vector<Val> in;
    const auto input = [&](const char* name, HostValue v) {
      in.push_back({graph.add_input(name, oar_test::type_of(v))});
      inputs[name] = std::move(v);
    };
    for (size_t k = 0; k < 5; ++k) {
      HostValue v;
      v.shape = shapes[k];
      const bool decay = k == 3, beta = k == 4;
      v.f = oar_test::apart(v.shape.numel(), decay ? -1.5 : beta ? 0.1 : -1, decay ? -0.05 : 1, random);
      input(kNames[k], std::move(v));
    }
    HostValue s;
    s.shape = Shape({rows}), s.dtype = DType::kI32, s.i = std::move(segments);
    input("segments", std::move(s));
    Builder b(graph);
    const std::vector<Val> y = emit(b, op_segment_scan, in, {{"delta", delta}});
    REQUIRE_OK(b.status());
    in.clear();
    HostValue by;
    by.shape = Shape({rows, Hv, Dv});
    for (int64_t k = 0; k < by.shape.numel(); ++k)
      by.f.push_back(std::cos(1.7 * static_cast<double>(k)) + 0.2);
    input("by", std::move(by));
    const Val L = b.op("reduce_sum", {b.op("mul", {y[0], in[0]})}, {{"keepdims", int64_t{0}}});
    REQUIRE_OK(b.status());
    graph.add_output("L", L.id);
  }
  std::map<std::string, HostValue> gradients() const {
    std::vector<ValueId> ids;
    for (const std::string& w : wanted) ids.push_back(*passes::find_value(graph, w));
    const ValueId outputs[] = {*passes::find_value(graph, "L")};
    const auto g = passes::grad(graph, outputs, ids);
    REQUIRE_OK(g);
    auto at = evaluate_reference(*g, inputs);
    REQUIRE_OK(at);
    return std::map<std::string, HostValue>(at->begin(), at->end());
  }
};

}  // namespace

TEST_CASE("gradients of the scan equal differences, with a correction and without, segment by segment") {
  for (const int64_t delta : {1, 0}) {
    INFO("delta " << delta);
    const Scan s(delta), one(delta, {4}), none(delta, {});
    oar_test::check_gradients(s.graph, s.inputs, s.wanted, 1);
    oar_test::check_gradients(one.graph, one.inputs, one.wanted, 1);
    for (const auto& [name, d] : none.gradients()) CHECK((name == "L" || d.f.empty()));
  }
}

TEST_CASE("no number of one sample's scan reaches another's gradients") {
  Scan s(1);
  for (size_t t = 3; t < 4; ++t)
    for (size_t k = 0; k < Hv * Dv; ++k)
      s.inputs["v"].f[t * Hv * Dv + k] = std::numeric_limits<double>::quiet_NaN();
  const auto d = s.gradients();
  bool broken = false;
  for (const std::string& name : s.wanted) {
    const HostValue& g = d.at("grad/" + name);
    const size_t row = g.f.size() / T;
    for (size_t k = 0; k < g.f.size(); ++k) {
      if (k / row == 3) broken = broken || std::isnan(g.f[k]);
      else CHECK(std::isfinite(g.f[k]));
    }
  }
  CHECK(broken);
}

TEST_CASE("the scan is differentiated once, and who asks again is told which op has no gradient") {
  const Scan s(1);
  const ValueId outputs[] = {*passes::find_value(s.graph, "L")},
                inputs[] = {*passes::find_value(s.graph, "q")};
  const auto first = passes::grad(s.graph, outputs, inputs);
  REQUIRE_OK(first);
  const ValueId again[] = {*passes::find_value(*first, "grad/q")}, k[] = {*passes::find_value(*first, "k")};
  const auto second = passes::grad(*first, again, k, {.prefix = "second/"});
  REQUIRE(!second.ok());
  CHECK(second.status().message().find("segment_scan_back has no gradient") != std::string::npos);
}
