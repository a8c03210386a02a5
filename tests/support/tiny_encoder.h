// The tiny random encoders of tests/golden/encoders as folders that can be loaded.
#pragma once

#include <string>

#include "engine/base/json.h"
#include "tests/support/tiny_weights.h"

namespace oar_test {

// tests/golden/encoders/<name>.json.
oar::json::object encoder_golden(const std::string& name);
// Its checkpoint below temp_dir() (config.json, model.safetensors) with a vocab.txt of 96 lines: [PAD] [UNK]
// [CLS] [SEP] [MASK], then words "w5" to "w95". Throws when a tensor's checksum is not the golden's.
std::string write_tiny_encoder(const std::string& name, TinyDtype dtype = TinyDtype::f32);
// The same of a golden that is read, under this name.
std::string write_tiny_encoder(const oar::json::object& golden, const std::string& name, TinyDtype dtype);
// That vocab.txt alone.
void write_tiny_vocabulary(const std::string& folder);

}  // namespace oar_test
