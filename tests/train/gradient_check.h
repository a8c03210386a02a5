// Gradients against differences: of a graph evaluated in double, along random directions, order by order.
#pragma once

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/base/format.h"
#include "engine/graph/builder.h"
#include "engine/graph/passes/grad.h"
#include "engine/graph/reference.h"
#include "tests/support/catch.h"

namespace oar_test {

using Inputs = std::map<std::string, oar::HostValue>;

// Numbers in [low, high] in random order, as far from each other as they can be: no two operands are near a
// kink of max, abs or a norm, as differences need it.
inline std::vector<double> apart(int64_t n, double low, double high, std::mt19937& random) {
  std::vector<double> v;
  for (int64_t k = 0; k < n; ++k)
    v.push_back(low + (high - low) * (static_cast<double>(k) + 0.37) / static_cast<double>(n));
  std::shuffle(v.begin(), v.end(), random);
  return v;
}

inline oar::TensorType type_of(const oar::HostValue& v) {
  oar::TensorType t{oar::Format::of(v.dtype), {}};
  for (const int64_t d : v.shape) t.shape.emplace_back(d);
  return t;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}

// Of a graph with one scalar output "L": checks dL along directions in `wanted` inputs, then the same of the
// sum of gradients times fixed random numbers, up to `order`. Nodes of every order are ordinary, and inputs
// stay inputs.
inline void check_gradients(oar::Graph graph, Inputs inputs, const std::vector<std::string>& wanted,
                            int order, double bound = 1e-7, double h = 1e-3) {
  using namespace oar;
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  for (int n = 1; n <= order; ++n) {
    INFO("order " << n);
    std::vector<ValueId> ids;
    for (const std::string& name : wanted) {
      const auto v = passes::find_value(graph, name);
      REQUIRE_OK(v);
      ids.push_back(*v);
    }
    const auto loss = passes::find_value(graph, "L");
    REQUIRE_OK(loss);
    const ValueId outputs[] = {*loss};
    const std::string prefix = cat("d", n, "/");
    auto made = passes::grad(graph, outputs, ids, {.prefix = prefix});
    REQUIRE_OK(made);
    const auto at = evaluate_reference(*made, inputs);
    REQUIRE_OK(at);
    for (int direction = 0; direction < 2; ++direction) {
      std::map<std::string, std::vector<double>> u;
      double slope = 0, scale = 1e-3;
      for (const std::string& name : wanted) {
        const HostValue& g = at->at(prefix + name);
        CHECK(g.shape == inputs.at(name).shape);
        auto& along = u[name];
        for (size_t k = 0; k < inputs.at(name).f.size(); ++k) along.push_back(normal(random));
        const double part = dot(g.f, along);
        slope += part, scale += std::abs(part);
      }
      const auto moved = [&](double h) {
        Inputs there = inputs;
        for (const std::string& name : wanted) {
          for (size_t k = 0; k < u[name].size(); ++k) there[name].f[k] += h * u[name][k];
        }
        const auto r = evaluate_reference(graph, there);
        REQUIRE_OK(r);
        return r->at("L").f[0];
      };
      // Fourth order in h: h^4 of the fifth derivative, and 1e-16 / h of rounding.
      const double difference = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h);
      INFO("analytic " << slope << " difference " << difference);
      CHECK(std::abs(slope - difference) <= bound * scale * std::pow(10, n - 1));
    }
    if (n == order) break;
    // The next L: all gradients times numbers that are not theirs.
    Builder b(*made);
    Val sum;
    for (const std::string& name : wanted) {
      const std::string factor = cat("r", n, "/", name);
      HostValue r = inputs.at(name);
      for (double& v : r.f) v = normal(random);
      const Val times{made->add_input(factor, type_of(r))};
      inputs[factor] = r;
      const Val d{*passes::find_value(*made, prefix + name)};
      const Val part = b.op("reduce_sum", {b.op("mul", {d, times})}, {{"keepdims", int64_t{0}}});
      sum = sum ? b.op("add", {sum, part}) : part;
    }
    REQUIRE_OK(b.status());
    made->keep_outputs(0);
    made->add_output("L", sum.id);
    graph = std::move(*made);
  }
}

}  // namespace oar_test
