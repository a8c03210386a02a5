// Activations in 8 or 16 bits before every linear layer, for measuring what they cost: the input of each is
// rounded on its way into whatever kernel multiplies it. With weights held in f32 the product is then exact
// but for the sum, so that the loss is that of the rounding alone.
//
//   bf16   to nearest
//   int8   one scale max|x| / 127 for each token and 256 channels: what the CPU's integer matmuls do
//          themselves (docs/decisions/0006)
//   fp8    e4m3 under one scale max|x| / 448 for each token, the usual recipe beside FP8 weights
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"

namespace oar {

enum class ActivationCode : uint8_t { kBf16, kInt8, kFp8 };

// None: no such name.
std::optional<ActivationCode> activation_code(std::string_view name);
std::vector<std::string> activation_code_names();

// One token's channels.
void round_activations(ActivationCode code, const float* x, int64_t n, float* out);

// Before every linear layer of the graph, the head and mixtures' experts included.
Status insert_activation_rounding(Graph& graph, ActivationCode code);

}  // namespace oar
