// Adapters on disk as PEFT saves them, their numbers drawn by the rule of tests/golden/README.md.
#pragma once

#include <span>
#include <string>

#include "engine/base/json.h"
#include "engine/loader/checkpoint.h"
#include "tests/support/tiny_weights.h"

namespace oar_test {

// adapter_config.json and adapter_model.safetensors in a folder `name` below temp_dir(); returns its path.
std::string write_adapter(const std::string& name, const oar::json::object& config,
                          std::span<const TinyTensor> tensors, uint64_t seed);
// An adapter of rank 4 of every linear layer of a golden that one can be trained for; returns its folder.
std::string write_adapter_of(const TinyGolden& golden, uint64_t seed = 3);
// W + factor B A in double, rounded to f32, in place of each W that the adapter of `folder` is of.
oar::Checkpoint merged(oar::Checkpoint checkpoint, const std::string& folder);

}  // namespace oar_test
