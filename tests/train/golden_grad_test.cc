// Gradients against PyTorch's autograd (tests/golden/generate_gradients.py).
#include <set>

#include "engine/base/json.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"
#include "tests/train/gradient_check.h"
#include "tests/train/model_loss.h"

namespace {
using namespace oar;

json::value read_golden(const std::string& name) {
  return json::parse(oar_test::read_file(oar_test::source_path("tests/golden/gradients/" + name)));
}

std::vector<double> doubles(const json::value& list) {
  std::vector<double> out;
  for (const json::value& v : list.as_array()) out.push_back(v.to_number<double>());
  return out;
}
std::vector<int64_t> integers(const json::value& list) {
  std::vector<int64_t> out;
  for (const json::value& v : list.as_array()) out.push_back(v.to_number<int64_t>());
  return out;
}

Attrs attrs_of(const json::object& o) {
  Attrs attrs;
  for (const auto& [name, v] : o) {
    if (v.is_string()) attrs.set(name, std::string(v.as_string()));
    else if (v.is_array()) attrs.set(name, integers(v));
    else if (v.is_double()) attrs.set(name, v.as_double());
    else attrs.set(name, v.to_number<int64_t>());
  }
  return attrs;
}

}  // namespace

TEST_CASE("gradients of ops equal PyTorch's to 1e-6 in f64") {
  const json::value cases = read_golden("ops.json");
  for (const json::value& item : cases.as_array()) {
    const json::object& c = item.as_object();
    const std::string op(c.at("op").as_string());
    INFO(op << " " << json::serialize(c.at("attrs")));
    Graph graph;
    Builder b(graph);
    oar_test::Inputs inputs;
    std::vector<Val> operands;
    std::vector<ValueId> wanted;
    const json::array& listed = c.at("operands").as_array();
    for (size_t k = 0; k < listed.size(); ++k) {
      operands.emplace_back();
      if (listed[k].is_null()) continue;
      const json::object& o = listed[k].as_object();
      HostValue v;
      v.shape = Shape(integers(o.at("shape")));
      const std::string name = cat("x", k);
      const bool constant = o.contains("constant");  // an axis, or sizes
      if (o.contains("integers")) {
        v.i = integers(o.at("integers"));
        v.dtype = o.contains("bool") ? DType::kBool : constant ? DType::kI64 : DType::kI32;
      } else {
        v.f = doubles(o.at("values"));
      }
      if (constant) {
        const auto t = to_tensor(v);
        REQUIRE_OK(t);
        operands.back() = b.constant(name, *t);
        continue;
      }
      operands.back() = {graph.add_input(name, oar_test::type_of(v))};
      inputs[name] = v;
      if (o.contains("gradient")) wanted.push_back(operands.back().id);
    }
    const std::vector<Val> made = b.ops(op, operands, attrs_of(c.at("attrs").as_object()));
    REQUIRE_OK(b.status());
    const Val y = made[c.at("result").to_number<size_t>()];
    HostValue seed;
    std::vector<int64_t> dims;
    for (const Dim& d : b.shape(y)) dims.push_back(d.const_value());
    seed.shape = Shape(dims), seed.f = doubles(c.at("seed"));
    inputs["seed"] = seed;
    const ValueId by = graph.add_input("seed", oar_test::type_of(seed)), outputs[] = {y.id};
    const auto g = passes::grad(graph, outputs, wanted, {.seeds = {by}});
    REQUIRE_OK(g);
    const auto at = evaluate_reference(*g, inputs);
    REQUIRE_OK(at);
    for (size_t k = 0; k < listed.size(); ++k) {
      if (listed[k].is_null() || !listed[k].as_object().contains("gradient")) continue;
      INFO("operand " << k);
      const std::vector<double> want = doubles(listed[k].as_object().at("gradient"));
      const HostValue& got = at->at(cat("grad/x", k));
      REQUIRE(got.f.size() == want.size());
      for (size_t i = 0; i < want.size(); ++i)
        CHECK(std::abs(got.f[i] - want[i]) <= 1e-6 * (1 + std::abs(want[i])));
    }
  }
}

TEST_CASE("every op that has a gradient has one of PyTorch's") {
  // The reason a line.
  const std::set<std::string> elsewhere{
      "dequantize_linear", "gather_nbits",
      "matmul_nbits",  // codes of integers: only scales would have one
      "padding_mask",  // made of lengths
  };
  std::set<std::string> listed;
  const json::value cases = read_golden("ops.json");
  for (const json::value& c : cases.as_array()) listed.emplace(c.at("op").as_string());
  for (const OpDef* op : all_ops()) {
    if (std::string_view(differentiability(*op)) != "any order") continue;
    INFO(op->name);
    CHECK(listed.contains(op->name) != elsewhere.contains(op->name));
  }
}

TEST_CASE("gradients of every architecture's weights equal PyTorch's") {
  const json::value models = read_golden("models.json");
  oar_test::Sample sample(4);
  for (const auto& [name, model] : models.as_object()) {
    if (!sample.take()) continue;
    INFO(std::string(name));
    const oar_test::TinyGolden golden = oar_test::load_tiny_golden(std::string(name));
    const oar_test::ModelLoss m(golden, golden.tokens.size() - 1, oar_test::ModelLoss::kOneSample);
    std::vector<ValueId> ids;
    for (const std::string& w : m.weights) ids.push_back(*passes::find_value(m.graph, w));
    const ValueId outputs[] = {*passes::find_value(m.graph, "L")};
    const auto g = passes::grad(m.graph, outputs, ids);
    REQUIRE_OK(g);
    const auto at = evaluate_reference(*g, m.inputs);
    REQUIRE_OK(at);
    // transformers keeps norms, rope tables and softmax in f32: 2^-24 each, over a few dozen of them.
    CHECK(std::abs(at->at("L").f[0] - model.as_object().at("loss").to_number<double>()) < 1e-5);
    const json::object& gradients = model.as_object().at("gradients").as_object();
    double most = 0;
    for (const auto& [w, numbers] : gradients)
      most = std::max(most, numbers.as_array()[0].to_number<double>());
    size_t compared = 0;
    for (const auto& [w, numbers] : gradients) {
      INFO(std::string(w));
      const auto found = at->find("grad/" + std::string(w));
      if (found == at->end()) continue;  // counted below
      ++compared;
      double norm = 0, product = 0;
      const std::vector<double>& v = found->second.f;
      for (size_t k = 0; k < v.size(); ++k) {
        norm += v[k] * v[k];
        product += v[k] * std::cos(0.9 * static_cast<double>(k) + 0.3);
      }
      const double bound = 2e-5 * most;
      CHECK(std::abs(std::sqrt(norm) - numbers.as_array()[0].to_number<double>()) < bound);
      CHECK(std::abs(product - numbers.as_array()[1].to_number<double>()) < bound);
    }
    // Corrections of routers are added where experts are chosen: no gradient is theirs.
    for (const std::string& w : m.weights) {
      if (!w.ends_with("e_score_correction_bias")) continue;
      ++compared;
      for (const double v : at->at("grad/" + w).f) CHECK(v == 0);
    }
    CHECK(compared == m.weights.size());
  }
}
