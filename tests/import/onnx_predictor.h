// Small ONNX models of tests as predictors, and their one input and output as vectors.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/import/onnx.h"
#include "engine/runtime/predictor.h"
#include "tests/support/catch.h"

namespace oar_test {

inline oar::ImportedModel import_test_model(const std::string& bytes) {
  auto owner = std::make_shared<std::string>(bytes);
  auto imported =
      oar::import_onnx_bytes(oar::Buffer::wrap_const(owner->data(), owner->size(), owner), "test.onnx", "");
  REQUIRE_OK(imported);
  return std::move(*imported);
}

// On one thread unless the options name several.
inline std::unique_ptr<oar::Predictor> open_test_model(const std::string& bytes,
                                                       oar::PredictorOptions o = {}) {
  if (o.threads == 0) o.threads = 1;
  auto p = oar::Predictor::create(import_test_model(bytes), o);
  REQUIRE_OK(p);
  return std::move(*p);
}

inline oar::Datum input(const oar::Shape& shape, std::span<const float> v) {
  oar::Tensor t = oar::must(oar::Tensor::allocate(shape, oar::Format::f32()));
  REQUIRE(static_cast<size_t>(t.numel()) == v.size());
  std::copy(v.begin(), v.end(), t.mutable_values<float>().begin());
  return oar::Datum(t);
}

inline std::vector<float> values(const oar::Predictor& p, const oar::Datum& x) {
  auto out = p.run({x});
  REQUIRE_OK(out);
  const auto v = (*out)[0].tensor.values<float>();
  return {v.begin(), v.end()};
}

}  // namespace oar_test
