// Adapters on disk as PEFT saves them, their numbers drawn by the rule of tests/golden/README.md.
#pragma once

#include <span>
#include <string>

#include "engine/base/json.h"
#include "tests/support/tiny_weights.h"

namespace oar_test {

// adapter_config.json and adapter_model.safetensors in a folder `name` below temp_dir(); returns its path.
std::string write_adapter(const std::string& name, const oar::json::object& config,
                          std::span<const TinyTensor> tensors, uint64_t seed);

}  // namespace oar_test
