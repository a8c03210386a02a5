#include "engine/loader/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/gguf_architectures.h"
#include "engine/loader/gguf_hybrid.h"
#include "engine/loader/gguf_metadata_reader.h"

namespace oar {
namespace {

using namespace gguf;

// The numbers of a tensor of rope factors.
Result<json::value> factors_of(const GgufFile& file, const std::string& name) {
  const auto at = file.tensors.find(name);
  if (at == file.tensors.end()) return data_loss(cat(file.name, ": tensor ", name, " is missing"));
  constexpr int64_t kMaxFactors = 4096;
  const Tensor& t = at->second;
  if (t.format() != Format::f32() || t.shape().rank() != 1 || t.numel() > kMaxFactors) {
    return data_loss(
        cat(file.name, ": tensor ", name, " must be f32 with one dimension, at most ", kMaxFactors));
  }
  json::array factors;
  for (float f : t.values<float>()) {
    if (!std::isfinite(f) || f == 0.0f) {
      return data_loss(cat(file.name, ": tensor ", name, " holds ", f, "; factors must be finite and not 0"));
    }
    factors.push_back(f);
  }
  return json::value(std::move(factors));
}

// rope_scaling from "rope.scaling.*", or from the table of factors that llama.cpp puts beside the weights.
Status read_rope_scaling(const GgufFile& file, MetadataReader& in) {
  auto type = in.text("rope.scaling.type");
  auto factor = in.number("rope.scaling.factor");
  const auto older = in.number("rope.scale_linear");
  if (!type && !factor && older) type = "linear", factor = older;
  const auto original = in.count("rope.scaling.original_context_length");
  const auto attention = in.number("rope.scaling.attn_factor"),
             whole = in.number("rope.scaling.yarn_attn_factor");
  const auto fast = in.number("rope.scaling.yarn_beta_fast"), slow = in.number("rope.scaling.yarn_beta_slow");
  const bool scaled = type && *type != "none" && factor;
  const bool yarn = scaled && *type == "yarn";
  if (file.tensors.contains("rope_factors_long.weight")) {
    json::object scaling{{"rope_type", "longrope"}};
    OAR_ASSIGN(scaling["long_factor"], factors_of(file, "rope_factors_long.weight"));
    OAR_ASSIGN(scaling["short_factor"], factors_of(file, "rope_factors_short.weight"));
    if (original) scaling["original_max_position_embeddings"] = *original;
    if (attention) scaling["attention_factor"] = *attention;
    in.config["rope_scaling"] = std::move(scaling);
    return ok_status();
  }
  for (const auto& [key, factor_of_yarn] :
       {std::pair{"attn_factor", attention}, std::pair{"yarn_attn_factor", whole}}) {
    if (factor_of_yarn && *factor_of_yarn != 1 && !yarn)
      return unimplemented(cat(file.name, ": metadata rope.scaling.", key, " is ", *factor_of_yarn,
                               " where rope.scaling.type is not yarn, which is not supported"));
  }
  if (file.tensors.contains("rope_freqs.weight")) {
    if (scaled && *factor != 1)
      return unimplemented(
          cat(file.name, ": has both rope.scaling.type ", *type, " and a tensor of factors"));
    OAR_ASSIGN(json::value factors, factors_of(file, "rope_freqs.weight"));
    in.config["rope_scaling"] = {{"rope_type", "freq_factors"}, {"factors", std::move(factors)}};
    return ok_status();
  }
  if (!scaled) return ok_status();
  json::object scaling{{"rope_type", *type}, {"factor", *factor}};
  if (original) scaling["original_max_position_embeddings"] = *original;
  // The older is a factor on YaRN's own, the newer what Hugging Face has in its place.
  if (whole) scaling["attention_factor"] = *whole;
  else if (attention && yarn)
    scaling["attention_factor"] = *attention * (1 + 0.1 * std::log(std::max(*factor, 1.0)));
  if (fast) scaling["beta_fast"] = *fast;
  if (slow) scaling["beta_slow"] = *slow;
  in.config["rope_scaling"] = std::move(scaling);
  return ok_status();
}

// Where layers with a window and those without have other heads, and the last ones may have wider MLPs.
Status read_layered(const GgufFile& file, MetadataReader& in) {
  json::object& c = in.config;
  in.put_count("num_hidden_layers", "block_count");
  in.put_window_pattern();
  const json::value *layers = c.if_contains("num_hidden_layers"), *types = c.if_contains("layer_types");
  if (!in.status.ok() || !layers) return in.status;
  const int64_t n = layers->as_int64();
  if (!types || types->as_array().size() != static_cast<size_t>(n))
    return data_loss(cat(file.name, ": metadata attention.sliding_window_pattern is no list of block_count ",
                         n, " layers"));
  const json::array kinds = types->as_array();  // a copy: `c` moves its members when it grows
  const std::vector<int64_t> kv_heads = in.counts("attention.head_count_kv", n),
                             ffn = in.counts("feed_forward_length", n);
  OAR_RETURN_IF_ERROR(in.status);
  if (kv_heads.empty() || ffn.empty())
    return data_loss(cat(file.name, ": metadata attention.head_count_kv or feed_forward_length is missing"));
  for (size_t k = 0; k < kv_heads.size(); ++k) {
    const bool full = kinds[k] == json::value("full_attention");
    const char* key = full ? "num_global_key_value_heads" : "num_key_value_heads";
    if (json::value& v = c[key]; v.is_null()) v = kv_heads[k];
    else if (v != json::value(kv_heads[k]))
      return unimplemented(cat(file.name,
                               ": metadata attention.head_count_kv differs between layers of one "
                               "kind, which is not supported"));
    if (full && !c.contains("attention_k_eq_v"))
      c["attention_k_eq_v"] = !file.tensors.contains(cat("blk.", k, ".attn_v.weight"));
  }
  if (!c.contains("num_key_value_heads"))
    c["num_key_value_heads"] = json::value(c["num_global_key_value_heads"]);
  const int64_t shared = in.count("attention.shared_kv_layers").value_or(0);
  const bool wide = shared > 0 && ffn.back() == 2 * ffn.front();
  for (int64_t k = 0; k < n; ++k) {
    if (ffn[static_cast<size_t>(k)] != ffn.front() * (wide && k >= n - shared ? 2 : 1))
      return unimplemented(
          cat(file.name, ": metadata feed_forward_length differs at layer ", k,
              " otherwise than by twice in layers of attention.shared_kv_layers, which is not supported"));
  }
  c["intermediate_size"] = ffn.front();
  c["use_double_wide_mlp"] = wide;
  c["enable_moe_block"] = in.count("expert_count").value_or(0) > 0;
  if (const auto table = file.tensors.find("per_layer_token_embd.weight"); table != file.tensors.end())
    c["vocab_size_per_layer_input"] = table->second.shape()[0];
  const auto head = in.count("attention.key_length"), windowed = in.count("attention.key_length_swa");
  for (const char* key : {"attention.value_length_swa", "rope.dimension_count_swa"}) {
    if (const auto v = in.count(key); v && v != windowed)
      return unimplemented(cat(file.name, ": metadata ", key, " is ", *v,
                               ", other than attention.key_length_swa, which is not supported"));
  }
  if (head) c["global_head_dim"] = *head;
  if (windowed) c["head_dim"] = *windowed;
  return in.status;
}

// Layers behind the last that draft tokens: not run here.
void read_draft_layers(MetadataReader& in) {
  const auto drafts = in.count("nextn_predict_layers");
  json::value* layers = in.config.if_contains("num_hidden_layers");
  if (drafts && layers && layers->as_int64() > *drafts) *layers = layers->as_int64() - *drafts;
}

// What scores are divided by the root of. It is the head size, in all but the largest, which are known by
// their layers and take the width over the heads.
void scale_queries(json::object& c) {
  const json::value *layers = c.if_contains("num_hidden_layers"), *head = c.if_contains("head_dim");
  const json::value *width = c.if_contains("hidden_size"), *heads = c.if_contains("num_attention_heads");
  if (!layers || !head || !width || !heads || heads->as_int64() < 1) return;
  const bool largest = layers->as_int64() == (c.at("model_type") == "gemma2" ? 46 : 62);
  c["query_pre_attn_scalar"] = largest ? width->as_int64() / heads->as_int64() : head->as_int64();
}

void read_experts(MetadataReader& in, const Architecture* arch) {
  const auto experts = in.count("expert_count");
  if (!experts || *experts == 0) return;
  in.config["num_experts"] = *experts;
  in.config["num_local_experts"] = *experts;  // Mixtral's name for the same
  in.put_count("num_experts_per_tok", "expert_used_count");
  in.put_count("moe_intermediate_size", "expert_feed_forward_length");
  if (arch) in.config["norm_topk_prob"] = arch->norm_topk_prob;
}

// What a file may say of the router, where the architecture knows it.
Status check_gating(const GgufFile& file, MetadataReader& in, const std::string& architecture, int64_t kind,
                    const char* meaning) {
  const auto said = in.count("expert_gating_func");
  if (!said || *said == kind) return ok_status();
  return unimplemented(cat(file.name, ": metadata ", architecture, ".expert_gating_func is ", *said,
                           ", expected ", kind, " (", meaning, ")"));
}

// Hugging Face's config of GPT-2 has names of its own.
void add_gpt2_names(json::object& c) {
  constexpr Rename kNames[] = {{"hidden_size", "n_embd"},
                               {"num_hidden_layers", "n_layer"},
                               {"num_attention_heads", "n_head"},
                               {"intermediate_size", "n_inner"},
                               {"max_position_embeddings", "n_positions"},
                               {"hidden_act", "activation_function"}};
  for (const Rename& r : kNames) {
    if (const json::value* v = c.if_contains(r.gguf)) c[r.hugging_face] = json::value(*v);
  }
}

const char* torch_dtype(Format format) {
  if (format == Format::f32()) return "float32";
  if (format == Format::f16()) return "float16";
  if (format == Format::bf16()) return "bfloat16";
  return nullptr;  // a quantized model has none
}

// The head size, and the part of it that is rotated where that is not all.
Status read_head_size(const GgufFile& file, MetadataReader& in) {
  auto head = in.count("attention.key_length");
  const json::value* width = in.config.if_contains("hidden_size");
  const json::value* heads = in.config.if_contains("num_attention_heads");
  if (!head && width && heads && heads->as_int64() > 0 && width->as_int64() % heads->as_int64() == 0) {
    head = width->as_int64() / heads->as_int64();
  }
  if (!head) return ok_status();
  in.config["head_dim"] = *head;
  if (const auto v = in.count("attention.value_length"); v && *v != *head) {
    return unimplemented(cat(file.name, ": metadata attention.value_length ", *v,
                             " differs from attention.key_length ", *head, ", which is not supported"));
  }
  if (const auto rotated = in.count("rope.dimension_count"); rotated && *rotated != *head && *head > 0) {
    in.config["partial_rotary_factor"] = static_cast<double>(*rotated) / static_cast<double>(*head);
  }
  return ok_status();
}

}  // namespace

std::string hugging_face_name(std::string_view architecture, std::string_view gguf_name) {
  const Architecture* arch = find_architecture(architecture);
  size_t dot = gguf_name.rfind('.');
  if (!arch || dot == std::string_view::npos) return std::string(gguf_name);
  const bool of_layer = gguf_name.starts_with("blk.");
  if (of_layer && gguf_name.find('.', 4) == dot) dot = gguf_name.size();  // "blk.3.ssm_a"
  const std::string_view suffix = gguf_name.substr(dot);                  // ".weight", ".bias" or none
  std::string stem(gguf_name.substr(0, dot)), layer, expert;
  if (of_layer) {
    const size_t end = stem.find('.', 4);
    if (end == std::string::npos) return std::string(gguf_name);
    layer = stem.substr(4, end - 4);
    stem.replace(4, layer.size(), "N");
    // Old Mixtral files have one tensor per expert: blk.N.ffn_gate.E.weight.
    const size_t last = stem.rfind('.');
    if (last > 5 && stem.find_first_not_of("0123456789", last + 1) == std::string::npos &&
        last + 1 < stem.size()) {
      expert = stem.substr(last + 1);
      stem = stem.substr(0, last) + "_exps";
    }
  }
  for (const std::span<const Rename> names : {arch->own, arch->names}) {
    for (const Rename& r : names) {
      const bool whole = r.gguf.size() == stem.size() + suffix.size() && r.gguf.ends_with(suffix) &&
                         r.gguf.starts_with(stem);
      if (r.gguf != stem && !whole) continue;
      std::string name(r.hugging_face);
      if (!layer.empty()) name.replace(name.find(".N.") + 1, 1, layer);
      if (whole) return name;
      if (!expert.empty()) name.insert(name.rfind('.'), "." + expert);
      const bool ended = name.ends_with("_bias") || name.ends_with(".sinks") || name.ends_with(".weight");
      return ended ? name : name.append(suffix);
    }
  }
  return std::string(gguf_name);
}

Status gguf_sampling(const GgufFile& file, json::object& generation, std::vector<std::string>* notices) {
  constexpr KeyName kKeys[] = {{"temp", "temperature"},
                               {"top_k", "top_k", true},
                               {"top_p", "top_p"},
                               {"min_p", "min_p"},
                               {"penalty_repeat", "repetition_penalty"}};
  constexpr std::string_view kPrefix = "general.sampling.";
  std::string ignored;
  for (auto at = file.metadata.lower_bound(kPrefix); at != file.metadata.end(); ++at) {
    if (!at->first.starts_with(kPrefix)) break;
    const auto* key =
        std::ranges::find(kKeys, std::string_view(at->first).substr(kPrefix.size()), &KeyName::gguf);
    if (key == std::end(kKeys)) {
      ignored += cat(ignored.empty() ? "" : ", ", show_name(at->first));
      continue;
    }
    OAR_ASSIGN(const auto v, file.get_float(at->first));
    if (!(std::abs(*v) < 1e9)) return data_loss(cat(file.name, ": metadata ", at->first, " is ", *v));
    generation[key->config] = key->count ? json::value(static_cast<int64_t>(*v)) : json::value(*v);
  }
  if (!ignored.empty() && notices) notices->push_back(cat(file.name, ": metadata ignored: ", ignored));
  return ok_status();
}

Result<json::object> gguf_config(const GgufFile& file, std::vector<std::string>* notices) {
  OAR_ASSIGN(const auto name, file.get_string("general.architecture"));
  if (!name) return data_loss(cat(file.name, ": metadata general.architecture is missing"));
  const Architecture* arch = find_architecture(*name);
  MetadataReader in(file, *name + ".");
  json::object& c = in.config;
  if (*name == "llama") {
    if (in.count("expert_count").value_or(0) > 0) arch = &kMixtral;
    else if (in.count("attention.sliding_window").value_or(0) > 0) arch = &kMistral;
  }
  if (*name == "deepseek2" && scores_by_sigmoid(file, in)) arch = &kDeepSeekV3;
  if (*name == "deepseek2" && in.number("attention.temperature_scale").value_or(0) != 0) arch = &kMistral4;
  if (*name == "olmo2" && in.count("attention.sliding_window").value_or(0) > 0) arch = &kOlmo3;
  c["model_type"] = arch ? arch->model_type : std::string_view(*name);
  if (arch) {
    c["architectures"] = json::array{json::value(arch->architecture)};
    c["hidden_act"] = arch->activation;
    if (arch->permuted) c["rope_interleaved"] = true;
    OAR_ASSIGN(const json::value says, parse_json(arch->says, "what an architecture says"));
    for (const auto& [key, value] : says.as_object()) c[key] = value;
    for (const KeyName& key : arch->keys)
      key.count ? in.put_count(key.config, key.gguf) : in.put_number(key.config, key.gguf);
  }
  const bool layered = arch && arch->model_type == "gemma4_text";
  const bool mixed = arch && has_layer_lists(*arch), latent = arch && has_latent(*arch);
  in.put_count("hidden_size", "embedding_length");
  in.put_count("num_attention_heads", "attention.head_count");
  if (!layered) {
    in.put_count("num_hidden_layers", "block_count");
    if (mixed) {
      OAR_RETURN_IF_ERROR(read_layer_lists(file, *arch, in));
    } else {
      in.put_count("intermediate_size", "feed_forward_length");
      in.put_count("num_key_value_heads", "attention.head_count_kv");
    }
  }
  if (!layered && !c.contains("num_key_value_heads") && c.contains("num_attention_heads")) {
    c["num_key_value_heads"] = json::value(c["num_attention_heads"]);
  }
  in.put_count("max_position_embeddings", "context_length");
  in.put_count("sliding_window", "attention.sliding_window");
  if (!layered && !mixed) in.put_window_pattern();
  read_draft_layers(in);
  in.put_number("rms_norm_eps", "attention.layer_norm_rms_epsilon");
  c["rope_theta"] = in.number("rope.freq_base").value_or(10000.0);  // the format's default
  read_experts(in, arch);
  if (latent) OAR_RETURN_IF_ERROR(read_latent_sizes(file, in));
  else OAR_RETURN_IF_ERROR(read_head_size(file, in));
  if (arch) OAR_RETURN_IF_ERROR(read_scan_sizes(file, *arch, in));
  if (layered) OAR_RETURN_IF_ERROR(read_layered(file, in));
  OAR_RETURN_IF_ERROR(read_rope_scaling(file, in));
  if (latent) read_latent_yarn(in);
  const std::string_view type = arch ? arch->model_type : std::string_view();
  if (type == "ministral3" || type == "mistral4") OAR_RETURN_IF_ERROR(read_position_scale(file, *arch, in));
  if (type == "llama4_text") OAR_RETURN_IF_ERROR(read_llama4(file, in));
  // Which has longrope over the context it was trained in.
  if (const json::value* context = c.if_contains("max_position_embeddings"); type == "minicpm3" && context)
    if (json::value* rope = c.if_contains("rope_scaling"))
      rope->as_object().emplace("original_max_position_embeddings", *context);
  if (type == "lfm2_moe")
    c["use_expert_bias"] = std::ranges::any_of(
        file.tensors, [](const auto& t) { return t.first.ends_with(".exp_probs_b.bias"); });
  if (type == "ernie4_5_moe") (void)in.count("expert_shared_feed_forward_length");  // as the matrices say
  if (arch && arch->model_type.starts_with("gemma") && !layered) scale_queries(in.config);
  if (arch && arch->model_type == "exaone4" && !c.contains("sliding_window")) c["sliding_window"] = nullptr;
  if (arch && arch->model_type == "glm4_moe") {
    c["use_qk_norm"] = file.tensors.contains("blk.0.attn_q_norm.weight");
    OAR_RETURN_IF_ERROR(check_gating(file, in, *name, 2, "sigmoid"));
  }
  if (type == "deepseek_v2" || type == "mistral4" || type == "ernie4_5_moe")
    OAR_RETURN_IF_ERROR(check_gating(file, in, *name, 1, "softmax"));
  if (type == "lfm2_moe" || type == "minimax_m2" || type == "llama4_text" ||
      (arch && arch->gguf == "nemotron_h_moe"))
    OAR_RETURN_IF_ERROR(check_gating(file, in, *name, 2, "sigmoid"));
  if (arch && arch->model_type == "gpt_oss") {
    // Its YaRN does not round the dims between which it blends, and no key of a file says so.
    if (json::value* rope = c.if_contains("rope_scaling")) rope->as_object()["truncate"] = false;
    OAR_RETURN_IF_ERROR(check_gating(file, in, *name, 3, "softmax of those chosen"));
  }

  const auto embedding = file.tensors.find("token_embd.weight");
  if (embedding != file.tensors.end() && embedding->second.shape().rank() == 2) {
    c["vocab_size"] = embedding->second.shape()[0];
    if (const char* dtype = torch_dtype(embedding->second.format())) c["torch_dtype"] = dtype;
  } else {
    in.put_count("vocab_size", "vocab_size");
  }
  c["tie_word_embeddings"] = !file.tensors.contains("output.weight");
  if (arch && arch->model_type == "gpt2") {
    c["linear_out_in"] = true;
    add_gpt2_names(c);
  }
  if (!in.status.ok()) return in.status;
  if (!arch) return std::move(c);
  OAR_ASSIGN(const std::string unknown, in.finish());
  if (!unknown.empty() && notices) notices->push_back(cat(file.name, ": metadata ignored: ", unknown));
  return std::move(c);
}

}  // namespace oar
