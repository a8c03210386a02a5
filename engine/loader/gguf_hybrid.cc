#include "engine/loader/gguf_hybrid.h"

namespace oar::gguf {
namespace {

// At most 65,536, as lists of the metadata are: what is said of each layer is read one by one.
Result<int64_t> layers_of(const GgufFile& file, const MetadataReader& in) {
  constexpr int64_t kMaxLayers = 1 << 16;
  const json::value* n = in.config.if_contains("num_hidden_layers");
  if (n && n->as_int64() > kMaxLayers)
    return data_loss(cat(file.name, ": metadata block_count is ", n->as_int64(), "; at most ", kMaxLayers));
  return n ? n->as_int64() : 0;
}

// The one value of a list by layer that is not 0, or 0; entries behind the layers are of drafts.
Result<int64_t> only_value(const GgufFile& file, std::string_view key, const std::vector<int64_t>& list) {
  int64_t only = 0;
  for (const int64_t v : list) {
    if (v != 0 && only != 0 && v != only)
      return unimplemented(
          cat(file.name, ": metadata ", key, " has ", v, " beside ", only, ", which is not supported"));
    if (v != 0) only = v;
  }
  return only;
}

}  // namespace

bool has_layer_lists(const Architecture& arch) {
  return arch.model_type.starts_with("lfm2") || arch.model_type == "granitemoehybrid" ||
         arch.model_type == "nemotron_h";
}

bool has_latent(const Architecture& arch) { return arch.own.data() == kLatentNames; }

bool scores_by_sigmoid(const GgufFile& file, MetadataReader& in) {
  if (const auto said = in.count("expert_gating_func")) return *said == 2;
  return std::ranges::any_of(file.tensors,
                             [](const auto& t) { return t.first.ends_with(".exp_probs_b.bias"); });
}

Status read_layer_lists(const GgufFile& file, const Architecture& arch, MetadataReader& in) {
  OAR_ASSIGN(const int64_t n, layers_of(file, in));
  if (!in.status.ok() || n == 0) return in.status;
  const bool nemotron = arch.model_type == "nemotron_h";
  const std::vector<int64_t> kv_heads = in.counts("attention.head_count_kv", n),
                             ffn = in.counts("feed_forward_length", n);
  OAR_RETURN_IF_ERROR(in.status);
  if (kv_heads.empty()) return data_loss(cat(file.name, ": metadata attention.head_count_kv is missing"));
  if (nemotron && ffn.empty()) return data_loss(cat(file.name, ": metadata feed_forward_length is missing"));
  OAR_ASSIGN(const int64_t heads, only_value(file, "attention.head_count_kv", kv_heads));
  OAR_ASSIGN(const int64_t width, only_value(file, "feed_forward_length", ffn));
  const char* without = arch.model_type.starts_with("lfm2") ? "conv" : "linear_attention";
  const bool experts = in.count("expert_count").value_or(0) > 0;
  const int64_t drafts = in.count("nextn_predict_layers").value_or(0);
  json::array types;
  for (size_t k = 0; k + static_cast<size_t>(drafts) < kv_heads.size(); ++k) {
    const bool fed = nemotron && ffn[k] != 0;
    if (fed && kv_heads[k] != 0)
      return unimplemented(cat(file.name, ": metadata attention.head_count_kv is ", kv_heads[k],
                               " and feed_forward_length ", ffn[k], " at layer ", k,
                               ", which has either attention or an MLP"));
    types.push_back(kv_heads[k] != 0 ? "full_attention" : !fed ? without : experts ? "moe" : "mlp");
  }
  in.config["num_key_value_heads"] = std::max<int64_t>(heads, 1);
  in.config["layer_types"] = std::move(types);
  if (width > 0) in.config["intermediate_size"] = width;
  return ok_status();
}

Status read_scan_sizes(const GgufFile& file, const Architecture& arch, MetadataReader& in) {
  const std::string_view type = arch.model_type;
  const bool delta = arch.own.data() == kDeltaNames;
  const char* head_dim = type == "mamba2"             ? "head_dim"
                         : type == "nemotron_h"       ? "mamba_head_dim"
                         : type == "falcon_h1"        ? "mamba_d_head"
                         : type == "granitemoehybrid" ? "mamba_d_head"
                         : delta                      ? "linear_value_head_dim"
                                                      : nullptr;
  if (head_dim == nullptr || !in.status.ok()) return in.status;
  json::object& c = in.config;
  const auto inner = in.count("ssm.inner_size"), heads = in.count("ssm.time_step_rank");
  OAR_RETURN_IF_ERROR(in.status);
  if (!inner || !heads || *heads < 1 || *inner % *heads != 0)
    return data_loss(cat(file.name, ": metadata ssm.inner_size ", inner.value_or(0),
                         " is no multiple of ssm.time_step_rank ", heads.value_or(0), ", its heads"));
  c[head_dim] = *inner / *heads;
  if (type == "granitemoehybrid") {
    const json::value* width = c.if_contains("hidden_size");
    if (width && width->as_int64() > 0) c["mamba_expand"] = *inner / width->as_int64();
    // Attention rotates where the file says so.
    if (in.flag("rope.scaling.finetuned").value_or(false)) c["position_embedding_type"] = "rope";
  }
  if (type == "nemotron_h") {
    c.erase("partial_rotary_factor");  // nothing rotates
    c.erase("hidden_act");             // it has a key of its own
  }
  if (type == "falcon_h1") c["mamba_rms_norm"] = file.tensors.contains("blk.0.ssm_norm.weight");
  if (type == "mamba2")
    for (const char* none :
         {"num_attention_heads", "num_key_value_heads", "intermediate_size", "rms_norm_eps"})
      c.erase(none);
  if (!delta) return ok_status();
  OAR_ASSIGN(const int64_t layers, layers_of(file, in));
  // Newer files say of each layer what older ones leave to full_attention_interval.
  const std::vector<int64_t> recurrent = in.counts("attention.recurrent_layers", layers);
  const int64_t drafts = in.count("nextn_predict_layers").value_or(0);
  OAR_RETURN_IF_ERROR(in.status);
  json::array types;
  for (size_t k = 0; k + static_cast<size_t>(drafts) < recurrent.size(); ++k)
    types.push_back(recurrent[k] != 0 ? "linear_attention" : "full_attention");
  if (!types.empty()) c["layer_types"] = std::move(types);
  if (const json::value* experts = c.if_contains("num_experts"); experts && experts->as_int64() > 0) {
    json::array dense;
    for (int64_t k = 0; k < layers; ++k)
      if (file.tensors.contains(cat("blk.", k, ".ffn_gate.weight"))) dense.push_back(k);
    c["mlp_only_layers"] = std::move(dense);
  }
  return ok_status();
}

Status read_latent_sizes(const GgufFile& file, MetadataReader& in) {
  json::object& c = in.config;
  in.put_count("kv_lora_rank", "attention.kv_lora_rank");
  const auto query_rank = in.count("attention.q_lora_rank");
  c["q_lora_rank"] = query_rank ? json::value(*query_rank) : json::value(nullptr);
  // Of older files without these, the plain lengths are those of a head.
  const auto cached = in.count("attention.key_length"), values = in.count("attention.value_length");
  const auto key = in.count("attention.key_length_mla"), value = in.count("attention.value_length_mla");
  const auto rotated = in.count("rope.dimension_count");
  OAR_RETURN_IF_ERROR(in.status);
  const int64_t head = key.value_or(cached.value_or(0)), turns = rotated.value_or(0);
  if (turns < 1 || head <= turns)
    return data_loss(cat(file.name, ": metadata rope.dimension_count ", turns, " is not within the ", head,
                         key ? " of attention.key_length_mla" : " of attention.key_length"));
  c["qk_rope_head_dim"] = turns;
  c["qk_nope_head_dim"] = head - turns;
  if (value || values) c["v_head_dim"] = value.value_or(values.value_or(0));
  c.erase("num_key_value_heads");  // one of what is cached, or those of heads
  if (in.count("expert_count").value_or(0) > 0)
    c["norm_topk_prob"] = in.flag("expert_weights_norm").value_or(false);
  const json::value *groups = c.if_contains("n_group"), *taken = c.if_contains("topk_group");
  if (groups && taken && *groups != *taken && c.at("model_type") == "deepseek_v2")
    c["topk_method"] = "group_limited_greedy";
  return ok_status();
}

Status read_position_scale(const GgufFile& file, const Architecture& arch, MetadataReader& in) {
  json::object& c = in.config;
  json::object o{{"rope_type", "default"}};  // apart from `c`, which moves its members when it grows
  if (const json::value* scaling = c.if_contains("rope_scaling")) o = scaling->as_object();
  if (const json::value* context = c.if_contains("max_position_embeddings");
      context && !o.contains("original_max_position_embeddings"))
    o["original_max_position_embeddings"] = json::value(*context);
  const auto period = in.count("attention.temperature_length");
  const json::value* own = o.if_contains("original_max_position_embeddings");
  if (period && (own == nullptr || json::value(*period) != *own))
    return unimplemented(cat(file.name, ": metadata attention.temperature_length is ", *period,
                             ", other than rope.scaling.original_context_length, which is not supported"));
  // Files of Mistral 4 have no such key, and every released model grows by this.
  const double unsaid = arch.model_type == "mistral4" ? 0.1 : 0;
  o["llama_4_scaling_beta"] = in.number("attention.temperature_scale").value_or(unsaid);
  if (arch.model_type == "ministral3") {  // its YaRN leaves queries and keys as long as they are
    const double growth = in.number("rope.scaling.yarn_log_multiplier").value_or(1);
    for (const char* key : {"mscale", "mscale_all_dim"}) o[key] = growth == 0 ? 1 : growth;
  }
  c.erase("rope_scaling");
  c["rope_parameters"] = std::move(o);
  return in.status;
}

Status read_llama4(const GgufFile& file, MetadataReader& in) {
  json::object& c = in.config;
  if (const json::value* ffn = c.if_contains("intermediate_size")) {
    const json::value wide = *ffn;
    c["intermediate_size_mlp"] = wide;
  }
  const auto width = in.count("expert_feed_forward_length"), experts = in.count("expert_count");
  if (width) c["intermediate_size"] = *width;
  // Maverick has as many, and normalizes no heads; no key says so.
  c["use_qk_norm"] = experts.value_or(0) != 128;
  const json::value* chunk = c.if_contains("sliding_window");
  if (chunk == nullptr) return in.status;
  if (*chunk == json::value(0))
    return unimplemented(cat(file.name, ": metadata attention.sliding_window is 0: Llama 4 without chunks, ",
                             "which is not supported"));
  const json::value length = *chunk;
  c["attention_chunk_size"] = length;
  c.erase("sliding_window");
  return in.status;
}

void read_latent_yarn(MetadataReader& in) {
  const auto tenth = in.number("rope.scaling.yarn_log_multiplier");
  json::value* rope = in.config.if_contains("rope_scaling");
  if (!tenth || *tenth == 0 || !rope) return;
  rope->as_object()["mscale"] = 10 * *tenth;
  rope->as_object()["mscale_all_dim"] = 10 * *tenth;
}

}  // namespace oar::gguf
