#include "engine/tune/measure/random_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <numbers>

#include "engine/base/format.h"
#include "engine/loader/file_writer.h"
#include "engine/models/model.h"
#include "engine/text/byte_alphabet.h"
#include "engine/tune/measure/random_hybrid.h"
#include "quant/dtype.h"

namespace oar {
namespace {

using Fill = TensorSpec::Fill;

constexpr int64_t kMaxVocabulary = int64_t{1} << 24;  // larger than any real one

uint64_t splitmix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t element_count(
    const TensorSpec& t) {  // axes and ranks are bounded: at most 2^72 is caught by kMaxBytes
  uint64_t n = 1;
  for (int64_t d : t.shape) n *= static_cast<uint64_t>(d);
  return n;
}

// 2^16 draws of a normal distribution as bf16 bits; a weight is a uniform pick. Box-Muller over splitmix64.
std::vector<uint16_t> normal_table(uint64_t seed, double stddev) {
  std::vector<uint16_t> out(size_t{1} << 16);
  for (size_t i = 0; i < out.size(); i += 2) {
    const double u = (static_cast<double>(splitmix64(seed + i) >> 11) + 0.5) * 0x1p-53;
    const double angle = static_cast<double>(splitmix64(seed + i + 1) >> 11) * 0x1p-53 * 2 * std::numbers::pi;
    const double radius = stddev * std::sqrt(-2 * std::log(u));
    out[i] = to_bf16(static_cast<float>(radius * std::cos(angle))).bits;
    out[i + 1] = to_bf16(static_cast<float>(radius * std::sin(angle))).bits;
  }
  return out;
}

// Byte-level BPE without merges: each byte is a token, so any text can be encoded and any id below 256
// decoded.
std::string byte_tokenizer(int64_t vocab_size) {
  json::object vocab;
  for (int i = 0; i < 256 && i < vocab_size; ++i) vocab[byte_alphabet_text(static_cast<uint8_t>(i))] = i;
  const json::object stage{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return json::serialize(
      json::object{{"version", "1.0"},
                   {"added_tokens", json::array{}},
                   {"normalizer", nullptr},
                   {"pre_tokenizer", stage},
                   {"post_processor", nullptr},
                   {"decoder", stage},
                   {"model", json::object{{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array{}}}}});
}

struct Layout {
  std::string header;             // with its length, padded to 8 bytes
  std::vector<uint64_t> offsets;  // of each tensor in the file
  uint64_t size = 0;
};

Result<Layout> lay_out(const std::vector<TensorSpec>& tensors, bool f32) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 44;
  const uint64_t each = f32 ? 4 : 2;
  json::object header;
  Layout out;
  uint64_t offset = 0;
  for (const TensorSpec& t : tensors) {
    const double elements = [&] {
      double n = 1;
      for (int64_t d : t.shape) n *= static_cast<double>(d);
      return n;
    }();
    if (elements * static_cast<double>(each) > static_cast<double>(kMaxBytes - offset)) {
      return invalid_argument("config.json describes more than 16 TiB of weights; lower its sizes");
    }
    const uint64_t end = offset + element_count(t) * each;
    header[t.name] = {{"dtype", f32 ? "F32" : "BF16"},
                      {"shape", json::value_from(t.shape)},
                      {"data_offsets", {offset, end}}};
    out.offsets.push_back(offset);
    offset = end;
  }
  std::string text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  out.header.assign(reinterpret_cast<const char*>(&length), sizeof length);
  out.header += text;
  for (uint64_t& o : out.offsets) o += out.header.size();
  out.size = offset + out.header.size();
  return out;
}

// Whether weights of a model that is to be trained are f32, else bf16.
Result<bool> trains_as_f32(const json::object& config) {
  for (const char* key : {"torch_dtype", "dtype"}) {
    const json::value* const type = config.if_contains(key);
    if (type == nullptr || type->is_null()) continue;
    if (*type == "bfloat16") return false;
    if (*type == "float32") return true;
    return invalid_argument(cat("config.json: '", key, "' is ", json::serialize(*type),
                                "; a model that is trained from its beginning is bfloat16 or float32"));
  }
  return true;
}

// Whether results of the matrix are added to what layers hand on.
bool ends_branch(std::string_view name) {
  static constexpr std::string_view kEnds[] = {"o_proj.weight", "down_proj.weight", "out_proj.weight",
                                               ".w2.weight", "output_linear.weight"};
  return std::any_of(std::begin(kEnds), std::end(kEnds), [&](auto end) { return name.ends_with(end); });
}

// Gemma 4's, with experts stacked as its checkpoints have them.
std::vector<TensorSpec> gemma4_tensors(const ModelConfig& c) {
  const int64_t E = c.width, P = c.layer_input;
  std::vector<TensorSpec> out;
  out.push_back({"model.embed_tokens.weight", {c.vocab, E}});
  if (P > 0) {
    out.push_back({"model.embed_tokens_per_layer.weight", {c.layer_input_vocab, c.layers * P}});
    out.push_back({"model.per_layer_model_projection.weight", {c.layers * P, E}});
    out.push_back({"model.per_layer_projection_norm.weight", {P}, Fill::kOnes});
  }
  for (int64_t n = 0; n < c.layers; ++n) {
    const HeadShape heads = c.head_shape(n);
    const int64_t D = heads.head_dim, F = c.ffn * (n >= c.layers - c.double_mlp_layers ? 2 : 1);
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      const Fill fill = shape.size() == 1 ? Fill::kOnes : Fill::kNormal;
      out.push_back({cat("model.layers.", n, ".", name), std::move(shape), fill});
    };
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight",
                             "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"})
      add(norm, {E});
    add("layer_scalar", {1});
    add("self_attn.q_proj.weight", {c.heads * D, E});
    add("self_attn.q_norm.weight", {D});
    add("self_attn.o_proj.weight", {E, c.heads * D});
    if (c.kv_layer(n) == n) {
      add("self_attn.k_proj.weight", {heads.kv_heads * D, E});
      add("self_attn.k_norm.weight", {D});
      if (!c.keys_are_values || c.has_window(n)) add("self_attn.v_proj.weight", {heads.kv_heads * D, E});
    }
    add("mlp.gate_proj.weight", {F, E});
    add("mlp.up_proj.weight", {F, E});
    add("mlp.down_proj.weight", {E, F});
    if (c.experts > 0) {
      for (const char* norm : {"post_feedforward_layernorm_1.weight", "post_feedforward_layernorm_2.weight",
                               "pre_feedforward_layernorm_2.weight", "router.scale"})
        add(norm, {E});
      add("router.per_expert_scale", {c.experts});
      add("router.proj.weight", {c.experts, E});
      add("experts.gate_up_proj", {c.experts, 2 * c.expert_ffn, E});
      add("experts.down_proj", {c.experts, E, c.expert_ffn});
    }
    if (P == 0) continue;
    add("per_layer_input_gate.weight", {P, E});
    add("per_layer_projection.weight", {E, P});
    add("post_per_layer_input_norm.weight", {E});
  }
  out.push_back({"model.norm.weight", {E}, Fill::kOnes});
  if (!c.tied) out.push_back({"lm_head.weight", {c.vocab, E}});
  return out;
}

}  // namespace

Result<std::vector<TensorSpec>> checkpoint_tensors(const json::object& config) {
  OAR_ASSIGN(const ModelConfig c, read_model_config(config));
  const std::string& type = c.model_type;
  if (c.vocab > kMaxVocabulary)
    return invalid_argument(
        cat("config.json: vocab_size is ", c.vocab, ", expected at most ", kMaxVocabulary));
  if (auto hybrid = hybrid_tensors(config, c)) return std::move(*hybrid);
  if (type == "gemma4_text" || type == "gemma4_unified_text") return gemma4_tensors(c);
  const bool mixtral = type == "mixtral", qwen2 = type == "qwen2";
  const bool qk_norm = type == "qwen3" || type == "qwen3_moe";
  if (type != "llama" && type != "mistral" && !qwen2 && !qk_norm && !mixtral) {
    return invalid_argument(cat("config.json: model_type must be llama, mistral, qwen2, qwen3, mixtral, "
                                "qwen3_moe, gemma4_text, gemma4_unified_text, qwen3_next, "
                                "qwen3_5_text, qwen3_5_moe_text, granitemoehybrid, falcon_h1, "
                                "mamba2, nemotron_h, lfm2, lfm2_moe, deepseek_v2, deepseek_v3, kimi_k2, "
                                "glm4_moe_lite, mistral4 or minicpm3, without biases of attention in those "
                                "from qwen3_next on, to make random weights, got \"",
                                type, "\""),
                            "model_type");
  }
  const int64_t E = c.width, V = c.vocab, L = c.layers, H = c.heads, K = c.kv_heads, D = c.head_dim,
                F = c.ffn;
  std::vector<TensorSpec> out;
  out.push_back({"model.embed_tokens.weight", {V, E}});
  for (int64_t l = 0; l < L; ++l) {
    const std::string layer = cat("model.layers.", l, ".");
    const auto add = [&](std::string_view name, std::vector<int64_t> shape, Fill fill = Fill::kNormal) {
      out.push_back({layer + std::string(name), std::move(shape), fill});
    };
    add("input_layernorm.weight", {E}, Fill::kOnes);
    add("self_attn.q_proj.weight", {H * D, E});
    add("self_attn.k_proj.weight", {K * D, E});
    add("self_attn.v_proj.weight", {K * D, E});
    add("self_attn.o_proj.weight", {E, H * D});
    if (c.attention_bias) {
      add("self_attn.q_proj.bias", {H * D});
      add("self_attn.k_proj.bias", {K * D});
      add("self_attn.v_proj.bias", {K * D});
    }
    if (c.attention_bias && !qwen2) add("self_attn.o_proj.bias", {E});
    if (qk_norm) {
      add("self_attn.q_norm.weight", {D}, Fill::kOnes);
      add("self_attn.k_norm.weight", {D}, Fill::kOnes);
    }
    add("post_attention_layernorm.weight", {E}, Fill::kOnes);
    if (c.experts == 0 || c.dense_layer[static_cast<size_t>(l)]) {
      add("mlp.gate_proj.weight", {F, E});
      add("mlp.up_proj.weight", {F, E});
      add("mlp.down_proj.weight", {E, F});
      if (c.mlp_bias) {
        add("mlp.gate_proj.bias", {F});
        add("mlp.up_proj.bias", {F});
        add("mlp.down_proj.bias", {E});
      }
      continue;
    }
    const std::string moe = mixtral ? "block_sparse_moe." : "mlp.";
    add(moe + "gate.weight", {c.experts, E});
    for (int64_t e = 0; e < c.experts; ++e) {
      const std::string expert = cat(moe, "experts.", e, ".");
      add(expert + (mixtral ? "w1.weight" : "gate_proj.weight"), {c.expert_ffn, E});
      add(expert + (mixtral ? "w3.weight" : "up_proj.weight"), {c.expert_ffn, E});
      add(expert + (mixtral ? "w2.weight" : "down_proj.weight"), {E, c.expert_ffn});
    }
  }
  out.push_back({"model.norm.weight", {E}, Fill::kOnes});
  if (!c.tied) out.push_back({"lm_head.weight", {V, E}});
  return out;
}

Status write_random_checkpoint(const json::object& config, const std::string& folder, ThreadPool& pool,
                               const RandomCheckpointOptions& options, const Progress& progress) {
  OAR_ASSIGN(const std::vector<TensorSpec> tensors, checkpoint_tensors(config));
  bool f32 = false;
  if (options.to_train) { OAR_ASSIGN(f32, trains_as_f32(config)); }
  OAR_ASSIGN(const Layout layout, lay_out(tensors, f32));
  std::error_code ec;
  const auto space = std::filesystem::space(folder, ec);
  if (ec) return not_found(cat("cannot use folder ", folder, ": ", ec.message()));
  if (space.available < layout.size) {
    return resource_exhausted(cat("random weights need ", format_bytes(layout.size), " in ", folder,
                                  ", which has ", format_bytes(space.available),
                                  " left; give another folder"));
  }
  json::object written = config;
  written["torch_dtype"] = f32 ? "float32" : "bfloat16";
  OAR_RETURN_IF_ERROR(write_file_atomically(folder + "/config.json", json::serialize(written)));
  const json::value* vocab = config.if_contains("vocab_size");
  if (!options.to_train)
    OAR_RETURN_IF_ERROR(
        write_file_atomically(folder + "/tokenizer.json", byte_tokenizer(vocab->get_int64())));
  const std::vector<uint16_t> table = normal_table(options.seed, options.stddev);
  std::vector<uint16_t> branch_table;
  if (options.to_train) {
    OAR_ASSIGN(const ModelConfig c, read_model_config(config));
    branch_table = normal_table(options.seed, options.stddev / std::sqrt(2 * static_cast<double>(c.layers)));
  }

  const std::string path = folder + "/model.safetensors";
  const int fd = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) return io_error("cannot create", path, errno);
  Status status;
  std::atomic<int> error = write_at(fd, layout.header.data(), layout.header.size(), 0);
  constexpr uint64_t kChunk = uint64_t{1} << 20;  // elements; a multiple of 4, see below
  uint64_t done = 0;
  for (size_t i = 0; i < tensors.size() && status.ok() && error == 0; ++i) {
    const uint64_t count = element_count(tensors[i]), key = splitmix64(options.seed ^ splitmix64(i));
    const bool zeros = options.to_train && tensors[i].name.ends_with("bias");
    const bool constant = zeros || tensors[i].fill == Fill::kOnes;
    const std::vector<uint16_t>& from =
        options.to_train && ends_branch(tensors[i].name) ? branch_table : table;
    const uint64_t each = f32 ? 4 : 2;
    auto fill = [&](int64_t begin, int64_t end) {
      std::vector<uint16_t> values(kChunk);
      std::vector<float> wide(f32 ? kChunk : 0);
      for (int64_t c = begin; c < end; ++c) {
        const uint64_t first = static_cast<uint64_t>(c) * kChunk, n = std::min(kChunk, count - first);
        if (constant) {
          std::fill_n(values.begin(), n, to_bf16(zeros ? 0.f : 1.f).bits);
        } else {
          for (uint64_t j = 0; j < n; j += 4) {  // one hash makes four weights
            const uint64_t h = splitmix64(key + (first + j) / 4);
            for (unsigned k = 0; k < 4; ++k) values[j + k] = from[(h >> (16 * k)) & 0xffff];
          }
        }
        if (f32)
          std::transform(values.begin(), values.begin() + static_cast<ptrdiff_t>(n), wide.begin(),
                         [](uint16_t bits) { return to_f32(bf16{bits}); });
        const void* const bytes = f32 ? static_cast<const void*>(wide.data()) : values.data();
        if (const int e = write_at(fd, bytes, n * each, layout.offsets[i] + first * each)) error = e;
      }
    };
    pool.parallel_for(static_cast<int64_t>((count + kChunk - 1) / kChunk), 1, std::move(fill));
    done += count * each;
    if (status.ok() && progress && !progress("random weights", done, layout.size)) {
      status = Status(StatusCode::kCancelled, "stopped");
    }
  }
  if (close(fd) != 0 && error == 0) error = errno;
  if (error != 0) return io_error("cannot write", path, error);
  return status;
}

}  // namespace oar
