// The first layers of the default model: a whole model as far as any code here can tell, quick to quantize,
// to calibrate and to measure.
#pragma once

#include <string>

#include "engine/loader/checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace oar_test {

inline oar::Checkpoint shallow_demo(int layers = 2) {
  auto loaded = oar::load_checkpoint(source_path("configs/demo"));
  REQUIRE_OK(loaded);
  oar::Checkpoint demo = std::move(*loaded);
  demo.config["num_hidden_layers"] = layers;
  std::erase_if(demo.tensors, [&](const auto& t) {
    constexpr std::string_view kPrefix = "model.layers.";
    return t.first.starts_with(kPrefix) && t.first[kPrefix.size()] - '0' >= layers;
  });
  return demo;
}

}  // namespace oar_test
