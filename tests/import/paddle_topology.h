// Paddle models, those that came without weights with made-up ones: the numbers of generate_paddle_models.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/import/paddle.h"
#include "engine/tensor/element.h"
#include "tests/support/catch.h"

namespace oar_test {

// As noise() and weight() of the generator.
inline oar::Tensor made_up(const std::vector<int64_t>& dims, uint32_t seed, bool weight) {
  oar::Tensor t =
      oar::must(oar::allocate_elements(oar::Shape(std::span<const int64_t>(dims)), oar::DType::kF32));
  std::vector<float> v(static_cast<size_t>(t.numel()));
  for (size_t k = 0; k < v.size(); ++k) {
    uint32_t x = static_cast<uint32_t>(k + 1) * 2654435761u + seed * 0x9E3779B9u;
    x ^= x >> 15;
    x *= 0x2C1B3C6Du;
    x ^= x >> 12;
    v[k] = static_cast<float>(static_cast<double>(x >> 8) / (1 << 23) - 1);
  }
  if (weight) {
    int64_t fan_in = dims.size() == 2 ? dims[0] : 1;
    for (size_t k = 1; dims.size() > 2 && k < dims.size(); ++k) fan_in *= dims[k];
    const auto scale = static_cast<float>(std::sqrt(3.0 / static_cast<double>(fan_in)));
    for (float& x : v) x = dims.size() < 2 ? std::abs(x) * 0.5f + 0.5f : x * scale;
  }
  std::copy(v.begin(), v.end(), oar::mutable_elements<float>(t));
  return t;
}

// A folder, or the file of the program.
inline oar::ImportedModel import_paddle_program(const std::string& path) {
  oar::paddle::OpenOptions options;
  options.allow_topology = true;
  auto model = oar::paddle::open_model(path, options);
  REQUIRE_OK(model);
  if (model->parameters.empty()) {
    uint32_t seed = 0;
    for (const oar::paddle::ValueIndex v : model->program.parameters)
      model->parameters.push_back(
          made_up(model->program.values[static_cast<size_t>(v)].type.dims, ++seed, true));
  }
  auto imported = oar::import_paddle_model(*model);
  REQUIRE_OK(imported);
  return std::move(*imported);
}

}  // namespace oar_test
