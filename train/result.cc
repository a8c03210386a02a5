#include "train/result.h"

#include <algorithm>
#include <cstring>

#include "engine/base/format.h"
#include "engine/loader/file_writer.h"
#include "engine/loader/peft.h"
#include "engine/loader/safetensors_writer.h"

namespace oar::train {
namespace {

constexpr const char* kAbout = "oar.training";

// In the types that the checkpoint has, or what is new its own.
Status write_model_folder(const std::string& folder, const Checkpoint& checkpoint, const TensorMap& tensors) {
  return write_folder(folder, "--out", [&](const std::string& to) -> Status {
    std::vector<SafetensorsTensor> all;
    for (const auto& [name, t] : tensors) {
      const auto before = checkpoint.tensors.find(name);
      all.push_back({name, t, before == checkpoint.tensors.end() ? t.format() : before->second.format()});
    }
    OAR_RETURN_IF_ERROR(write_safetensors(to + "/model.safetensors", all, {{"format", "pt"}}));
    OAR_RETURN_IF_ERROR(write_tokenizer_folder(checkpoint.tokenizer, to));
    return write_file_atomically(to + "/config.json", json::serialize(checkpoint.config));
  });
}

}  // namespace

Status check_writable(const Checkpoint& checkpoint) {
  for (const auto& [name, t] : checkpoint.tensors)
    OAR_RETURN_IF_ERROR(safetensors_dtype(name, t.format()).status());
  return ok_status();
}

Status write_states(const std::string& path, const std::vector<NamedState>& states,
                    const std::string& about) {
  std::vector<SafetensorsTensor> tensors;
  for (const NamedState& s : states) tensors.push_back({s.name, s.value});
  return replace_file(path, [&](const std::string& temporary) {
    return write_safetensors(temporary, tensors, {{kAbout, about}});
  });
}

Result<json::value> read_about(const std::string& path) {
  OAR_ASSIGN(const Safetensors file, open_safetensors(path));
  const auto it = file.metadata.find(kAbout);
  if (it == file.metadata.end()) return data_loss(cat(path, " is no checkpoint of a training run"));
  return parse_json(it->second, path);
}

Status read_states(const std::string& path, const std::vector<NamedState>& states) {
  OAR_ASSIGN(const Safetensors file, open_safetensors(path));
  for (const NamedState& s : states) {
    const auto it = file.tensors.find(s.name);
    if (it == file.tensors.end() || !(it->second.format() == Format::f32()) ||
        !(it->second.shape() == s.value.shape()))
      return data_loss(cat(path, " lacks '", s.name, "' as f32 ", s.value.shape().to_string()));
  }
  for (const NamedState& s : states) {
    const Tensor& from = file.tensors.find(s.name)->second;
    if (from.bytes() > 0) std::memcpy(s.value.mutable_data(), from.data(), from.bytes());
    from.buffer().release_pages();
  }
  return ok_status();
}

json::object adapter_config(const std::vector<Parameter>& parameters, const LoraOptions& lora,
                            const std::string& base) {
  json::array targets;
  for (const std::string& t : lora.targets) {
    if (t != "all") targets.emplace_back(t);
  }
  const bool named = !targets.empty();
  for (const Parameter& p : parameters) {  // "all" by the names of what there is
    std::string module = p.adapted();
    module = module.substr(module.rfind('.') + 1);
    if (!named && std::find(targets.begin(), targets.end(), json::value(module)) == targets.end())
      targets.emplace_back(module);
  }
  return peft_config({.rank = lora.rank,
                      .alpha = lora.alpha,
                      .dropout = lora.dropout,
                      .targets = std::move(targets),
                      .fan_in_fan_out = lora.fan_in_fan_out,
                      .base = base});
}

Status write_adapter(const std::string& folder, const std::vector<Parameter>& parameters,
                     const std::vector<Tensor>& values, const LoraOptions& lora, const std::string& base,
                     std::string_view model_type) {
  std::vector<SafetensorsTensor> tensors;
  constexpr std::string_view kStored = "base_model.model.backbone.", kCalled = "base_model.model.model.";
  for (size_t k = 0; k < parameters.size(); ++k) {
    const std::string& name = parameters[k].name;
    // By the names of modules, which are those of the file but here.
    const bool otherwise = model_type == "nemotron_h" && name.starts_with(kStored);
    tensors.push_back({otherwise ? cat(kCalled, name.substr(kStored.size())) : name, values[k]});
  }
  const json::object config = adapter_config(parameters, lora, base);
  return write_folder(folder, "--out", [&](const std::string& to) -> Status {
    OAR_RETURN_IF_ERROR(write_safetensors(to + "/adapter_model.safetensors", tensors, {{"format", "pt"}}));
    return write_file_atomically(to + "/adapter_config.json", json::serialize(config));
  });
}

Status write_model(const std::string& folder, const Checkpoint& checkpoint,
                   const std::vector<Parameter>& parameters, const std::vector<Tensor>& values,
                   double factor) {
  TensorMap tensors = checkpoint.tensors;
  for (size_t k = 0; k < parameters.size(); ++k) {
    if (const std::string module = parameters[k].adapted(); !module.empty()) {  // A, and B behind it
      Tensor& w = tensors.at(module + ".weight");
      OAR_ASSIGN(w, add_adapter(w, module, {values[k], values[k + 1], factor}));
      ++k;
      continue;
    }
    tensors[parameters[k].name] = values[k];
  }
  return write_model_folder(folder, checkpoint, tensors);
}

Status write_merged(const std::string& folder, const Checkpoint& checkpoint, const std::string& adapter) {
  OAR_ASSIGN(PeftAdapter peft, load_peft_adapter(adapter));
  if (checkpoint.kind != "safetensors")
    return unimplemented(
        cat("merging into a ", checkpoint.kind, " file is not offered; give the Hugging Face folder"));
  OAR_ASSIGN(const TensorMap tensors, add_adapter(checkpoint.tensors, std::move(peft)));
  return write_model_folder(folder, checkpoint, tensors);
}

}  // namespace oar::train
