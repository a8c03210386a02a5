// Small graphs for tests: random constants and inputs, one run through a Run, one through the reference.
#pragma once

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/graph/builder.h"
#include "engine/graph/pass.h"
#include "engine/graph/reference.h"
#include "engine/graph/run.h"
#include "tests/support/catch.h"

namespace oar_test {

struct GraphFixture {
  oar::Graph graph;
  oar::Builder b{graph};
  oar::SymbolId T = graph.add_symbol("T", 32);
  std::map<std::string, oar::HostValue> inputs;  // for T = rows
  int64_t rows = 13;
  std::mt19937 random{7};

  oar::Val input(const std::string& name, std::vector<int64_t> inner) {
    oar::DimVector shape{graph.dim(T)};
    std::vector<int64_t> dims{rows};
    for (int64_t d : inner) shape.emplace_back(d), dims.push_back(d);
    oar::HostValue v;
    v.shape = oar::Shape(dims);
    std::uniform_real_distribution<double> u(-2, 2);
    for (int64_t k = 0; k < v.shape.numel(); ++k) v.f.push_back(static_cast<float>(u(random)));
    inputs[name] = v;
    return {graph.add_input(name, {oar::Format::f32(), shape})};
  }
  oar::Val positions() {
    oar::HostValue v;
    v.shape = oar::Shape({rows});
    v.dtype = oar::DType::kI32;
    for (int64_t k = 0; k < rows; ++k) v.i.push_back(3 * k + 100);
    inputs["positions"] = v;
    return {graph.add_input("positions", {oar::Format::i32(), {graph.dim(T)}})};
  }
  oar::Val constant(const std::string& name, std::initializer_list<int64_t> dims) {
    auto t = oar::Tensor::allocate(oar::Shape(dims), oar::Format::f32());
    std::uniform_real_distribution<float> u(-1, 1);
    for (float& x : t->mutable_values<float>()) x = u(random);
    return b.constant(name, std::move(*t));
  }
  void output(oar::Val v) {
    REQUIRE_OK(b.status());
    graph.add_output("out", v.id);
  }

  std::vector<double> reference() const {
    auto r = oar::evaluate_reference(graph, inputs);
    REQUIRE_OK(r);
    return r->at("out").f;
  }

  // Through kernels of the processor, T = rows.
  std::vector<double> planned(oar::Isa isa = oar::best_isa()) const {
    auto backend =
        oar::make_cpu_backend(std::make_shared<oar::ThreadPool>(oar::ThreadPoolOptions{.threads = 2}), isa);
    return planned_on(*backend);
  }
  // Through `backend`, `runs` times over the same inputs; the last result.
  std::vector<double> planned_on(oar::Backend& backend, const oar::ProgramOptions& options = {},
                                 int runs = 1) const {
    auto program = oar::Program::create(graph, backend, options);
    REQUIRE_OK(program);
    auto run = oar::Run::create(*program);
    REQUIRE_OK(run);
    std::vector<oar::Tensor> tensors;
    std::vector<const void*> bytes;
    for (oar::ValueId id : graph.inputs()) {
      auto t = oar::to_tensor(inputs.at(graph.value(id).name));
      REQUIRE_OK(t);
      tensors.push_back(std::move(*t));
      bytes.push_back(tensors.back().data());
    }
    const std::vector<int64_t> symbols{rows};
    std::vector<float> out;
    for (int k = 0; k < runs; ++k) {
      REQUIRE_OK((*run)->run(symbols, bytes));
      out.assign(static_cast<size_t>((*run)->output(0).numel()), NAN);
      REQUIRE_OK((*run)->read_output(0, out));
    }
    return {out.begin(), out.end()};
  }
};

// max |a - b| / (1 + max |b|)
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, scale = 1;
  for (size_t k = 0; k < a.size(); ++k) {
    if (std::isnan(a[k]) != std::isnan(b[k])) return INFINITY;
    worst = std::max(worst, std::abs(a[k] - b[k]));
    scale = std::max(scale, std::abs(b[k]));
  }
  return worst / scale;
}

}  // namespace oar_test
