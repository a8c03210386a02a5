#include "engine/models/config_reader.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"

namespace oar {
namespace {

// Keys that no forward pass of ours depends on, by the reason.
constexpr std::string_view kWithoutEffect[] = {
    // Training alone.
    "attention_dropout attention_probs_dropout_prob attn_pdrop embd_pdrop resid_pdrop hidden_dropout "
    "hidden_dropout_prob dropout qa_dropout seq_classif_dropout classifier_dropout embedding_dropout "
    "residual_dropout "
    "initializer_range initializer_factor router_aux_loss_coef router_jitter_noise output_router_logits "
    "gradient_checkpointing tf_legacy_loss tie_weights_",
    // How a result is computed or returned, not which.
    "use_cache cache_implementation output_attentions output_hidden_states output_past return_dict "
    "use_return_dict torchscript "
    "chunk_size_feed_forward pretraining_tp reorder_and_upcast_attn attn_implementation _attn_implementation "
    "_attn_implementation_autoset use_flash_attn use_flash_attention use_bfloat16 "
    "keys_to_ignore_at_inference",
    // Where the file comes from, and how its weights are stored (the loader reads that).
    "model_type architectures _source auto_map transformers_version transformers.js_config _name_or_path "
    "name_or_path _commit_hash unsloth_version unsloth_fixed torch_dtype dtype quantization_config "
    "compression_config",
    // Lengths that bind a tokenizer or a trainer; ids and sampling, which generation_config.json has.
    "n_ctx model_max_length max_sequence_length seq_length max_length min_length tokenizer_class prefix "
    "bos_token_id eos_token_id eod_token_id "
    "pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id decoder_start_token_id "
    "forced_bos_token_id forced_eos_token_id do_sample early_stopping num_beams num_beam_groups "
    "diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty "
    "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores "
    "return_dict_in_generate remove_invalid_values exponential_decay_length_penalty suppress_tokens "
    "begin_suppress_tokens",
    // Other heads than the one that is run, and parts a lone model has not.
    "id2label label2id num_labels problem_type finetuning_task task_specific_params summary_type "
    "summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout tie_encoder_decoder "
    "cross_attention_hidden_size directionality pooler_fc_size pooler_num_attention_heads "
    "pooler_num_fc_layers pooler_size_per_head pooler_type sbert_ce_default_activation_function "
    "sentence_transformers",
    // Of experts and layer inputs, where keys that say that there are any are refused.
    "num_experts_per_tok moe_k top_k_experts norm_topk_prob moe_intermediate_size mlp_only_layers "
    "attn_scale floor_scale vocab_size_per_layer_input",
    // Of ropes and windows, where these are refused.
    "original_max_position_embeddings max_window_layers",
};

// Keys that change what a model computes, in some architecture, and the value that does not. All that any
// decoder reads are here or above (config_test.cc), but other spellings of what each has (`hidden_act`,
// `norm_eps`), which released files repeat and their classes pass over.
struct Neutral {
  const char* value;  // for the message
  bool (*is)(const json::value& v);
  std::string_view keys;
};
bool is_number(const json::value& v, double wanted) {
  return v.is_number() && v.to_number<double>() == wanted;
}
bool is_off(const json::value& v) { return is_empty(v) || is_number(v, 0); }
bool is_one(const json::value& v) { return v.is_null() || is_number(v, 1); }
bool is_every(const json::value& v) { return is_off(v) || is_number(v, 1); }
bool is_ones(const json::value& v) {
  return is_empty(v) ||
         (v.is_array() && std::ranges::all_of(v.get_array(), [](const json::value& n) { return is_one(n); }));
}
bool is_true(const json::value& v) { return v.is_null() || (v.is_bool() && v.get_bool()); }
template <const char*... kWords>
bool is_one_of(const json::value& v) {
  return v.is_null() || (v.is_string() && ((v.get_string() == kWords) || ...));
}
constexpr char kSoftmax[] = "softmax", kGreedy[] = "greedy", kDefault[] = "default", kRope[] = "rope",
               kAbsolute[] = "absolute", kRms[] = "rms", kRmsNorm[] = "rms_norm";

constexpr Neutral kMatters[] = {
    {"null, false or 0", is_off,
     "is_encoder_decoder is_decoder add_cross_attention pruned_heads per_layer_config quantization "
     "sliding_window use_sliding_window attention_chunk_size attn_temperature_tuning no_rope_layers alibi "
     "use_alibi attn_logit_softcapping final_logit_softcapping clip_qkv qkv_bias use_bias bias lm_head_bias "
     "use_qk_norm "
     "qk_norm qk_layernorm parallel_attn use_parallel_block use_parallel_residual attention_multiplier "
     "query_pre_attn_scalar "
     "n_shared_experts num_shared_experts shared_expert_intermediate_size first_k_dense_replace "
     "num_experts num_local_experts kv_lora_rank q_lora_rank embedding_size scale_attn_by_inverse_layer_idx "
     "use_bidirectional_attention use_task_id use_mrope dim_model_base scale_depth index_topk index_n_heads "
     "index_head_dim"},
    // Attention: biases, heads and windows by layer, values, latents, what rotates.
    {"null, false or 0", is_off,
     "attention_bias attention_out_bias mlp_bias attention_k_eq_v attn_output_gate attn_type_list use_cla "
     "head_dim "
     "global_head_dim num_key_value_heads num_global_key_value_heads num_kv_shared_layers local_attention "
     "no_rope_layer_interval qk_nope_head_dim qk_rope_head_dim v_head_dim qk_norm_type rotary_dim "
     "rope_interleave rope_interleaved rope_theta rope_parameters rope_scaling rope_local_base_freq "
     "global_rope_theta local_rope_theta order_of_interleaved_layers"},
    // Recurrent layers and which they are.
    {"null, false or 0", is_off,
     "full_attn_idxs layers_block_type hybrid_override_pattern conv_L_cache conv_bias conv_kernel "
     "use_conv_bias linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads "
     "linear_num_value_heads linear_value_heads_tiled mamba_d_conv mamba_d_head mamba_d_ssm mamba_d_state "
     "mamba_expand mamba_n_groups mamba_n_heads mamba_num_heads mamba_head_dim mamba_conv_bias "
     "mamba_proj_bias mamba_norm_before_gate mamba_rms_norm mamba_hidden_act projectors_bias ssm_state_size "
     "state_size expand num_heads n_groups time_step_limit time_step_min"},
    // MLPs, mixtures and what layers have beside these; how our own files lie.
    {"null, false or 0", is_off,
     "block_ff_dim block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of intermediate_size "
     "intermediate_size_mlp shared_intermediate_size use_double_wide_mlp swiglu_alpha swiglu_limit "
     "n_routed_experts moe_num_experts moe_num_shared_experts moe_layer_start_index moe_layer_end_index "
     "moe_layers moe_norm_min mlp_layer_types num_dense_layers enable_moe_block use_expert_bias "
     "use_routing_bias hidden_size_per_layer_input norm_bias tie_embedding type_vocab_size linear_out_in "
     "multipliers_folded norm_weights_are_whole"},
    {"null, false, 0 or 1", is_every,
     "decoder_sparse_step moe_layer_freq moe_layer_interval interleave_moe_layer_step "
     "full_attention_interval "
     "sliding_window_pattern global_attn_every_n_layers n_group topk_group"},
    {"1", is_one,
     "logit_scale logits_scaling embedding_multiplier residual_multiplier lm_head_multiplier key_multiplier "
     "attention_in_multiplier attention_out_multiplier ssm_in_multiplier ssm_out_multiplier scale_emb "
     "partial_rotary_factor rotary_pct routed_scaling_factor"},
    {"ones", is_ones, "mlp_multipliers ssm_multipliers"},
    {"true", is_true, "is_causal scale_attn_weights use_rotary_pos_emb use_gated_activation"},
    {"softmax", is_one_of<kSoftmax>, "scoring_func"},
    {"greedy", is_one_of<kGreedy>, "topk_method"},
    {"default", is_one_of<kDefault>, "mlp_type"},
    {"rms_norm", is_one_of<kRms, kRmsNorm>, "norm_type"},
    {"rope", is_one_of<kRope, kAbsolute>, "position_embedding_type"},
};

}  // namespace

bool is_word_of(std::string_view list, std::string_view word) {
  for (size_t at = list.find(word); at != std::string_view::npos; at = list.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || list[at - 1] == ' ') && (end == list.size() || list[end] == ' ')) return true;
  }
  return false;
}

std::string_view ConfigReader::spelling(Keys keys) {
  const char* key = nullptr;
  find(keys, &key);
  return key;
}

const json::value* ConfigReader::find(Keys keys, const char** key) {
  const json::value* found = nullptr;
  *key = *keys.begin();
  for (const char* k : keys) {
    asked_.insert(k);
    const json::value* v = config_.if_contains(k);
    if (v == nullptr || (found != nullptr && (!found->is_null() || v->is_null()))) continue;
    found = v, *key = k;
  }
  return found;
}

Result<int64_t> ConfigReader::integer(Keys keys, int64_t least, int64_t most, std::optional<int64_t> absent,
                                      std::optional<int64_t> null) {
  const char* key = nullptr;
  const json::value* v = find(keys, &key);
  if (v != nullptr && v->is_null() && null) return *null;
  if (v == nullptr || v->is_null()) {
    if (absent) return *absent;
    return invalid_argument(cat("config.json has no '", key, "'"));
  }
  int64_t n = 0;
  if (v->is_int64()) n = v->get_int64();
  else if (v->is_double() && v->get_double() == std::floor(v->get_double()) &&
           std::abs(v->get_double()) < 9e15)
    n = static_cast<int64_t>(v->get_double());
  else return invalid_argument(cat("config.json: '", key, "' is not an integer"));
  if (n < least || n > most)
    return invalid_argument(cat("config.json: '", key, "' is ", n, ", expected ", least, " to ", most));
  return n;
}

Result<double> ConfigReader::number(Keys keys, double absent, std::optional<double> null) {
  const char* key = nullptr;
  const json::value* v = find(keys, &key);
  if (v != nullptr && v->is_null() && null) return *null;
  if (v == nullptr || v->is_null()) return absent;
  if (!v->is_number()) return invalid_argument(cat("config.json: '", key, "' is not a number"));
  return v->to_number<double>();
}

Result<bool> ConfigReader::boolean(const char* key, bool absent) {
  const json::value* v = find({key}, &key);
  if (v == nullptr || v->is_null()) return absent;
  if (!v->is_bool()) return invalid_argument(cat("config.json: '", key, "' is neither true nor false"));
  return v->get_bool();
}

Result<std::string> ConfigReader::text(Keys keys, const char* absent) {
  const char* key = nullptr;
  const json::value* v = find(keys, &key);
  if (v == nullptr || v->is_null()) return std::string(absent);
  if (!v->is_string()) return invalid_argument(cat("config.json: '", key, "' is not a text"));
  return std::string(v->get_string());
}

const json::value* ConfigReader::value(const char* key) {
  const json::value* v = find({key}, &key);
  return v == nullptr || v->is_null() ? nullptr : v;
}

Status ConfigReader::expect(const char* key, const json::value& wanted) {
  const json::value* v = value(key);
  if (v == nullptr || *v == wanted) return ok_status();
  const auto shown = [](const json::value& one) { return json::serialize(one).substr(0, 80); };
  return unimplemented(cat("config.json: '", key, "' is ", shown(*v),
                           ", which is not run with here; expected ", shown(wanted)));
}

ConfigReader::Unread ConfigReader::unread(std::string_view key, const json::value& value,
                                          const char** neutral) const {
  if (asked_.contains(key)) return Unread::kNothing;
  for (const std::string_view list : harmless_)
    if (is_word_of(list, key)) return Unread::kNothing;
  for (const std::string_view list : kWithoutEffect)
    if (is_word_of(list, key)) return Unread::kNothing;
  bool known = false;
  for (const Neutral& n : kMatters) {
    if (!is_word_of(n.keys, key)) continue;
    *neutral = n.value;
    if (!n.is(value)) return Unread::kMatters;
    known = true;
  }
  return known ? Unread::kNothing : Unread::kUnknown;
}

Result<std::string> ConfigReader::finish(std::string_view model_type) const {
  std::string unknown;
  for (const auto& [name, value] : config_) {
    const std::string_view key(name.data(), name.size());
    const char* neutral = nullptr;
    const Unread left = unread(key, value, &neutral);
    if (left == Unread::kMatters) {
      return unimplemented(cat("config.json: '", key, "' is ", json::serialize(value).substr(0, 80),
                               ", which ", model_type, " is not run with here; expected ", neutral));
    }
    if (left == Unread::kUnknown) unknown += cat(unknown.empty() ? "" : ", ", show_name(key));
  }
  return unknown;
}

std::vector<std::string> ConfigReader::unread() const {
  std::vector<std::string> out;
  const char* neutral = nullptr;
  for (const auto& [name, value] : config_) {
    const std::string_view key(name.data(), name.size());
    if (unread(key, value, &neutral) != Unread::kNothing) out.push_back(show_name(key));
  }
  return out;
}

std::string dropout_in(const json::object& config) {
  std::string out;
  for (const auto& [key, value] : config) {
    const std::string_view name = key;
    const bool drops = name.find("dropout") != std::string_view::npos || name.ends_with("_pdrop");
    if (drops && value.is_number() && value.to_number<double>() > 0)
      out += cat(out.empty() ? "" : ", ", name, " ", json::serialize(value));
  }
  return out;
}

std::string unknown_keys_notice(std::string_view model_type, std::string_view names) {
  return cat("config.json: ", model_type, " has no ", names, "; ignored");
}

}  // namespace oar
