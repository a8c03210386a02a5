// What checkpoints of hybrids and of attention over a latent have, for random_checkpoint.cc.
#pragma once

#include <optional>
#include <vector>

#include "engine/base/json.h"
#include "engine/models/model.h"
#include "engine/tune/measure/random_checkpoint.h"

namespace oar {

// The tensors of qwen3_next, qwen3_5, qwen3_5_moe, granitemoehybrid, deepseek_v2, deepseek_v3, kimi_k2 and
// glm4_moe_lite; nothing for other types, and where attention has biases, which none of these was released
// with. `c` is what read_model_config() makes of `config`.
std::optional<std::vector<TensorSpec>> hybrid_tensors(const json::object& config, const ModelConfig& c);

}  // namespace oar
