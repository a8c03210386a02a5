// The text model of a multimodal checkpoint (Mistral 3, Gemma 3 and the like): its configuration lies in
// `text_config`, its tensors behind a prefix, and beside them are those of eyes and ears, which are left out.
#pragma once

#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/loader/safetensors.h"

namespace oar {

// Makes of both what a lone text model's would be. What the outer configuration alone says of tokens, types
// and quantization is kept, and its ends of text go first; the head is tied where either says so. A
// configuration without `text_config`, or whose `text_config` names no model type, stays as it is. `notices`
// gets a line on what was left out.
void keep_text_part(json::object& config, TensorMap& tensors, std::vector<std::string>* notices);

// Takes out what drafts tokens: heads of their own (`mtp.*`), and layers behind the last that the model has,
// as DeepSeek V3, GLM and GGUF number them. Nothing runs them here. `notices` gets a line that counts them.
TensorMap take_draft_heads(const json::object& config, TensorMap& tensors, std::vector<std::string>* notices);

}  // namespace oar
