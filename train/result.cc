#include "train/result.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "engine/base/format.h"
#include "engine/loader/file_writer.h"
#include "engine/loader/peft.h"
#include "engine/loader/safetensors_writer.h"

namespace oar::train {
namespace {

namespace fs = std::filesystem;
constexpr const char* kAbout = "oar.training";

Status no_folder(const std::string& folder, const std::error_code& ec) {
  return unavailable(cat("cannot write ", folder, ": ", ec.message(), "; choose another --out"));
}

// `write` fills a folder that takes the name `folder` once it is whole.
template <class F>
Status write_folder(const std::string& folder, F&& write) {
  std::error_code ec;
  const std::string partial = folder + ".partial";
  if (fs::exists(folder, ec) && !fs::is_empty(folder, ec))
    return Status(StatusCode::kAlreadyExists,
                  cat(folder, " is there already; choose another --out or remove it"));
  fs::remove_all(partial, ec);
  if (!fs::create_directories(partial, ec)) return no_folder(partial, ec);
  if (Status s = write(partial); !s.ok()) {
    fs::remove_all(partial, ec);
    return s;
  }
  OAR_RETURN_IF_ERROR(sync_folder(partial));
  fs::remove(folder, ec);
  fs::rename(partial, folder, ec);
  if (ec) return no_folder(folder, ec);
  const std::string parent = fs::path(folder).parent_path().string();
  return sync_folder(parent.empty() ? "." : parent);
}

struct Written {
  std::string name;
  Tensor tensor;
  Format as = tensor.format();  // of f32: rounded to this when its turn comes
};

Result<std::string> safetensors_type(const std::string& name, Format format) {
  const std::string out = format.plain() ? safetensors_dtype(format.dtype()) : "";
  if (!out.empty()) return out;
  return unimplemented(
      cat("'", name, "' is stored as ", format.name(), ", which a Hugging Face folder cannot hold"));
}

// f32 rounded to the type that the checkpoint has.
Result<Tensor> stored_as(const Tensor& f32, Format format) {
  if (f32.format() == format) return f32;
  OAR_ASSIGN(Tensor out, Tensor::allocate(f32.shape(), format));
  OAR_CHECK(format.info().encode != nullptr, "a plain format of floats can be written");
  if (f32.numel() > 0)
    format.encode_row(static_cast<const float*>(f32.data()), f32.numel(), out.mutable_data());
  return out;
}

Status write_tensors(const std::string& path, const std::vector<Written>& tensors,
                     const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries;
  for (const Written& w : tensors) {
    OAR_ASSIGN(const std::string dtype, safetensors_type(w.name, w.as));
    OAR_ASSIGN(const int64_t bytes, tensor_bytes(w.tensor.shape(), w.as));
    entries.push_back(
        {w.name, dtype, {w.tensor.shape().begin(), w.tensor.shape().end()}, static_cast<uint64_t>(bytes)});
  }
  OAR_ASSIGN(SafetensorsWriter writer, SafetensorsWriter::open(path, entries, metadata, false));
  for (const Written& w : tensors) {
    OAR_ASSIGN(const Tensor stored, stored_as(w.tensor, w.as));
    OAR_RETURN_IF_ERROR(writer.write(w.name, stored.data(), stored.bytes()));
    stored.buffer().release_pages();  // of what was not trained
  }
  return writer.sync();
}

// In the types that the checkpoint has, or what is new its own.
Status write_model_folder(const std::string& folder, const Checkpoint& checkpoint, const TensorMap& tensors) {
  return write_folder(folder, [&](const std::string& to) -> Status {
    std::vector<Written> all;
    for (const auto& [name, t] : tensors) {
      const auto before = checkpoint.tensors.find(name);
      all.push_back({name, t, before == checkpoint.tensors.end() ? t.format() : before->second.format()});
    }
    OAR_RETURN_IF_ERROR(write_tensors(to + "/model.safetensors", all, {{"format", "pt"}}));
    OAR_RETURN_IF_ERROR(write_tokenizer_folder(checkpoint.tokenizer, to));
    return write_file_atomically(to + "/config.json", json::serialize(checkpoint.config));
  });
}

// w + factor b a, of the type that w has.
Result<Tensor> merged(const std::string& name, const Tensor& w, const Tensor& a, const Tensor& b,
                      double factor) {
  const int64_t N = b.shape()[0], K = a.shape()[1], r = a.shape()[0];
  if (!(w.shape() == Shape{N, K}))
    return invalid_argument(cat("the adapter is of another base model: '", name, "' is ",
                                Shape{N, K}.to_string(), " there, ", w.shape().to_string(), " here"));
  if (!w.format().plain() || !dtype_is_float(w.format().dtype()) || dtype_bits(w.format().dtype()) < 16)
    return unimplemented(
        cat("'", name, "' is stored as ", w.format().name(),
            ": merge into the model in 16 bits, and quantize what comes out (oar quantize)"));
  OAR_ASSIGN(Tensor sum, to_f32(w));
  if (sum.data() == w.data()) {
    OAR_ASSIGN(sum, Tensor::allocate(w.shape(), Format::f32()));
    std::memcpy(sum.mutable_data(), w.data(), w.bytes());
  }
  const auto down = a.values<float>(), up = b.values<float>();
  std::vector<double> row(static_cast<size_t>(K));
  for (int64_t n = 0; n < N; ++n) {
    std::fill(row.begin(), row.end(), 0);
    for (int64_t j = 0; j < r; ++j) {
      const double scale = up[static_cast<size_t>(n * r + j)] * factor;
      for (int64_t k = 0; k < K; ++k)
        row[static_cast<size_t>(k)] += scale * down[static_cast<size_t>(j * K + k)];
    }
    float* const to = sum.mutable_values<float>().data() + n * K;
    for (int64_t k = 0; k < K; ++k) to[k] = static_cast<float>(to[k] + row[static_cast<size_t>(k)]);
  }
  return stored_as(sum, w.format());
}

}  // namespace

Status check_writable(const Checkpoint& checkpoint) {
  for (const auto& [name, t] : checkpoint.tensors)
    OAR_RETURN_IF_ERROR(safetensors_type(name, t.format()).status());
  return ok_status();
}

Status write_states(const std::string& path, const std::vector<NamedState>& states,
                    const std::string& about) {
  std::vector<Written> tensors;
  for (const NamedState& s : states) tensors.push_back({s.name, s.value});
  return replace_file(path, [&](const std::string& temporary) {
    return write_tensors(temporary, tensors, {{kAbout, about}});
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

Status write_adapter(const std::string& folder, const std::vector<Parameter>& parameters,
                     const std::vector<Tensor>& values, const LoraOptions& lora, const std::string& base) {
  json::array targets;
  for (const std::string& t : lora.targets) {
    if (t != "all") targets.emplace_back(t);
  }
  std::vector<Written> tensors;
  for (size_t k = 0; k < parameters.size(); ++k) {
    tensors.push_back({parameters[k].name, values[k]});
    // "all" by the names of what there is.
    std::string module = parameters[k].adapted();
    module = module.substr(module.rfind('.') + 1);
    const bool named =
        std::any_of(lora.targets.begin(), lora.targets.end(), [](const auto& t) { return t != "all"; });
    if (!named && std::find(targets.begin(), targets.end(), json::value(module)) == targets.end())
      targets.emplace_back(module);
  }
  const json::object config{{"peft_type", "LORA"},
                            {"task_type", "CAUSAL_LM"},
                            {"base_model_name_or_path", base},
                            {"r", lora.rank},
                            {"lora_alpha", lora.alpha},
                            {"lora_dropout", lora.dropout},
                            {"target_modules", targets},
                            {"bias", "none"},
                            {"fan_in_fan_out", false},
                            {"inference_mode", true},
                            {"init_lora_weights", true},
                            {"use_rslora", false},
                            {"use_dora", false}};
  return write_folder(folder, [&](const std::string& to) -> Status {
    OAR_RETURN_IF_ERROR(write_tensors(to + "/adapter_model.safetensors", tensors, {{"format", "pt"}}));
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
      OAR_ASSIGN(w, merged(module, w, values[k], values[k + 1], factor));
      ++k;
      continue;
    }
    tensors[parameters[k].name] = values[k];
  }
  return write_model_folder(folder, checkpoint, tensors);
}

Status write_merged(const std::string& folder, const Checkpoint& checkpoint, const std::string& adapter) {
  OAR_ASSIGN(const PeftAdapter peft, load_peft_adapter(adapter));
  if (checkpoint.kind != "safetensors")
    return unimplemented(
        cat("merging into a ", checkpoint.kind, " file is not offered; give the Hugging Face folder"));
  TensorMap tensors = checkpoint.tensors;
  for (const auto& [module, m] : peft.modules) {
    const auto it = tensors.find(module + ".weight");
    if (it == tensors.end())
      return invalid_argument(
          cat("the adapter is of another base model: it has '", module, "', the model does not"));
    OAR_ASSIGN(it->second, merged(module, it->second, m.a, m.b, m.factor));
  }
  return write_model_folder(folder, checkpoint, tensors);
}

}  // namespace oar::train
