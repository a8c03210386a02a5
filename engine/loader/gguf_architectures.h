// The architectures of GGUF files in Hugging Face's words: names of tensors, keys of the metadata, and what a
// file of the type says without writing it down. gguf_model.cc reads by it.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

namespace oar::gguf {

struct Rename {
  std::string_view gguf, hugging_face;
};

// "N" stands for the layer. Names end before ".weight" or ".bias", but those that have it on both sides.
inline constexpr Rename kDecoderNames[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"blk.N.attn_norm", "model.layers.N.input_layernorm"},
    {"blk.N.attn_q", "model.layers.N.self_attn.q_proj"},
    {"blk.N.attn_k", "model.layers.N.self_attn.k_proj"},
    {"blk.N.attn_v", "model.layers.N.self_attn.v_proj"},
    {"blk.N.attn_output", "model.layers.N.self_attn.o_proj"},
    {"blk.N.attn_q_norm", "model.layers.N.self_attn.q_norm"},
    {"blk.N.attn_k_norm", "model.layers.N.self_attn.k_norm"},
    {"blk.N.ffn_norm", "model.layers.N.post_attention_layernorm"},
    {"blk.N.ffn_gate", "model.layers.N.mlp.gate_proj"},
    {"blk.N.ffn_up", "model.layers.N.mlp.up_proj"},
    {"blk.N.ffn_down", "model.layers.N.mlp.down_proj"},
    {"blk.N.ffn_gate_inp", "model.layers.N.mlp.gate"},
    {"blk.N.ffn_gate_exps", "model.layers.N.mlp.experts.gate_proj"},
    {"blk.N.ffn_up_exps", "model.layers.N.mlp.experts.up_proj"},
    {"blk.N.ffn_down_exps", "model.layers.N.mlp.experts.down_proj"},
};
inline constexpr Rename kGpt2Names[] = {
    {"token_embd", "transformer.wte"},
    {"position_embd", "transformer.wpe"},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head"},
    {"blk.N.attn_norm", "transformer.h.N.ln_1"},
    {"blk.N.attn_qkv", "transformer.h.N.attn.c_attn"},
    {"blk.N.attn_output", "transformer.h.N.attn.c_proj"},
    {"blk.N.ffn_norm", "transformer.h.N.ln_2"},
    {"blk.N.ffn_up", "transformer.h.N.mlp.c_fc"},
    {"blk.N.ffn_down", "transformer.h.N.mlp.c_proj"},
};

// Where an architecture's own names differ from kDecoderNames.
inline constexpr Rename kNormsBehind[] = {
    {"blk.N.post_attention_norm", "model.layers.N.post_attention_layernorm"},
    {"blk.N.post_ffw_norm", "model.layers.N.post_feedforward_layernorm"}};
inline constexpr Rename kGemmaNames[] = {
    {"blk.N.post_attention_norm", "model.layers.N.post_attention_layernorm"},
    {"blk.N.ffn_norm", "model.layers.N.pre_feedforward_layernorm"},
    {"blk.N.post_ffw_norm", "model.layers.N.post_feedforward_layernorm"}};
inline constexpr Rename kGemma4Names[] = {
    {"per_layer_token_embd", "model.embed_tokens_per_layer"},
    {"per_layer_model_proj", "model.per_layer_model_projection"},
    {"per_layer_proj_norm", "model.per_layer_projection_norm"},
    {"blk.N.inp_gate", "model.layers.N.per_layer_input_gate"},
    {"blk.N.proj", "model.layers.N.per_layer_projection"},
    {"blk.N.post_norm", "model.layers.N.post_per_layer_input_norm"},
    {"blk.N.layer_output_scale.weight", "model.layers.N.layer_scalar"},
    {"blk.N.post_attention_norm", "model.layers.N.post_attention_layernorm"},
    {"blk.N.ffn_norm", "model.layers.N.pre_feedforward_layernorm"},
    {"blk.N.pre_ffw_norm_2", "model.layers.N.pre_feedforward_layernorm_2"},
    {"blk.N.post_ffw_norm", "model.layers.N.post_feedforward_layernorm"},
    {"blk.N.post_ffw_norm_1", "model.layers.N.post_feedforward_layernorm_1"},
    {"blk.N.post_ffw_norm_2", "model.layers.N.post_feedforward_layernorm_2"},
    {"blk.N.ffn_gate_inp.scale", "model.layers.N.router.scale"},
    {"blk.N.ffn_gate_inp", "model.layers.N.router.proj"},
    {"blk.N.ffn_down_exps.scale", "model.layers.N.router.per_expert_scale"},
    {"blk.N.ffn_down_exps", "model.layers.N.experts.down_proj"},
    {"blk.N.ffn_gate_up_exps", "model.layers.N.experts.gate_up_proj"},
    {"blk.N.ffn_gate_exps", "model.layers.N.experts.gate_proj"},
    {"blk.N.ffn_up_exps", "model.layers.N.experts.up_proj"}};
inline constexpr Rename kGlm4Names[] = {
    {"blk.N.post_attention_norm", "model.layers.N.post_self_attn_layernorm"},
    {"blk.N.post_ffw_norm", "model.layers.N.post_mlp_layernorm"},
    {"blk.N.ffn_up", "model.layers.N.mlp.gate_up_proj"}};
inline constexpr Rename kPhi3Names[] = {{"blk.N.attn_qkv", "model.layers.N.self_attn.qkv_proj"},
                                        {"blk.N.ffn_up", "model.layers.N.mlp.gate_up_proj"}};
inline constexpr Rename kHunyuanNames[] = {{"blk.N.attn_q_norm", "model.layers.N.self_attn.query_layernorm"},
                                           {"blk.N.attn_k_norm", "model.layers.N.self_attn.key_layernorm"}};
inline constexpr Rename kStarCoderNames[] = {{"blk.N.ffn_up", "model.layers.N.mlp.c_fc"},
                                             {"blk.N.ffn_down", "model.layers.N.mlp.c_proj"}};
inline constexpr Rename kQwen2MoeNames[] = {
    {"blk.N.ffn_gate_inp_shexp", "model.layers.N.mlp.shared_expert_gate"},
    {"blk.N.ffn_gate_shexp", "model.layers.N.mlp.shared_expert.gate_proj"},
    {"blk.N.ffn_up_shexp", "model.layers.N.mlp.shared_expert.up_proj"},
    {"blk.N.ffn_down_shexp", "model.layers.N.mlp.shared_expert.down_proj"}};
inline constexpr Rename kGlm4MoeNames[] = {
    {"blk.N.post_attention_norm", "model.layers.N.post_attention_layernorm"},
    {"blk.N.exp_probs_b", "model.layers.N.mlp.gate.e_score_correction_bias"},
    {"blk.N.ffn_gate_shexp", "model.layers.N.mlp.shared_experts.gate_proj"},
    {"blk.N.ffn_up_shexp", "model.layers.N.mlp.shared_experts.up_proj"},
    {"blk.N.ffn_down_shexp", "model.layers.N.mlp.shared_experts.down_proj"}};
inline constexpr Rename kErnieMoeNames[] = {
    {"blk.N.exp_probs_b", "model.layers.N.mlp.moe_statics.e_score_correction_bias"},
    {"blk.N.ffn_gate_shexp", "model.layers.N.mlp.shared_experts.gate_proj"},
    {"blk.N.ffn_up_shexp", "model.layers.N.mlp.shared_experts.up_proj"},
    {"blk.N.ffn_down_shexp", "model.layers.N.mlp.shared_experts.down_proj"}};
inline constexpr Rename kMiniMaxNames[] = {
    {"blk.N.exp_probs_b", "model.layers.N.block_sparse_moe.e_score_correction_bias"},
    {"blk.N.ffn_gate_inp", "model.layers.N.block_sparse_moe.gate"},
    {"blk.N.ffn_gate_exps", "model.layers.N.block_sparse_moe.experts.w1"},
    {"blk.N.ffn_up_exps", "model.layers.N.block_sparse_moe.experts.w3"},
    {"blk.N.ffn_down_exps", "model.layers.N.block_sparse_moe.experts.w2"}};
inline constexpr Rename kLlama4Names[] = {
    {"blk.N.ffn_gate", "model.layers.N.feed_forward.gate_proj"},
    {"blk.N.ffn_up", "model.layers.N.feed_forward.up_proj"},
    {"blk.N.ffn_down", "model.layers.N.feed_forward.down_proj"},
    {"blk.N.ffn_gate_inp", "model.layers.N.feed_forward.router"},
    {"blk.N.ffn_gate_exps", "model.layers.N.feed_forward.experts.gate_proj"},
    {"blk.N.ffn_up_exps", "model.layers.N.feed_forward.experts.up_proj"},
    {"blk.N.ffn_down_exps", "model.layers.N.feed_forward.experts.down_proj"},
    {"blk.N.ffn_gate_shexp", "model.layers.N.feed_forward.shared_expert.gate_proj"},
    {"blk.N.ffn_up_shexp", "model.layers.N.feed_forward.shared_expert.up_proj"},
    {"blk.N.ffn_down_shexp", "model.layers.N.feed_forward.shared_expert.down_proj"}};
inline constexpr Rename kGptOssNames[] = {
    {"blk.N.attn_sinks", "model.layers.N.self_attn.sinks"},
    {"blk.N.post_attention_norm", "model.layers.N.post_attention_layernorm"},
    {"blk.N.ffn_gate_inp", "model.layers.N.mlp.router"}};

inline constexpr Rename kLfm2Names[] = {{"token_embd_norm", "model.embedding_norm"},
                                        {"output_norm", "model.embedding_norm"},
                                        {"blk.N.attn_norm", "model.layers.N.operator_norm"},
                                        {"blk.N.attn_output", "model.layers.N.self_attn.out_proj"},
                                        {"blk.N.attn_q_norm", "model.layers.N.self_attn.q_layernorm"},
                                        {"blk.N.attn_k_norm", "model.layers.N.self_attn.k_layernorm"},
                                        {"blk.N.shortconv.in_proj", "model.layers.N.conv.in_proj"},
                                        {"blk.N.shortconv.conv", "model.layers.N.conv.conv"},
                                        {"blk.N.shortconv.out_proj", "model.layers.N.conv.out_proj"},
                                        {"blk.N.ffn_norm", "model.layers.N.ffn_norm"},
                                        {"blk.N.ffn_gate", "model.layers.N.feed_forward.w1"},
                                        {"blk.N.ffn_up", "model.layers.N.feed_forward.w3"},
                                        {"blk.N.ffn_down", "model.layers.N.feed_forward.w2"},
                                        {"blk.N.exp_probs_b", "model.layers.N.feed_forward.expert_bias"},
                                        {"blk.N.ffn_gate_inp", "model.layers.N.feed_forward.gate"},
                                        {"blk.N.ffn_gate_exps", "model.layers.N.feed_forward.experts.w1"},
                                        {"blk.N.ffn_up_exps", "model.layers.N.feed_forward.experts.w3"},
                                        {"blk.N.ffn_down_exps", "model.layers.N.feed_forward.experts.w2"}};

// Of Mamba-2, under the prefixes that models give it. `ssm_a` is -exp(A_log) there.
inline constexpr Rename kMamba2Names[] = {
    {"token_embd", "backbone.embeddings"},
    {"output_norm", "backbone.norm_f"},
    {"blk.N.attn_norm", "backbone.layers.N.norm"},
    {"blk.N.ssm_in", "backbone.layers.N.mixer.in_proj"},
    {"blk.N.ssm_conv1d", "backbone.layers.N.mixer.conv1d"},
    {"blk.N.ssm_dt", "backbone.layers.N.mixer.dt_bias"},
    {"blk.N.ssm_a", "backbone.layers.N.mixer.A"},
    {"blk.N.ssm_d", "backbone.layers.N.mixer.D"},
    {"blk.N.ssm_norm", "backbone.layers.N.mixer.norm"},
    {"blk.N.ssm_out", "backbone.layers.N.mixer.out_proj"},
    // Nemotron H's other layers.
    {"blk.N.attn_q", "backbone.layers.N.mixer.q_proj"},
    {"blk.N.attn_k", "backbone.layers.N.mixer.k_proj"},
    {"blk.N.attn_v", "backbone.layers.N.mixer.v_proj"},
    {"blk.N.attn_output", "backbone.layers.N.mixer.o_proj"},
    {"blk.N.ffn_up", "backbone.layers.N.mixer.up_proj"},
    {"blk.N.ffn_down", "backbone.layers.N.mixer.down_proj"},
    {"blk.N.ffn_gate_inp", "backbone.layers.N.mixer.gate"},
    {"blk.N.exp_probs_b", "backbone.layers.N.mixer.gate.e_score_correction_bias"},
    {"blk.N.ffn_up_exps", "backbone.layers.N.mixer.experts.up_proj"},
    {"blk.N.ffn_down_exps", "backbone.layers.N.mixer.experts.down_proj"},
    {"blk.N.ffn_up_shexp", "backbone.layers.N.mixer.shared_experts.up_proj"},
    {"blk.N.ffn_down_shexp", "backbone.layers.N.mixer.shared_experts.down_proj"},
    {"blk.N.ffn_latent_down", "backbone.layers.N.mixer.fc1_latent_proj"},
    {"blk.N.ffn_latent_up", "backbone.layers.N.mixer.fc2_latent_proj"}};
inline constexpr Rename kFalconH1Names[] = {{"output_norm", "model.final_layernorm"},
                                            {"blk.N.ssm_in", "model.layers.N.mamba.in_proj"},
                                            {"blk.N.ssm_conv1d", "model.layers.N.mamba.conv1d"},
                                            {"blk.N.ssm_dt", "model.layers.N.mamba.dt_bias"},
                                            {"blk.N.ssm_a", "model.layers.N.mamba.A"},
                                            {"blk.N.ssm_d", "model.layers.N.mamba.D"},
                                            {"blk.N.ssm_norm", "model.layers.N.mamba.norm"},
                                            {"blk.N.ssm_out", "model.layers.N.mamba.out_proj"},
                                            // Without an end there.
                                            {"blk.N.ffn_norm", "model.layers.N.pre_ff_layernorm.weight"},
                                            {"blk.N.ffn_gate", "model.layers.N.feed_forward.gate_proj"},
                                            {"blk.N.ffn_up", "model.layers.N.feed_forward.up_proj"},
                                            {"blk.N.ffn_down", "model.layers.N.feed_forward.down_proj"}};
// What all share is a plain MLP where there are no experts, and has the names of one then.
inline constexpr Rename kGraniteHybridNames[] = {
    {"blk.N.ssm_in", "model.layers.N.mamba.in_proj"},
    {"blk.N.ssm_conv1d", "model.layers.N.mamba.conv1d"},
    {"blk.N.ssm_dt", "model.layers.N.mamba.dt_bias"},
    {"blk.N.ssm_a", "model.layers.N.mamba.A"},
    {"blk.N.ssm_d", "model.layers.N.mamba.D"},
    {"blk.N.ssm_norm", "model.layers.N.mamba.norm"},
    {"blk.N.ssm_out", "model.layers.N.mamba.out_proj"},
    {"blk.N.ffn_gate_inp", "model.layers.N.block_sparse_moe.router.layer"},
    {"blk.N.ffn_gate_exps", "model.layers.N.block_sparse_moe.gate_proj"},
    {"blk.N.ffn_up_exps", "model.layers.N.block_sparse_moe.up_proj"},
    {"blk.N.ffn_down_exps", "model.layers.N.block_sparse_moe.down_proj"},
    {"blk.N.ffn_gate_shexp", "model.layers.N.shared_mlp.gate_proj"},
    {"blk.N.ffn_up_shexp", "model.layers.N.shared_mlp.up_proj"},
    {"blk.N.ffn_down_shexp", "model.layers.N.shared_mlp.output_linear"},
    {"blk.N.ffn_gate", "model.layers.N.shared_mlp.gate_proj"},
    {"blk.N.ffn_up", "model.layers.N.shared_mlp.up_proj"},
    {"blk.N.ffn_down", "model.layers.N.shared_mlp.output_linear"}};
inline constexpr Rename kDeltaNames[] = {
    {"blk.N.post_attention_norm", "model.layers.N.post_attention_layernorm"},
    {"blk.N.attn_qkv", "model.layers.N.linear_attn.in_proj_qkv"},
    {"blk.N.attn_gate", "model.layers.N.linear_attn.in_proj_z"},
    {"blk.N.ssm_in", "model.layers.N.linear_attn.in_proj_qkvz"},  // of older files
    {"blk.N.ssm_ba", "model.layers.N.linear_attn.in_proj_ba"},
    {"blk.N.ssm_beta", "model.layers.N.linear_attn.in_proj_b"},
    {"blk.N.ssm_alpha", "model.layers.N.linear_attn.in_proj_a"},
    {"blk.N.ssm_conv1d", "model.layers.N.linear_attn.conv1d"},
    {"blk.N.ssm_dt", "model.layers.N.linear_attn.dt_bias"},
    {"blk.N.ssm_a", "model.layers.N.linear_attn.A"},
    {"blk.N.ssm_norm", "model.layers.N.linear_attn.norm"},
    {"blk.N.ssm_out", "model.layers.N.linear_attn.out_proj"},
    {"blk.N.ffn_gate_inp_shexp", "model.layers.N.mlp.shared_expert_gate"},
    {"blk.N.ffn_gate_shexp", "model.layers.N.mlp.shared_expert.gate_proj"},
    {"blk.N.ffn_up_shexp", "model.layers.N.mlp.shared_expert.up_proj"},
    {"blk.N.ffn_down_shexp", "model.layers.N.mlp.shared_expert.down_proj"},
    {"blk.N.ffn_gate_up_exps", "model.layers.N.mlp.experts.gate_up_proj"}};
inline constexpr Rename kLatentNames[] = {
    {"blk.N.attn_q_a", "model.layers.N.self_attn.q_a_proj"},
    {"blk.N.attn_q_a_norm", "model.layers.N.self_attn.q_a_layernorm"},
    {"blk.N.attn_q_b", "model.layers.N.self_attn.q_b_proj"},
    {"blk.N.attn_kv_a_mqa", "model.layers.N.self_attn.kv_a_proj_with_mqa"},
    {"blk.N.attn_kv_a_norm", "model.layers.N.self_attn.kv_a_layernorm"},
    {"blk.N.attn_kv_b", "model.layers.N.self_attn.kv_b_proj"},  // of older files
    {"blk.N.attn_k_b", "model.layers.N.self_attn.k_b_proj"},
    {"blk.N.attn_v_b", "model.layers.N.self_attn.v_b_proj"},
    {"blk.N.exp_probs_b", "model.layers.N.mlp.gate.e_score_correction_bias"},
    {"blk.N.ffn_gate_shexp", "model.layers.N.mlp.shared_experts.gate_proj"},
    {"blk.N.ffn_up_shexp", "model.layers.N.mlp.shared_experts.up_proj"},
    {"blk.N.ffn_down_shexp", "model.layers.N.mlp.shared_experts.down_proj"},
    {"blk.N.ffn_gate_up_exps", "model.layers.N.mlp.experts.gate_up_proj"}};

// A number of the metadata that is a key of config.json; counts are integers.
struct KeyName {
  std::string_view gguf, config;
  bool count = false;
};
inline constexpr KeyName kGraniteKeys[] = {{"attention.scale", "attention_multiplier"},
                                           {"embedding_scale", "embedding_multiplier"},
                                           {"residual_scale", "residual_multiplier"},
                                           {"logit_scale", "logits_scaling"}};
inline constexpr KeyName kCohereKeys[] = {{"logit_scale", "logit_scale"},
                                          {"attention.layer_norm_epsilon", "layer_norm_eps"}};
inline constexpr KeyName kGemmaKeys[] = {{"attn_logit_softcapping", "attn_logit_softcapping"},
                                         {"final_logit_softcapping", "final_logit_softcapping"}};
inline constexpr KeyName kGemma3Keys[] = {{"rope.freq_base_swa", "rope_local_base_freq"}};
inline constexpr KeyName kGemma4Keys[] = {
    {"final_logit_softcapping", "final_logit_softcapping"},
    {"rope.freq_base_swa", "rope_local_base_freq"},
    {"attention.shared_kv_layers", "num_kv_shared_layers", true},
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input", true}};
inline constexpr KeyName kLfm2Keys[] = {{"attention.layer_norm_rms_epsilon", "norm_eps"},
                                        {"shortconv.l_cache", "conv_L_cache", true}};
inline constexpr KeyName kLfm2MoeKeys[] = {{"attention.layer_norm_rms_epsilon", "norm_eps"},
                                           {"shortconv.l_cache", "conv_L_cache", true},
                                           {"leading_dense_block_count", "num_dense_layers", true},
                                           {"expert_weights_scale", "routed_scaling_factor"}};
inline constexpr KeyName kErnieMoeKeys[] = {{"interleave_moe_layer_step", "moe_layer_interval", true},
                                            {"leading_dense_block_count", "moe_layer_start_index", true},
                                            {"expert_shared_count", "moe_num_shared_experts", true}};
inline constexpr KeyName kLlama4Keys[] = {{"interleave_moe_layer_step", "interleave_moe_layer_step", true}};
inline constexpr KeyName kGpt2Keys[] = {{"attention.layer_norm_epsilon", "layer_norm_epsilon"}};
inline constexpr KeyName kQwen2MoeKeys[] = {
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", true}};
inline constexpr KeyName kStarCoderKeys[] = {{"attention.layer_norm_epsilon", "norm_epsilon"}};
inline constexpr KeyName kGlm4MoeKeys[] = {{"leading_dense_block_count", "first_k_dense_replace", true},
                                           {"expert_shared_count", "n_shared_experts", true},
                                           {"expert_group_count", "n_group", true},
                                           {"expert_group_used_count", "topk_group", true},
                                           {"expert_weights_scale", "routed_scaling_factor"}};

inline constexpr KeyName kMamba2Keys[] = {{"attention.layer_norm_rms_epsilon", "layer_norm_epsilon"},
                                          {"ssm.conv_kernel", "conv_kernel", true},
                                          {"ssm.state_size", "state_size", true},
                                          {"ssm.time_step_rank", "num_heads", true},
                                          {"ssm.group_count", "n_groups", true}};
inline constexpr KeyName kNemotronHKeys[] = {
    {"attention.layer_norm_rms_epsilon", "layer_norm_epsilon"},
    {"ssm.conv_kernel", "conv_kernel", true},
    {"ssm.state_size", "ssm_state_size", true},
    {"ssm.time_step_rank", "mamba_num_heads", true},
    {"ssm.group_count", "n_groups", true},
    {"moe_latent_size", "moe_latent_size", true},
    {"expert_shared_count", "n_shared_experts", true},
    {"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size", true},
    {"expert_group_count", "n_group", true},
    {"expert_group_used_count", "topk_group", true},
    {"expert_weights_scale", "routed_scaling_factor"}};
inline constexpr KeyName kFalconH1Keys[] = {{"ssm.conv_kernel", "mamba_d_conv", true},
                                            {"ssm.state_size", "mamba_d_state", true},
                                            {"ssm.time_step_rank", "mamba_n_heads", true},
                                            {"ssm.group_count", "mamba_n_groups", true},
                                            {"ssm.inner_size", "mamba_d_ssm", true}};
inline constexpr KeyName kGraniteHybridKeys[] = {
    {"attention.scale", "attention_multiplier"},
    {"embedding_scale", "embedding_multiplier"},
    {"residual_scale", "residual_multiplier"},
    {"logit_scale", "logits_scaling"},
    {"expert_shared_feed_forward_length", "shared_intermediate_size", true},
    {"ssm.conv_kernel", "mamba_d_conv", true},
    {"ssm.state_size", "mamba_d_state", true},
    {"ssm.time_step_rank", "mamba_n_heads", true},
    {"ssm.group_count", "mamba_n_groups", true}};
inline constexpr KeyName kDeltaKeys[] = {
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", true},
    {"full_attention_interval", "full_attention_interval", true},
    {"ssm.conv_kernel", "linear_conv_kernel_dim", true},
    {"ssm.state_size", "linear_key_head_dim", true},
    {"ssm.group_count", "linear_num_key_heads", true},
    {"ssm.time_step_rank", "linear_num_value_heads", true}};

struct Architecture {
  std::string_view gguf;          // general.architecture
  std::string_view model_type;    // of config.json
  std::string_view architecture;  // of config.json
  std::string_view activation;
  // The converter permutes the rows of q and k, whose RoPE is over halves of a head, for RoPE over
  // neighbouring pairs. Not so where a model's own RoPE is over neighbouring pairs.
  bool permuted;
  bool norm_topk_prob;  // experts' weights are normalized over the chosen ones
  std::span<const Rename> names;
  std::span<const Rename> own = {};  // go first
  std::span<const KeyName> keys = {};
  // What the file does not say: keys of config.json. Of biases: that those are taken which are there.
  std::string_view says = R"({"attention_bias": true, "mlp_bias": true})";
};
inline constexpr std::string_view kBiased = R"({"attention_bias": true})";
inline constexpr Architecture kArchitectures[] = {
    {"llama", "llama", "LlamaForCausalLM", "silu", true, true, kDecoderNames},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", "silu", false, false, kDecoderNames},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", "silu", false, false, kDecoderNames},
    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", "silu", false, true, kDecoderNames},
    {"gpt2", "gpt2", "GPT2LMHeadModel", "gelu_new", false, false, kGpt2Names, {}, kGpt2Keys},
    {"phi3", "phi3", "Phi3ForCausalLM", "silu", false, false, kDecoderNames, kPhi3Names, {}, kBiased},
    {"smollm3", "smollm3", "SmolLM3ForCausalLM", "silu", true, false, kDecoderNames},
    {"granite", "granite", "GraniteForCausalLM", "silu", true, false, kDecoderNames, {}, kGraniteKeys},
    {"ernie4_5",
     "ernie4_5",
     "Ernie4_5ForCausalLM",
     "silu",
     false,
     false,
     kDecoderNames,
     {},
     {},
     R"({"use_bias": true})"},
    {"seed_oss",
     "seed_oss",
     "SeedOssForCausalLM",
     "silu",
     false,
     false,
     kDecoderNames,
     kNormsBehind,
     {},
     R"({"attention_bias": true, "attention_out_bias": true, "mlp_bias": true})"},
    {"olmo2", "olmo2", "Olmo2ForCausalLM", "silu", false, false, kDecoderNames, kNormsBehind, {}, kBiased},
    {"gemma2", "gemma2", "Gemma2ForCausalLM", "gelu_pytorch_tanh", false, false, kDecoderNames, kGemmaNames,
     kGemmaKeys,
     R"({"attention_bias": true, "hidden_activation": "gelu_pytorch_tanh", "norm_weights_are_whole": true})"},
    {"gemma3", "gemma3_text", "Gemma3ForCausalLM", "gelu_pytorch_tanh", false, false, kDecoderNames,
     kGemmaNames, kGemma3Keys,
     R"({"attention_bias": true, "hidden_activation": "gelu_pytorch_tanh", "norm_weights_are_whole": true})"},
    {"gemma4", "gemma4_text", "Gemma4ForCausalLM", "gelu_pytorch_tanh", false, true, kDecoderNames,
     kGemma4Names, kGemma4Keys, R"({"attention_bias": true, "hidden_activation": "gelu_pytorch_tanh"})"},
    {"lfm2", "lfm2", "Lfm2ForCausalLM", "silu", false, false, kDecoderNames, kLfm2Names, kLfm2Keys,
     R"({"conv_bias": true, "block_auto_adjust_ff_dim": false})"},
    {"lfm2moe", "lfm2_moe", "Lfm2MoeForCausalLM", "silu", false, true, kDecoderNames, kLfm2Names,
     kLfm2MoeKeys, R"({"conv_bias": true})"},
    {"llama4", "llama4_text", "Llama4ForCausalLM", "silu", false, false, kDecoderNames, kLlama4Names,
     kLlama4Keys, kBiased},
    {"mistral3", "ministral3", "Ministral3ForCausalLM", "silu", true, false, kDecoderNames, {}, {}, kBiased},
    {"ernie4_5-moe", "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", "silu", false, true, kDecoderNames,
     kErnieMoeNames, kErnieMoeKeys, R"({"use_bias": false})"},
    {"minimax-m2",
     "minimax_m2",
     "MiniMaxM2ForCausalLM",
     "silu",
     false,
     true,
     kDecoderNames,
     kMiniMaxNames,
     {},
     kBiased},
    {"glm4", "glm4", "Glm4ForCausalLM", "silu", false, false, kDecoderNames, kGlm4Names, {}, kBiased},
    {"cohere2",
     "cohere2",
     "Cohere2ForCausalLM",
     "silu",
     false,
     false,
     kDecoderNames,
     {},
     kCohereKeys,
     kBiased},
    {"exaone4",
     "exaone4",
     "Exaone4ForCausalLM",
     "silu",
     false,
     false,
     kDecoderNames,
     kNormsBehind,
     {},
     kBiased},
    {"hunyuan-dense",
     "hunyuan_v1_dense",
     "HunYuanDenseV1ForCausalLM",
     "silu",
     false,
     false,
     kDecoderNames,
     kHunyuanNames,
     {},
     kBiased},
    {"starcoder2", "starcoder2", "Starcoder2ForCausalLM", "gelu_pytorch_tanh", false, false, kDecoderNames,
     kStarCoderNames, kStarCoderKeys, R"({"use_bias": true})"},
    {"qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM", "silu", false, false, kDecoderNames, kQwen2MoeNames,
     kQwen2MoeKeys, R"({"qkv_bias": true})"},
    {"glm4moe", "glm4_moe", "Glm4MoeForCausalLM", "silu", false, true, kDecoderNames, kGlm4MoeNames,
     kGlm4MoeKeys, kBiased},
    {"gpt-oss",
     "gpt_oss",
     "GptOssForCausalLM",
     "silu",
     false,
     true,
     kDecoderNames,
     kGptOssNames,
     {},
     kBiased},
    {"mamba2", "mamba2", "Mamba2ForCausalLM", "silu", false, false, kDecoderNames, kMamba2Names, kMamba2Keys,
     R"({"use_conv_bias": true, "use_bias": true})"},
    {"nemotron_h", "nemotron_h", "NemotronHForCausalLM", "silu", true, true, kDecoderNames, kMamba2Names,
     kNemotronHKeys,
     R"({"use_conv_bias": true, "use_bias": true, "mlp_bias": true, "mlp_hidden_act": "relu2"})"},
    {"nemotron_h_moe", "nemotron_h", "NemotronHForCausalLM", "silu", true, true, kDecoderNames, kMamba2Names,
     kNemotronHKeys,
     R"({"use_conv_bias": true, "use_bias": true, "mlp_bias": true, "mlp_hidden_act": "relu2"})"},
    {"falcon-h1", "falcon_h1", "FalconH1ForCausalLM", "silu", false, false, kDecoderNames, kFalconH1Names,
     kFalconH1Keys,
     R"({"attention_bias": true, "mlp_bias": true, "mamba_proj_bias": true, "projectors_bias": true,
         "mamba_norm_before_gate": false, "multipliers_folded": true})"},
    {"granitehybrid", "granitemoehybrid", "GraniteMoeHybridForCausalLM", "silu", true, true, kDecoderNames,
     kGraniteHybridNames, kGraniteHybridKeys, R"({"attention_bias": true, "mamba_proj_bias": true})"},
    {"qwen3next", "qwen3_next", "Qwen3NextForCausalLM", "silu", false, true, kDecoderNames, kDeltaNames,
     kDeltaKeys, R"({"attention_bias": true, "norm_weights_are_whole": true})"},
    {"qwen35", "qwen3_5_text", "Qwen3_5ForCausalLM", "silu", false, true, kDecoderNames, kDeltaNames,
     kDeltaKeys,
     R"({"attention_bias": true, "norm_weights_are_whole": true, "linear_value_heads_tiled": true})"},
    {"qwen35moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", "silu", false, true, kDecoderNames,
     kDeltaNames, kDeltaKeys,
     R"({"attention_bias": true, "norm_weights_are_whole": true, "linear_value_heads_tiled": true})"},
    {"deepseek2", "deepseek_v2", "DeepseekV2ForCausalLM", "silu", false, false, kDecoderNames, kLatentNames,
     kGlm4MoeKeys, kBiased},
    {"mistral4", "mistral4", "Mistral4ForCausalLM", "silu", false, true, kDecoderNames, kLatentNames,
     kGlm4MoeKeys, kBiased},
    {"minicpm3", "minicpm3", "MiniCPM3ForCausalLM", "silu", false, false, kDecoderNames, kLatentNames},
};
// GGUF files call these "llama" too and differ by what they contain.
inline constexpr Architecture kMixtral = {"llama", "mixtral", "MixtralForCausalLM", "silu",
                                          true,    true,      kDecoderNames};
inline constexpr Architecture kMistral = {"llama", "mistral", "MistralForCausalLM", "silu",
                                          true,    false,     kDecoderNames};
// And this one "deepseek2", by its router.
inline constexpr Architecture kDeepSeekV3 = {
    "deepseek2",  "deepseek_v3", "DeepseekV3ForCausalLM", "silu", false, false, kDecoderNames, kLatentNames,
    kGlm4MoeKeys, kBiased};
// And a third, by queries that grow with their position.
inline constexpr Architecture kMistral4 = {"deepseek2",  "mistral4", "Mistral4ForCausalLM", "silu",
                                           false,        true,       kDecoderNames,         kLatentNames,
                                           kGlm4MoeKeys, kBiased};
// And this one "olmo2".
inline constexpr Architecture kOlmo3 = {"olmo2", "olmo3",       "Olmo3ForCausalLM", "silu", false,
                                        false,   kDecoderNames, kNormsBehind,       {},     kBiased};

inline const Architecture* find_architecture(std::string_view gguf) {
  const auto* a = std::ranges::find(kArchitectures, gguf, &Architecture::gguf);
  return a == std::end(kArchitectures) ? nullptr : a;
}

}  // namespace oar::gguf
