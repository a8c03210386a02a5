// Files of training: states between runs, and what comes out: a PEFT adapter or a Hugging Face folder.
#pragma once

#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/loader/checkpoint.h"
#include "train/model_graph.h"

namespace oar::train {

struct NamedState {
  std::string name;
  Tensor value;  // f32
};
// One safetensors file that takes the place of `path` when it is whole; `about` goes into its metadata.
Status write_states(const std::string& path, const std::vector<NamedState>& states, const std::string& about);
// Its metadata, parsed. NOT_FOUND, DATA_LOSS.
Result<json::value> read_about(const std::string& path);
// Fills the states. DATA_LOSS names what is missing or of another shape.
Status read_states(const std::string& path, const std::vector<NamedState>& states);

// What adapter_config.json of PEFT says of such an adapter.
json::object adapter_config(const std::vector<Parameter>& parameters, const LoraOptions& lora,
                            const std::string& base);
// A folder that peft and `--lora` read. `model_type`: the base's, whose modules may be called otherwise
// there.
Status write_adapter(const std::string& folder, const std::vector<Parameter>& parameters,
                     const std::vector<Tensor>& values, const LoraOptions& lora, const std::string& base,
                     std::string_view model_type);
// config.json, the tokenizer's files and model.safetensors: what was trained in the types that the checkpoint
// has, all else as it is there. Adapters' products, times `factor`, are added to their weights.
Status write_model(const std::string& folder, const Checkpoint& checkpoint,
                   const std::vector<Parameter>& parameters, const std::vector<Tensor>& values,
                   double factor = 1);

// UNIMPLEMENTED names a tensor that write_model() cannot write.
Status check_writable(const Checkpoint& checkpoint);

// The checkpoint with an adapter's products added to its weights, as write_model() writes it. Weights in 16
// and 32 bits alone; INVALID_ARGUMENT where the adapter is of another model.
Status write_merged(const std::string& folder, const Checkpoint& checkpoint, const std::string& adapter);

}  // namespace oar::train
