// Checkpoints in our own storage formats: a safetensors file whose quantized matrices are rows of bytes (U8,
// rows x row_bytes), and a config.json that says what the bytes mean:
//
//   "quantization_config": {"quant_method": "oar", "version": 1,
//     "tensors": {"model.layers.0.mlp.up_proj.weight": {"format": "q4_0", "shape": [768, 256]}, ...}}
//
// Other engines know no quant_method "oar" and refuse, instead of answering wrongly. Written by `oar
// quantize` and by the cache of weights quantized at load.
#pragma once

#include <string>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/loader/safetensors.h"

namespace oar {

inline constexpr int kOarQuantVersion = 1;

// The tensors named in `described` change from bytes to their formats; the bytes stay where they are.
// INVALID_ARGUMENT or DATA_LOSS names the tensor, what was expected and what was found.
Status apply_formats(const json::object& described, TensorMap& tensors, const std::string& what);

// A config's own quantization_config, if its quant_method is "oar"; anything else is left alone.
Status apply_oar_quantization(const json::object& config, TensorMap& tensors);

}  // namespace oar
