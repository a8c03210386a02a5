#include "engine/runtime/rotated_checkpoint.h"

#include <algorithm>

#include "engine/graph/weights.h"

namespace oar {

Result<Checkpoint> rotated_checkpoint(const Checkpoint& checkpoint, const ModelConfig& config,
                                      const RotationOptions& wanted, ThreadPool& pool) {
  OAR_ASSIGN(BuiltModel model, build_model(checkpoint, config, {}));
  OAR_ASSIGN(const RotationOptions applied, rotate(model.graph, wanted));
  const Architecture* architecture = find_architecture(config.model_type);
  Checkpoint out = checkpoint;
  for (const NamedWeight& weight : named_weights(model.graph)) {
    const bool head = weight.name == architecture->head && !checkpoint.tensors.contains(weight.name);
    if (!head && !checkpoint.tensors.contains(weight.name)) continue;  // tables no checkpoint has
    OAR_ASSIGN(Tensor tensor, evaluate_weight(model.graph, weight.value, pool));
    if (head) out.config["tie_word_embeddings"] = false;
    out.tensors.insert_or_assign(weight.name, std::move(tensor));
  }
  out.config["quantization_config"] = {{"rotation", rotation_record(applied)}};
  return out;
}

bool rotates_weights(const Checkpoint& checkpoint, const RotationOptions& wanted) {
  if (!wanted.residual && !wanted.ffn && (!wanted.values || wanted.values_online)) return false;
  const auto stored = stored_rotation(checkpoint.config);
  if (!stored.ok() || stored->any() || stored->stored_residual || stored->stored_values) return false;
  return std::all_of(checkpoint.tensors.begin(), checkpoint.tensors.end(), [](const auto& named) {
    return named.second.shape().rank() < 2 || named.second.format().plain();
  });
}

}  // namespace oar
