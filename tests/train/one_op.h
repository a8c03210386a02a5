// One op of training at work: its run on any instruction set, what defines it, and how far the two are apart.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/reference.h"
#include "engine/ops/train/ops.h"
#include "tests/kernels/matmul_problem.h"
#include "tests/train/gradient_check.h"
#include "tests/train/guarded_backend.h"
#include "tests/train/training_fixture.h"

namespace oar_test {

inline std::vector<float> random_values(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> out(n);
  for (float& v : out) v = normal(random);
  return out;
}

inline oar::TensorType f32_of(std::initializer_list<int64_t> dims) {
  oar::TensorType t{oar::Format::f32(), {}};
  for (const int64_t d : dims) t.shape.emplace_back(d);
  return t;
}

// The same bytes, ending at a guard page.
inline oar::Tensor guarded(const oar::Tensor& t) {
  if (t.bytes() == 0) return t;
  const auto bytes =
      std::make_shared<Guarded<char>>(t.bytes(), static_cast<size_t>(t.format().info().alignment));
  std::memcpy(bytes->data(), t.data(), t.bytes());
  return oar::Tensor::make(t.shape(), t.format(), oar::Buffer::wrap_const(bytes->data(), t.bytes(), bytes))
      .value();
}

// What a graph makes of inputs and states, which are written. All that is computed, packed and written lies
// at guard pages, as what guarded() gives does; results are copies. `kernels`, where given, receives the ops
// that kernels computed.
inline oar::Result<std::vector<oar::Datum>> run_guarded(const oar::Graph& graph,
                                                        std::vector<oar::Datum> inputs,
                                                        const std::vector<oar::Tensor>& states, int threads,
                                                        oar::Isa isa,
                                                        std::set<std::string>* kernels = nullptr) {
  GuardedBackend backend(cpu(threads, isa));
  const auto made = [&]() -> oar::Result<std::vector<oar::Datum>> {
    const auto evaluator = oar::Evaluator::create(std::make_shared<const oar::Graph>(graph), backend);
    REQUIRE_OK(evaluator);
    oar::RunMemory memory(&backend);
    std::vector<oar::Tensor> own;
    for (const oar::Tensor& t : states) {
      own.push_back(oar::Tensor::make(t.shape(), t.format(), backend.allocate(t.bytes()).value()).value());
      if (t.bytes() > 0) std::memcpy(own.back().mutable_data(), t.data(), t.bytes());
    }
    oar::EvalOptions o;
    o.backend = &backend, o.memory = &memory, o.states = own;
    if (kernels != nullptr)
      o.placed = [&](const oar::NodePlace& place) {
        if (place.where != nullptr) kernels->insert(place.node.op->name);
      };
    auto results = (*evaluator)->run(std::move(inputs), o);
    for (size_t k = 0; k < states.size(); ++k)
      if (own[k].bytes() > 0) std::memcpy(states[k].mutable_data(), own[k].data(), own[k].bytes());
    if (!results.ok()) return results;
    for (oar::Datum& d : *results) {
      if (!d.is_tensor()) continue;  // a result that this node has not
      oar::Tensor copy = oar::Tensor::allocate(d.tensor.shape(), d.tensor.format()).value();
      if (copy.bytes() > 0) std::memcpy(copy.mutable_data(), d.tensor.data(), copy.bytes());
      d.tensor = std::move(copy);
    }
    return results;
  }();
  CHECK(backend.overwritten() == 0);
  return made;
}

// One node over these operands, the last `states` of which are states.
struct OneOp {
  oar::Graph graph;
  std::vector<oar::Datum> inputs;
  std::vector<oar::Tensor> states;

  OneOp(const oar::OpDef& op, const std::vector<oar::Tensor>& operands, size_t first_state,
        oar::Attrs attrs = {}, size_t results = 0, int64_t constant = -1) {
    std::vector<oar::ValueId> ids;
    for (size_t k = 0; k < operands.size(); ++k) {
      const oar::Tensor& t = operands[k];
      const oar::TensorType type{t.format(), oar::DimVector(t.shape().begin(), t.shape().end())};
      if (k >= first_state) ids.push_back(graph.add_state("s", type)), states.push_back(t);
      else if (static_cast<int64_t>(k) == constant) ids.push_back(graph.add_constant("w", guarded(t)));
      else ids.push_back(graph.add_input("x", type)), inputs.emplace_back(guarded(t));
    }
    auto made = graph.add_node(&op, std::move(ids), std::move(attrs));
    INFO((made.ok() ? std::string() : made.status().message()));
    REQUIRE(made.ok());
    if (results > 0) graph.nodes().back().outputs.resize(results);
    for (const oar::ValueId v : graph.nodes().back().outputs) graph.add_output("y", v);
  }
  oar::Result<std::vector<oar::Datum>> try_run(int threads = 1, oar::Isa isa = oar::best_isa()) const {
    return run_guarded(graph, inputs, states, threads, isa);
  }
  std::vector<oar::Tensor> run(int threads = 1, oar::Isa isa = oar::best_isa()) const {
    auto r = try_run(threads, isa);
    INFO((r.ok() ? std::string() : r.status().message()));
    REQUIRE(r.ok());
    std::vector<oar::Tensor> out;
    for (const oar::Datum& d : *r) out.push_back(d.tensor);
    return out;
  }
};

inline oar::Tensor hyper(double rate, double most, double c1, double c2) {
  oar::Tensor t = oar::Tensor::allocate({4}, oar::Format::of(oar::DType::kF64)).value();
  const double v[] = {rate, most, c1, c2};
  std::memcpy(t.mutable_data(), v, sizeof v);
  return t;
}

// Each instruction set, alone and with threads: the same bits for any number of these.
inline std::vector<std::pair<Isa, int>> runs() {
  std::vector<std::pair<Isa, int>> out;
  for (const oar::Isa isa : levels()) out.emplace_back(isa, 1), out.emplace_back(isa, 3);
  return out;
}

inline oar::HostValue host(const oar::Tensor& t) { return oar::host_value(t).value(); }

// Within a few roundings of f32 at the size of what is added up.
inline void check_close(const oar::Tensor& got, const std::vector<double>& want, double unit) {
  REQUIRE(static_cast<size_t>(got.numel()) == want.size());
  double worst = 0;
  for (size_t k = 0; k < want.size(); ++k)
    worst = std::max(
        worst, std::abs(static_cast<double>(got.values<float>()[k]) - want[k]) / (std::abs(want[k]) + unit));
  CHECK(worst < 8 * 0x1p-24);
}

// What an op's definition makes of these, in double.
inline std::vector<oar::HostValue> defined_results(const oar::OpDef& op,
                                                   const std::vector<oar::Tensor>& operands,
                                                   const oar::Attrs& attrs) {
  std::vector<oar::HostValue> values;
  for (const oar::Tensor& t : operands) values.push_back(host(t));
  std::vector<const oar::HostValue*> given;
  for (const oar::HostValue& v : values) given.push_back(&v);
  const auto made = oar::evaluate_node(op, given, attrs);
  INFO((made.ok() ? std::string() : made.status().message()));
  REQUIRE(made.ok());
  return *made;
}

// Of products in double: each sum, and that of the sizes of what it adds up.
struct Sums {
  std::vector<double> sums, sizes;
};

// The largest difference in units of its bound, `rounding` times the sizes; infinity where a number is none.
inline double in_bounds(const oar::Tensor& got, const Sums& want, double rounding) {
  REQUIRE(static_cast<size_t>(got.numel()) == want.sums.size());
  REQUIRE(want.sizes.size() == want.sums.size());
  double worst = 0;
  for (size_t i = 0; i < want.sums.size(); ++i) {
    const double d = std::abs(static_cast<double>(got.values<float>()[i]) - want.sums[i]) /
                     (rounding * want.sizes[i] + 1e-30);
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

// The largest difference; infinity where a number is none.
inline double farthest(const oar::Tensor& got, const std::vector<double>& want) {
  REQUIRE(static_cast<size_t>(got.numel()) == want.size());
  double worst = 0;
  for (size_t k = 0; k < want.size(); ++k) {
    const double d = std::abs(static_cast<double>(got.values<float>()[k]) - want[k]);
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

}  // namespace oar_test
