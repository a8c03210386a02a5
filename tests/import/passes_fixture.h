// What tests of passes share: a model is run with all passes and without the one in question.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/import/onnx_predictor.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

namespace oar_test {

using namespace oar;

inline std::unique_ptr<Predictor> open_without(const std::string& bytes, const std::set<std::string>& off) {
  PredictorOptions o;
  o.disabled_passes = off;
  return open_test_model(bytes, o);
}

inline int count(const Predictor& p, std::string_view op) {
  const auto& nodes = p.graph().nodes();
  return static_cast<int>(std::count_if(nodes.begin(), nodes.end(), [&](const Node& n) { return n.is(op); }));
}

inline int rewrites(const Predictor& p, std::string_view pass) {
  for (const PassReport& r : p.passes()) {
    if (r.name == pass) return r.rewrites;
  }
  FAIL("there is no pass " << pass);
  return 0;
}

inline Datum image(const Shape& shape) {
  return input(shape, random_floats(static_cast<size_t>(shape.numel()), 99));
}

// All passes and all but one: the largest difference of the results.
inline double difference(const std::string& model, const Datum& x, const std::string& pass) {
  const auto with = open_without(model, {}), without = open_without(model, {pass});
  const auto a = values(*with, x), b = values(*without, x);
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    const double d = std::abs(static_cast<double>(a[k]) - static_cast<double>(b[k]));
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

// One input x and one output y of floats.
inline std::string model(const std::vector<Proto>& nodes, const std::vector<Proto>& constants,
                         const std::vector<int64_t>& x, const std::vector<int64_t>& y) {
  return model_bytes(graph_proto(nodes, constants, {value_proto("x", x)}, {value_proto("y", y)}));
}
inline Proto number(const std::string& name, float v) { return tensor_proto(name, {}, {v}); }

}  // namespace oar_test
