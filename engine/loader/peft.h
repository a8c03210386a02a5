// A low-rank adapter (LoRA) as Hugging Face's PEFT saves it: a folder with adapter_config.json and
// adapter_model.safetensors. https://huggingface.co/docs/peft/developer_guides/checkpoint Untrusted input:
// every key of the configuration is known or refused, and every tensor is a pair's half or refused. What
// would change the model in another way than x -> x W^T + factor (x A^T) B^T is refused by name.
//
// What it is not: it knows no base model. Whether the modules exist there, and in these shapes, is asked by
// engine/runtime/adapters.h.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "engine/base/json.h"
#include "engine/loader/safetensors.h"

namespace oar {

struct PeftModule {
  Tensor a;           // (r, K) f32
  Tensor b;           // (N, r) f32
  double factor = 1;  // alpha / r, or alpha / sqrt r (rsLoRA)
};

struct PeftAdapter {
  std::string base;             // base_model_name_or_path: what it was trained on, for people; may be empty
  bool fan_in_fan_out = false;  // the base's matrices are (inputs, outputs); pairs lie as those of others
  int64_t rank = 0;             // the largest
  std::map<std::string, PeftModule> modules;  // by name in the base: "model.layers.0.self_attn.q_proj"
};

Result<PeftAdapter> parse_peft_adapter(const json::object& config, const TensorMap& tensors);
// NOT_FOUND says which file is missing.
Result<PeftAdapter> load_peft_adapter(const std::string& folder);

// Modules get the base's name for the part that holds its layers, where transformers calls it otherwise than
// the base's file does: "model.", "backbone.", "model.language_model.", "language_model.model.". `module`:
// any of the base, or a tensor in it; false where it lies in no layer. Names of other parts stay.
// INVALID_ARGUMENT names two modules that would be one, and leaves all as they were.
Result<bool> call_as_base(PeftAdapter& adapter, std::string_view module);
// The same by the first of the base's tensors that lies in a layer.
Result<bool> call_as_base(PeftAdapter& adapter, const TensorMap& base);

// What adapter_config.json says of a plain adapter.
struct PeftSettings {
  int64_t rank = 0;
  double alpha = 0, dropout = 0;
  json::array targets;  // last parts of modules' names
  bool fan_in_fan_out = false;
  std::string base;
};
json::object peft_config(const PeftSettings& settings);

// w + factor b a, of the type that w has, 16 or 32 bits of a float. INVALID_ARGUMENT: the adapter is of
// another base model; `name` is the module's.
Result<Tensor> add_adapter(const Tensor& w, const std::string& name, const PeftModule& m,
                           bool fan_in_fan_out = false);
// The base's tensors with the adapter's products added. INVALID_ARGUMENT names a module that it does not
// have.
Result<TensorMap> add_adapter(TensorMap base, PeftAdapter adapter);

}  // namespace oar
