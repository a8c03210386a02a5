// What checkpoints of hybrids and of attention over a latent have, for random_checkpoint.cc.
#pragma once

#include <optional>
#include <vector>

#include "engine/base/json.h"
#include "engine/models/model.h"
#include "engine/tune/measure/random_checkpoint.h"

namespace oar {

// The tensors of qwen3_next, qwen3_5, qwen3_5_moe, granitemoehybrid, falcon_h1, mamba2, nemotron_h, lfm2,
// lfm2_moe and of attention over a latent; nothing for other types, and where attention has biases, which
// none of these was released with. `c` is what read_model_config() makes of `config`.
std::optional<std::vector<TensorSpec>> hybrid_tensors(const json::object& config, const ModelConfig& c);

}  // namespace oar
