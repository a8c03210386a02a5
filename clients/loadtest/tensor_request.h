// Tensors to send to an ordinary model: from the options of the command line, or from the JSON of an Open
// Inference request; and the bytes of both protocols made from them once, before a run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace oar::loadtest {

struct InputTensor {
  std::string name, datatype;  // "FP32", as Open Inference writes it
  std::vector<int64_t> shape;
  std::string raw;  // row-major, little-endian; BYTES: each element behind its length in 4 bytes
};

// "name:FP32:1,3,224,224": random numbers of the type, [0, 1) for floats, drawn from `seed`. INVALID_ARGUMENT
// says what is wrong with it; at most 1 GiB.
Result<InputTensor> parse_tensor_option(const std::string& text, uint64_t seed);

// The inputs of {"inputs": [{"name", "datatype", "shape", "data"}]}, data flat or nested. INVALID_ARGUMENT
// names the field.
Result<std::vector<InputTensor>> parse_tensor_body(std::string_view json_text);

// Body of POST /v2/models/M/infer with binary tensors both ways, and the value of its
// Inference-Header-Content-Length.
struct BinaryBody {
  std::string body;
  size_t header_length = 0;
};
BinaryBody binary_body(const std::vector<InputTensor>& inputs);

}  // namespace oar::loadtest
