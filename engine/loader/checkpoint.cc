#include "engine/loader/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/gguf_model.h"
#include "engine/loader/llama2c.h"
#include "engine/loader/quantization_config.h"
#include "engine/loader/text_part.h"

namespace oar {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;
constexpr std::string_view kAccepted =
    "expected a folder with config.json and model.safetensors (or model.safetensors.index.json and its "
    "shards), or a "
    ".safetensors, .gguf or llama2.c .bin file";

// The names in a folder, sorted, the first few, for messages.
std::string listing(const fs::path& folder) {
  constexpr size_t kShown = 12, kRead = 1000;
  std::vector<std::string> names;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end && names.size() < kRead;
       it.increment(ec)) {
    names.push_back(it->path().filename().string());
  }
  if (names.empty()) return "it is empty";
  std::sort(names.begin(), names.end());
  std::string out = "it has ";
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    out += cat(i == 0 ? "" : ", ", show_name(names[i]));
  return names.size() > kShown ? cat(out, " and ", names.size() - kShown, " more") : out;
}

// config.json beside the weights, or an empty object when there is none.
Result<json::object> read_config(const fs::path& folder) {
  const std::string path = (folder / "config.json").string();
  if (!is_regular_file(path)) return json::object();
  OAR_ASSIGN(const std::string text, read_small_file(path, kMaxConfigBytes));
  OAR_ASSIGN(json::value v, parse_json(text, path, {.python_floats = true}));
  if (!v.is_object()) return invalid_argument(cat(path, " must hold a JSON object"));
  json::object& config = v.get_object();
  if (!config.contains("torch_dtype") && config.contains("dtype")) {  // the key's newer spelling
    config["torch_dtype"] = json::value(config["dtype"]);
  }
  return std::move(config);
}

// A file saved from the base model lacks the prefix that the full model puts before its names.
void add_missing_prefix(TensorMap& tensors) {
  struct Base {
    std::string_view sign, prefix;  // a tensor that shows it
  };
  for (const Base& base : {Base{"embed_tokens.weight", "model."}, Base{"wte.weight", "transformer."}}) {
    if (!tensors.contains(base.sign)) continue;
    TensorMap renamed;
    while (!tensors.empty()) {
      auto node = tensors.extract(tensors.begin());
      if (!node.key().starts_with("lm_head.")) node.key().insert(0, base.prefix);
      renamed.insert(std::move(node));
    }
    tensors = std::move(renamed);
  }
}

int64_t vocabulary_size(const json::object& config) {
  const json::value* v = config.if_contains("vocab_size");
  return v && v->is_int64() ? v->get_int64() : 0;
}

Result<Checkpoint> finish_safetensors(const fs::path& folder, TensorMap tensors) {
  Checkpoint c;
  c.kind = "safetensors";
  c.tensors = std::move(tensors);
  add_missing_prefix(c.tensors);
  OAR_ASSIGN(c.config, read_config(folder));
  OAR_RETURN_IF_ERROR(apply_quantization_config(c.config, c.tensors, &c.notices));  // by the file's own names
  keep_text_part(c.config, c.tensors, &c.notices);
  c.drafts = take_draft_heads(c.config, c.tensors, &c.notices);
  OAR_ASSIGN(c.tokenizer, read_tokenizer_folder(folder.string(), vocabulary_size(c.config)));
  return c;
}

Result<Checkpoint> load_safetensors_file(const fs::path& path, const LoadOptions& options,
                                         const Progress& progress) {
  OAR_ASSIGN(Safetensors file, open_safetensors(path.string(), options, progress));
  return finish_safetensors(path.parent_path(), std::move(file.tensors));
}

Result<Checkpoint> load_gguf(const fs::path& path, const LoadOptions& options, const Progress& progress) {
  OAR_ASSIGN(GgufFile file, open_gguf(path.string(), options, progress));
  Checkpoint c;
  c.kind = "gguf";
  OAR_ASSIGN(c.config, gguf_config(file, &c.notices));
  OAR_ASSIGN(const auto architecture, file.get_string("general.architecture"));
  for (const auto& [name, tensor] : file.tensors) {
    if (name == "rope_freqs.weight" || name.starts_with("rope_factors_")) continue;  // in the config
    const std::string ours = hugging_face_name(*architecture, name);
    Tensor own = tensor;
    // A matrix of one row loses its axis there.
    if (own.shape().rank() == 1 && ours.ends_with("shared_expert_gate.weight")) {
      OAR_ASSIGN(own, tensor.reshape({1, tensor.numel()}));
    }
    // And what is one number a head, or a norm by groups of heads, has axes that it has not elsewhere.
    const auto is = [&](const char* end) { return ours.ends_with(end); };
    if (own.shape().rank() == 2 && (is(".A") || is(".D") || is(".norm.weight"))) {
      OAR_ASSIGN(own, tensor.reshape({tensor.numel()}));
    }
    if (!c.tensors.emplace(ours, std::move(own)).second) {
      return data_loss(
          cat(path.string(), ": two tensors mean ", show_name(ours), ", one of them is ", show_name(name)));
    }
  }
  c.drafts = take_draft_heads(c.config, c.tensors, &c.notices);
  OAR_ASSIGN(c.tokenizer.gguf, gguf_vocab(file));
  if (!c.tokenizer.gguf) {
    OAR_ASSIGN(c.tokenizer, read_tokenizer_folder(path.parent_path().string(), vocabulary_size(c.config)));
    return c;
  }
  c.tokenizer.gguf_metadata = file.bytes.slice(0, file.metadata_end);
  const GgufVocab& v = *c.tokenizer.gguf;
  c.tokenizer.chat_template = v.chat_template;
  if (!c.config.contains("vocab_size")) c.config["vocab_size"] = static_cast<int64_t>(v.tokens.size());
  if (v.bos_id) c.config["bos_token_id"] = *v.bos_id;
  json::array ends;
  for (const auto& id : {v.eos_id, v.eot_id, v.eom_id}) {
    if (id && std::find(ends.begin(), ends.end(), json::value(*id)) == ends.end()) ends.push_back(*id);
  }
  if (!ends.empty()) {
    c.config["eos_token_id"] = ends.front();
    c.tokenizer.generation_config["eos_token_id"] = std::move(ends);
  }
  if (v.bos_id) c.tokenizer.generation_config["bos_token_id"] = *v.bos_id;
  OAR_RETURN_IF_ERROR(gguf_sampling(file, c.tokenizer.generation_config, &c.notices));
  return c;
}

Result<Checkpoint> load_llama2c(const fs::path& path, const LoadOptions& options, const Progress& progress) {
  OAR_ASSIGN(Llama2c m, open_llama2c(path.string(), options, progress));
  Checkpoint c;
  c.kind = "llama2c";
  c.config = {{"architectures", json::array{"LlamaForCausalLM"}},
              {"model_type", "llama"},
              {"hidden_size", m.width},
              {"num_hidden_layers", m.layers},
              {"num_attention_heads", m.heads},
              {"num_key_value_heads", m.kv_heads},
              {"head_dim", m.width / m.heads},
              {"intermediate_size", m.ffn},
              {"vocab_size", m.vocab},
              {"max_position_embeddings", m.context},
              {"rms_norm_eps", 1e-5},  // fixed in llama2.c, as are the next three
              {"rope_theta", 10000.0},
              {"hidden_act", "silu"},
              {"rope_interleaved", true},
              {"tie_word_embeddings", m.tied},
              {"bos_token_id", 1},
              {"eos_token_id", 2},
              {"torch_dtype", "float32"}};
  c.tensors = std::move(m.tensors);
  OAR_ASSIGN(c.tokenizer, read_tokenizer_folder(path.parent_path().string(), m.vocab));
  return c;
}

Result<Checkpoint> load_folder(const fs::path& folder, const LoadOptions& options, const Progress& progress) {
  const fs::path index = folder / "model.safetensors.index.json";
  const bool has_index = is_regular_file(index.string());
  const std::vector<fs::path> weights = files_with_extension(folder, ".safetensors");
  const std::vector<fs::path> ggufs = files_with_extension(folder, ".gguf");
  if (!has_index && weights.empty() && ggufs.size() == 1) return load_gguf(ggufs.front(), options, progress);
  if (!has_index && weights.empty()) {
    const std::string_view hint = ggufs.size() > 1 ? "; name one of the .gguf files" : "";
    const std::string_view pickle =
        is_regular_file((folder / "pytorch_model.bin").string())
            ? "; pytorch_model.bin is a Python pickle, save the model as safetensors"
            : "";
    return not_found(
        cat("no model in folder ", folder.string(), ": ", kAccepted, "; ", listing(folder), hint, pickle));
  }
  if (!is_regular_file((folder / "config.json").string())) {
    return not_found(cat("folder ", folder.string(), " has weights but no config.json; ", listing(folder)));
  }
  if (has_index) {
    OAR_ASSIGN(TensorMap tensors, open_sharded_safetensors(index.string(), options, progress));
    return finish_safetensors(folder, std::move(tensors));
  }
  const auto single = std::find(weights.begin(), weights.end(), folder / "model.safetensors");
  if (single != weights.end()) return load_safetensors_file(*single, options, progress);
  if (weights.size() == 1) return load_safetensors_file(weights.front(), options, progress);
  return not_found(cat("folder ", folder.string(), " has ", weights.size(),
                       " .safetensors files, but neither "
                       "model.safetensors nor model.safetensors.index.json; ",
                       listing(folder)));
}

// What a file is, by its first bytes and, where those say nothing, its extension.
Result<Checkpoint> load_file(const fs::path& path, const LoadOptions& options, const Progress& progress) {
  std::string head;
  {
    OAR_ASSIGN(auto file, MappedFile::open(path.string(), {.will_need = false, .huge_pages = false}));
    head.assign(reinterpret_cast<const char*>(file->data()), std::min<uint64_t>(file->size(), 8));
  }
  if (head.starts_with("GGUF")) return load_gguf(path, options, progress);
  if (head.starts_with("PK\x03\x04") || head.starts_with("\x80\x02")) {
    return invalid_argument(
        cat(path.string(), " is a Python pickle (PyTorch); save the model as safetensors; ", kAccepted));
  }
  const std::string extension = path.extension().string();
  if (extension == ".safetensors") return load_safetensors_file(path, options, progress);
  if (extension == ".bin") return load_llama2c(path, options, progress);
  std::string bytes;
  for (unsigned char b : head) {
    constexpr char kHex[] = "0123456789abcdef";
    bytes += {' ', kHex[b >> 4], kHex[b & 15]};
  }
  if (extension == ".onnx" || extension == ".pdmodel")
    return invalid_argument(cat(path.string(),
                                " is an ordinary model, which `oar infer` and `oar serve` run; ",
                                "of a language model ", kAccepted));
  return invalid_argument(cat(path.string(), " is no model file that is known: ", kAccepted,
                              "; this one begins with", head.empty() ? " nothing, it is empty" : bytes));
}

}  // namespace

Result<Checkpoint> load_checkpoint(const std::string& path, const LoadOptions& options,
                                   const Progress& progress) {
  const bool folder = is_folder(path);
  std::error_code ec;
  if (path.empty() || (!folder && fs::status(path, ec).type() == fs::file_type::not_found)) {
    return not_found(cat("no such model: '", path, "'; ", kAccepted));
  }
  OAR_ASSIGN(Checkpoint c,
             folder ? load_folder(path, options, progress) : load_file(path, options, progress));
  if (!options.tokenizer.empty()) {
    json::object generation = std::move(c.tokenizer.generation_config);
    OAR_ASSIGN(c.tokenizer, read_tokenizer(options.tokenizer));
    if (c.tokenizer.generation_config.empty()) c.tokenizer.generation_config = std::move(generation);
  }
  c.source_path = path;
  for (const auto& [name, tensor] : c.tensors) c.bytes += tensor.bytes();
  return c;
}

}  // namespace oar
