#!/usr/bin/env python3
"""What every key of every config does to a tiny model, computed by Hugging Face transformers, for tests/models.

    python3 tests/golden/generate_config_keys.py [MODEL_TYPE...]    # needs torch, transformers, safetensors, numpy

Each key of each configuration class is varied, removed or set to null on its own. Writes
tests/golden/config_keys/<model_type>.json: base (a config.json), tokens, weight_seed, tensors (name, shape) and cases:

    set, remove   how the config differs from the base; null in `set` is a JSON null
    tensors       the checkpoint's tensors where they differ from the base's
    logits        PROBES of the values (T * V, or S * E for encoders, row-major) at evenly spaced places
    same          instead of logits: the key has no effect, the values are the base's
    refused       instead: we say so, naming this key, rather than compute something else

A key of the class that no case varies ends the generator: a new version of transformers cannot add one unseen.
"""

import copy
import json
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from generate_encoders import MODELS as ENCODERS
from generate_models import MODELS, checkpoint_shapes, load, run, tokens_of
from tiny_weights import tiny_weights

OUT = Path(__file__).resolve().parent / "config_keys"
PROBES, SEED = 40, 1
ABSENT = "(absent)"

# Keys that the class has and no forward pass reads: all varied at once in one case, which must equal the base.
WITHOUT_EFFECT = {
    "initializer_range": 0.5, "use_cache": False, "pad_token_id": 3, "bos_token_id": 4, "eos_token_id": 5, "pretraining_tp": 2,
    "attention_dropout": 0.5, "output_router_logits": True, "router_aux_loss_coef": 0.5, "router_jitter_noise": 0.5,
    "resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5, "summary_type": "last", "summary_use_proj": False,
    "summary_activation": "tanh", "summary_proj_to_labels": False, "summary_first_dropout": 0.5,
    "hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5,
    "classifier_dropout": 0.5, "dropout": 0.5, "qa_dropout": 0.5, "seq_classif_dropout": 0.5, "task_type_vocab_size": 7,
    "transformers_version": "4.0.0", "architectures": None, "output_hidden_states": False, "return_dict": True,
    "dtype": "float32", "chunk_size_feed_forward": 0, "id2label": None, "label2id": None, "problem_type": None,
    "residual_dropout": 0.5, "embedding_dropout": 0.5, "eod_token_id": 5, "mlp_dropout": 0.5, "cls_token_id": 7, "sep_token_id": 8,
    "initializer_cutoff_factor": 3.0, "decoder_bias": False, "deterministic_flash_attn": True, "sparse_prediction": True,
    "sparse_pred_ignore_index": -1, "summary_last_dropout": 0.5,
    "reorder_and_upcast_attn": False}  # true: the same in another order, which transformers cannot do in float64
# Keys that we refuse to run with another value than this, where a reference would compute something else with it, or
# another architecture does. By key: values that are refused.
REFUSED = {"hidden_act": ["gelu"], "is_encoder_decoder": [True], "is_decoder": [True], "add_cross_attention": [True],
           "is_causal": [False], "use_task_id": [True], "use_bidirectional_attention": [True]}
# Values tried for the keys that matter. A tuple sets several keys, for those that cannot change alone.
DECODER = {
    "vocab_size": [272], "hidden_size": [96], "num_hidden_layers": [1], "max_position_embeddings": [128],
    "tie_word_embeddings": [True, False, ABSENT], "rms_norm_eps": [1e-2, ABSENT], "hidden_act": ["swish", ABSENT],
    "head_dim": [8, 32, None, ABSENT], "num_attention_heads": [], "num_key_value_heads": [1],
    "intermediate_size": [96], "attention_bias": [True, False, ABSENT], "mlp_bias": [True, False, ABSENT],
    "rope_theta": [100.0, ABSENT],
    "rope_parameters": [
        None, {"rope_type": "default", "rope_theta": 100.0}, {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 500.0,
         "original_max_position_embeddings": 64},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 5.0},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.5},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 8, "beta_slow": 2},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 2.0, "mscale_all_dim": 0.5},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "truncate": False},
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 32}],
    "rope_scaling": [{"type": "linear", "factor": 2.0}, {"rope_type": "linear", "type": "default", "factor": 2.0}],
    "sliding_window": [5, None, ABSENT], "use_sliding_window": [True, False, ABSENT], "max_window_layers": [1, ABSENT],
    "layer_types": [None],
    "no_rope_layers": [[0, 1, 1, 1], None, ABSENT], "no_rope_layer_interval": [2, ABSENT], "sliding_window_pattern": [2, ABSENT],
    "embedding_multiplier": [3.0, ABSENT], "residual_multiplier": [0.5, ABSENT], "attention_multiplier": [0.5, ABSENT],
    "logits_scaling": [2.0, ABSENT], "logit_scale": [0.5, ABSENT], "use_bias": [True, False, ABSENT],
    "attention_out_bias": [True, False, ABSENT], "partial_rotary_factor": [0.25, ABSENT],
    "original_max_position_embeddings": [32, ABSENT], "query_pre_attn_scalar": [16, ABSENT],
    "attn_logit_softcapping": [2.0, None, ABSENT], "final_logit_softcapping": [2.0, None, ABSENT],
    "hidden_activation": ["gelu_pytorch_tanh", ABSENT], "layer_norm_eps": [1e-2, ABSENT], "norm_epsilon": [1e-2, ABSENT],
    "rope_local_base_freq": [100.0, ABSENT], "qkv_bias": [True, False, ABSENT], "use_qk_norm": [True, False, ABSENT],
    "shared_expert_intermediate_size": [48], "n_shared_experts": [2], "n_routed_experts": [8], "routed_scaling_factor": [1.5, ABSENT],
    "n_group": [2], "topk_group": [1, 4], "first_k_dense_replace": [0, 2], "num_mtp_layers": [2], "moe_k": [1, 3],
    "moe_num_experts": [4], "moe_num_shared_experts": [0, 1], "moe_layer_start_index": [0, 2], "moe_layer_end_index": [2],
    "moe_layer_interval": [2], "moe_norm_min": [1e-10],
    "num_local_experts": [2], "num_experts": [4], "num_experts_per_tok": [1, 3, ABSENT], "norm_topk_prob": [True, False, ABSENT],
    "attention_chunk_size": [5, ABSENT], "attn_temperature_tuning": [False, ABSENT], "floor_scale": [3, ABSENT],
    "attn_scale": [0.5, ABSENT], "intermediate_size_mlp": [96], "moe_layers": [[0, 3]], "interleave_moe_layer_step": [1],
    "swiglu_alpha": [1.0, ABSENT], "swiglu_limit": [0.25, ABSENT], "experts_per_token": [3], "initial_context_length": [64],
    "moe_intermediate_size": [32], "mlp_only_layers": [[0], [], None, ABSENT], "decoder_sparse_step": [1, ABSENT],
}
TOGETHER = {  # values that only mean something with others
    "qwen2": [{"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
              {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
              {"rope_parameters": {"rope_type": "linear", "factor": 3.0}, "rope_scaling": {"type": "linear", "factor": 2.0}}],
    "llama": [{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 32},
              {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0}, "rope_theta": 100.0}],
    "qwen3_moe": [{"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
                  {"decoder_sparse_step": 2, "mlp_only_layers": []}],
    "gpt2": [{"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}],
    "gemma4_text": [{"vocab_size": 272, "vocab_size_per_layer_input": 272}, {"layer_types": None, "num_kv_shared_layers": 0},
                    {"attention_k_eq_v": True, "num_global_key_value_heads": 2}, {"num_global_key_value_heads": 2},
                    {"per_layer_config": {"2": {"head_dim": 8}, "5": {"head_dim": 8, "num_key_value_heads": 1}}},
                    {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32},
                    {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 3, "moe_intermediate_size": 48}],
    "gemma4_unified_text": [{"layer_types": None}, {"per_layer_config": {"3": {"head_dim": 8, "num_key_value_heads": 2}}},
                            {"num_kv_shared_layers": 0, "use_double_wide_mlp": True}],
}
TOGETHER["qwen3"] = TOGETHER["qwen2"]
# Ropes of their own for layers with a window: both spellings of a file.
LAYERED = [{"full_attention": {"rope_type": "default", "rope_theta": 100.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}},
           {"full_attention": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0}}, None]
LONG = {"long_factor": [1.0 + k / 4 for k in range(8)], "short_factor": [1.0 + k / 8 for k in range(8)]}
# Gemma 4 has no older spellings, and its layers have heads of two sizes.
GEMMA4 = {
    "head_dim": [8, 32, ABSENT], "global_head_dim": [16, ABSENT], "num_global_key_value_heads": [], "num_hidden_layers": [],
    "rope_parameters": [
        {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 100.0},
         "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}},
        {"full_attention": {"rope_type": "proportional", "rope_theta": 100.0, "factor": 2.0},
         "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0}},
        {"full_attention": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 500.0},
         "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}, None, ABSENT],
    "rope_theta": [], "rope_scaling": [], "partial_rotary_factor": [], "sliding_window": [5], "layer_types": [],
    "num_kv_shared_layers": [0, 1, ABSENT], "use_double_wide_mlp": [True, False, ABSENT], "attention_k_eq_v": [True, False, ABSENT],
    "hidden_size_per_layer_input": [0, 8], "vocab_size_per_layer_input": [300], "vocab_size": [], "attn_logit_softcapping": [],
    "use_bidirectional_attention": [None, "vision", ABSENT], "enable_moe_block": [False], "num_experts": [4],
    "top_k_experts": [3], "moe_intermediate_size": [32], "num_key_value_heads": [2]}
# Where an architecture takes other values than the rest.
OWN = {
    "gemma4_text": GEMMA4, "gemma4_unified_text": {**GEMMA4, "vocab_size": [272], "global_head_dim": [16]},
    "phi3": {"head_dim": [], "rope_scaling": [{"type": "longrope", **LONG}, {"type": "su", **LONG}, {"type": "yarn", **LONG},
                                              {"type": "longrope", **LONG, "attention_factor": 1.25},
                                              {"type": "longrope", **LONG, "factor": 4.0}],
             "rope_parameters": [None, {"rope_type": "default", "rope_theta": 100.0}], "partial_rotary_factor": [],
             "original_max_position_embeddings": [16]},
    "olmo3": {"rope_parameters": LAYERED, "rope_scaling": [{"rope_type": "yarn", "factor": 4.0}]},
    "gemma3_text": {"rope_parameters": LAYERED, "rope_scaling": [{"rope_type": "linear", "factor": 2.0}],
                    "head_dim": [8, 32, ABSENT]},
    "gemma2": {"head_dim": [8, 32, ABSENT]},
    "ministral3": {"rope_theta": [], "rope_scaling": [], "rope_parameters": [
        {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.5},
        {"rope_type": "default", "rope_theta": 1000.0, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.5},
        {"type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.0}]},
    "hunyuan_v1_dense": {"head_dim": [8, 32], "rope_scaling": [{"type": "dynamic", "alpha": 100.0, "factor": 1.0}, {"type": "linear", "factor": 2.0}]},
    "exaone4": {"sliding_window_pattern": ["LLG", 2]},
    "glm4": {"head_dim": [32]},
    "cohere2": {"head_dim": []},
    "qwen2_moe": {"use_sliding_window": [False, ABSENT], "mlp_only_layers": [[0], [], None, ABSENT], "head_dim": []},
    "minimax_m2": {"partial_rotary_factor": [], "rotary_dim": [8, ABSENT], "sliding_window": [None, ABSENT], "use_qk_norm": [True, ABSENT]},
    "llama4_text": {"num_experts_per_tok": [ABSENT]},
    "starcoder2": {"hidden_act": ["gelu", "relu", "silu", ABSENT], "head_dim": []},
}
# Keys of released files that the class does not read and that say what the model is: another value is refused.
EXPECTED = {
    "cohere2": {"order_of_interleaved_layers": ["global_attn_first"], "position_embedding_type": ["rope_neox"],
                "use_gated_activation": [False], "use_parallel_block": [False]},
    "hunyuan_v1_dense": {"use_qk_norm": [False], "use_rotary_pos_emb": [False], "use_cla": [True], "mlp_bias": [True]},
    "minimax_m2": {"attn_type_list": [[1, 0, 1, 1], [1, 1]], "shared_intermediate_size": [48], "use_qk_norm": [False],
                   "qk_norm_type": ["per_head"], "scoring_func": ["softmax"], "use_routing_bias": [False], "sliding_window": [5]},
    "starcoder2": {"mlp_type": ["gated"], "norm_type": ["rms_norm"]},
    "nomic_bert": {"head_dim": [16], "prenorm": [True], "parallel_block": [True], "causal": [True], "qkv_proj_bias": [True],
                   "rotary_emb_interleaved": [True], "mlp_fc1_bias": [True], "mlp_fc2_bias": [True], "use_rms_norm": [True],
                   "rotary_emb_scale_base": [512.0], "rotary_scaling_factor": [2.0], "rotary_emb_fraction": [0.5],
                   "activation_function": ["gelu"], "moe_every_n_layers": [2]},
    "gte": {"position_embedding_type": ["absolute"], "layer_norm_type": ["rms_norm"], "logn_attention_scale": [True],
            "logn_attention_clip1": [True]},
}
# Attention over a latent: its sizes, and the scale of scores by YaRN.
LATENT_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LATENT = {
    "head_dim": [], "num_attention_heads": [], "num_key_value_heads": [ABSENT], "kv_lora_rank": [16], "q_lora_rank": [None, 32],
    "qk_nope_head_dim": [8], "qk_rope_head_dim": [16], "v_head_dim": [16], "rope_interleave": [False, True, ABSENT],
    "rope_theta": [], "rope_parameters": [], "partial_rotary_factor": [], "original_max_position_embeddings": [],
    "rope_scaling": [None, LATENT_YARN, {**LATENT_YARN, "mscale": 0.7, "mscale_all_dim": 0.7}, {**LATENT_YARN, "mscale_all_dim": 2.0},
                     {**LATENT_YARN, "mscale": 2.0}, {"type": "linear", "factor": 2.0}],
    "num_experts_per_tok": [1, 3], "num_experts": [], "num_local_experts": [], "topk_method": [], "mlp_layer_types": []}
MISTRAL4_YARN = {"type": "yarn", "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                 "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}
TOGETHER["mistral4"] = [
    {"qk_nope_head_dim": 8, "rope_parameters": {**MISTRAL4_YARN, "partial_rotary_factor": 0.5}},
    {"qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "rope_parameters": {**MISTRAL4_YARN, "partial_rotary_factor": 0.5}}]
OWN |= {
    "deepseek_v2": {**LATENT, "n_group": [], "topk_group": [], "norm_topk_prob": [False, ABSENT], "topk_method": ["greedy", ABSENT]},
    "deepseek_v3": LATENT,
    "glm4_moe_lite": {**LATENT, "n_group": [], "topk_group": [], "first_k_dense_replace": [],
                      "mlp_layer_types": [["sparse", "dense", "sparse", "dense"], None]},
    # Sizes of heads change with the part that rotates: TOGETHER.
    "mistral4": {**LATENT, "qk_nope_head_dim": [], "qk_rope_head_dim": [], "rope_scaling": [],
                 "norm_topk_prob": [False, True, ABSENT], "first_k_dense_replace": [], "rope_parameters": [
        MISTRAL4_YARN, {**MISTRAL4_YARN, "llama_4_scaling_beta": 0.5}, {**MISTRAL4_YARN, "mscale_all_dim": 2.0}]},
    "minicpm3": {**LATENT, "rope_scaling": [None, {"type": "linear", "factor": 2.0}], "v_head_dim": [24, None],
                 "scale_emb": [3, ABSENT], "scale_depth": [2.0, None, ABSENT], "dim_model_base": [32, None, ABSENT]},
}
# Models with recurrent layers. Which layers are what stays as it is where a config has as many as layers.
FIXED = {"num_hidden_layers": [], "layer_types": [], "sliding_window": [], "use_sliding_window": [], "max_window_layers": []}
HYBRID_ROPE = {"rope_parameters": [None, {"rope_type": "default", "rope_theta": 100.0}, {"rope_type": "linear", "factor": 3.0}],
               "rope_scaling": [{"type": "linear", "factor": 2.0}]}
DELTA = {**FIXED, "full_attention_interval": [2], "linear_conv_kernel_dim": [3, ABSENT], "linear_key_head_dim": [8],
         "linear_value_head_dim": [16], "linear_num_key_heads": [1, 4], "linear_num_value_heads": [8],
         "partial_rotary_factor": [0.5, ABSENT], "head_dim": [16, ABSENT], "attention_bias": [True, ABSENT], "mlp_only_layers": [[0], [], None]}
QWEN35_ROPE = {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default"}
STEPS = [[0.0, float("inf")], [0.3, 0.6], ABSENT]
TOGETHER["falcon_h1"] = [{"mamba_n_groups": 2, "mamba_rms_norm": True}, {"mamba_rms_norm": True, "mamba_norm_before_gate": True},
                         {"mamba_d_head": 32, "mamba_n_heads": 3}, {"mamba_d_ssm": None, "mamba_n_heads": 8}]
TOGETHER["granitemoehybrid"] = [{"mamba_d_head": 32, "mamba_n_heads": 4}, {"num_local_experts": 0, "num_experts_per_tok": 0},
                                {"layer_types": ["attention", "mamba", "mamba", "attention"]},
                                {"position_embedding_type": "rope", "rope_theta": 100.0}]
TOGETHER["mamba2"] = [{"head_dim": 32, "num_heads": 4}, {"expand": 1, "num_heads": 4}]
TOGETHER["nemotron_h"] = [{"mamba_head_dim": 32, "mamba_num_heads": 4}, {"hybrid_override_pattern": "*M-M"},
                          {"layers_block_type": ["mamba", "attention", "mlp", "mamba"]}]
OWN |= {
    "lfm2": {**FIXED, **HYBRID_ROPE, "head_dim": [], "partial_rotary_factor": [], "conv_L_cache": [4, ABSENT], "conv_bias": [True, ABSENT],
             "norm_eps": [1e-2, ABSENT], "block_multiple_of": [32, ABSENT], "block_ffn_dim_multiplier": [1.5, None],
             "block_auto_adjust_ff_dim": [False, ABSENT], "full_attn_idxs": [[0], [1, 2]], "block_ff_dim": [96], "theta": [5.0],
             "block_dim": [32], "conv_dim": [32], "conv_dim_out": [32], "num_heads": [2], "block_norm_eps": [1e-2]},
    "lfm2_moe": {**FIXED, **HYBRID_ROPE, "layer_types": [["full_attention", "conv", "full_attention", "conv"]], "head_dim": [],
                 "partial_rotary_factor": [], "conv_L_cache": [4, ABSENT], "conv_bias": [True, ABSENT], "norm_eps": [1e-2, ABSENT],
                 "num_dense_layers": [0, 2], "use_expert_bias": [False, ABSENT], "mlp_only_layers": [], "num_experts_per_tok": [1, 3]},
    "qwen3_next": {**DELTA, **HYBRID_ROPE, "num_experts_per_tok": [1, 3]},
    "qwen3_5_text": {**DELTA, "partial_rotary_factor": [], "rope_theta": [], "rope_scaling": [], "full_attention_interval": [],
                     "layer_types": [["full_attention", "linear_attention"] * 2],
                     "rope_parameters": [{**QWEN35_ROPE, "rope_theta": 100.0, "partial_rotary_factor": 0.5}, {**QWEN35_ROPE, "rope_theta": 500.0}]},
    "qwen3_5_moe_text": {**DELTA, "partial_rotary_factor": [], "rope_theta": [], "rope_scaling": [], "full_attention_interval": [],
                         "mlp_only_layers": [], "decoder_sparse_step": [], "intermediate_size": [], "num_experts_per_tok": [1, 3],
                         "rope_parameters": [{**QWEN35_ROPE, "rope_theta": 100.0, "partial_rotary_factor": 0.5}]},
    "falcon_h1": {**FIXED, **HYBRID_ROPE, "num_hidden_layers": [2], "partial_rotary_factor": [], "head_dim": [8, 32, ABSENT],
                  "mamba_d_ssm": [], "mamba_expand": [], "mamba_n_heads": [], "mamba_d_head": ["auto"], "mamba_n_groups": [2], "mamba_d_state": [8],
                  "mamba_d_conv": [2, ABSENT], "mamba_conv_bias": [False, ABSENT], "mamba_proj_bias": [True, ABSENT],
                  "mamba_norm_before_gate": [True, ABSENT], "mamba_rms_norm": [True, ABSENT], "time_step_limit": STEPS,
                  "projectors_bias": [True, ABSENT], "lm_head_multiplier": [2.0, ABSENT], "mlp_multipliers": [[0.5, 2.0], None, ABSENT],
                  "key_multiplier": [2.0, ABSENT], "attention_out_multiplier": [0.5, ABSENT], "attention_in_multiplier": [0.5, ABSENT],
                  "embedding_multiplier": [3.0, ABSENT], "ssm_multipliers": [[1.0, 2.0, 0.5, 0.25, 0.75], None, ABSENT],
                  "ssm_in_multiplier": [0.5, ABSENT], "ssm_out_multiplier": [2.0, ABSENT]},
    "granitemoehybrid": {**FIXED, **HYBRID_ROPE, "partial_rotary_factor": [], "head_dim": [], "shared_intermediate_size": [48],
                         "position_embedding_type": ["rope", "nope", ABSENT], "mamba_n_heads": [], "mamba_d_head": ["auto"],
                         "mamba_n_groups": [2], "mamba_d_state": [8], "mamba_d_conv": [2, ABSENT], "mamba_expand": [],
                         "mamba_conv_bias": [False, ABSENT], "mamba_proj_bias": [True, ABSENT], "time_step_limit": STEPS,
                         "num_experts_per_tok": [1, 3], "intermediate_size": [64], "normalization_function": ["layernorm"]},
    "mamba2": {**FIXED, "num_hidden_layers": [2], "num_attention_heads": [], "head_dim": [], "num_heads": [], "expand": [],
               "state_size": [8], "layer_norm_epsilon": [1e-2, ABSENT], "conv_kernel": [2, ABSENT], "n_groups": [1, 4],
               "use_conv_bias": [False, ABSENT], "use_bias": [True, ABSENT], "hidden_act": [ABSENT], "time_step_limit": STEPS,
               "norm_before_gate": [False], "rms_norm": [False], "intermediate_size": []},
    "nemotron_h": {**FIXED, **HYBRID_ROPE, "partial_rotary_factor": [], "head_dim": [16, 32, ABSENT], "mlp_hidden_act": ["relu2", ABSENT],
                   "hidden_act": [], "ssm_state_size": [8], "mamba_num_heads": [], "mamba_head_dim": [], "expand": [4], "n_groups": [1, 2],
                   "conv_kernel": [2, ABSENT], "time_step_limit": STEPS, "use_conv_bias": [False, ABSENT], "mamba_proj_bias": [True, ABSENT],
                   "use_bias": [True, ABSENT], "mlp_bias": [True, ABSENT], "layer_norm_epsilon": [1e-2, ABSENT], "layers_block_type": [],
                   "moe_intermediate_size": [], "n_routed_experts": [], "n_shared_experts": [], "num_experts_per_tok": [],
                   "routed_scaling_factor": [], "norm_topk_prob": [], "n_group": [], "topk_group": [], "moe_latent_size": [],
                   "moe_shared_expert_intermediate_size": [], "rms_norm_eps": [1e-2], "tie_word_embeddings": [False, ABSENT]},
}
# Without effect: how long a chunk is in which others compute, how steps began in training, layers that draft.
WITHOUT_EFFECT |= {
    "num_logits_to_keep": 2, "mamba_chunk_size": 64, "chunk_size": 64, "time_step_rank": 8, "time_step_min": 0.01, "time_step_max": 0.5,
    "time_step_floor": 0.001, "rescale_prenorm_residual": True, "use_mamba_kernels": False, "mamba_ssm_cache_dtype": "float32",
    "num_nextn_predict_layers": 0, "mtp_layers_block_type": ["full_attention", "moe"], "hidden_dropout": 0.5,
    "moe_shared_expert_overlap": False}
REFUSED |= {"residual_in_fp32": [], "mamba_hidden_act": ["gelu"]}
ALIASES = {"deepseek_v3": ["kimi_k2"]}  # model types of files that transformers reads as another
GPT2 = {
    "vocab_size": [272], "n_positions": [80], "n_embd": [96], "n_layer": [1], "n_head": [2, 8], "n_inner": [100, ABSENT],
    "activation_function": ["gelu", "relu", "silu", "swish", "gelu_pytorch_tanh", "gelu_fast", ABSENT],
    "layer_norm_epsilon": [1e-2, ABSENT], "scale_attn_weights": [False, True, ABSENT],
    "scale_attn_by_inverse_layer_idx": [True, False, ABSENT], "tie_word_embeddings": [False, True, ABSENT]}
ENCODER = {
    "vocab_size": [100], "hidden_size": [48], "num_hidden_layers": [1], "num_attention_heads": [2, 8],
    "intermediate_size": [64], "hidden_act": ["relu", "gelu_new", "silu", ABSENT], "max_position_embeddings": [60],
    "type_vocab_size": [3], "layer_norm_eps": [1e-2, ABSENT], "tie_word_embeddings": [False, ABSENT],
    "dim": [48], "hidden_dim": [96], "n_layers": [1], "n_heads": [2], "activation": ["relu", ABSENT],
    "sinusoidal_pos_embds": [True], "use_task_id": [False], "embedding_size": [16, ABSENT]}
ENCODER_OWN = {
    "modernbert": {
        "hidden_activation": ["relu", "silu", ABSENT], "norm_eps": [1e-2, ABSENT], "norm_bias": [True, ABSENT],
        "attention_bias": [True, ABSENT], "mlp_bias": [True, ABSENT], "local_attention": [4, ABSENT],
        "global_attn_every_n_layers": [2, ABSENT], "global_rope_theta": [100.0, ABSENT], "local_rope_theta": [100.0, ABSENT],
        "layer_types": [["sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"]],
        "rope_parameters": [{"full_attention": {"rope_type": "default", "rope_theta": 50.0},
                             "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}},
                            {"sliding_attention": {"rope_theta": 30.0}}, None],
        "classifier_pooling": ["mean", ABSENT], "classifier_bias": [True], "classifier_activation": ["relu"]}}
ROTARY = {"rope_theta": [100.0], "rope_parameters": [
    {"rope_type": "default", "rope_theta": 100.0}, {"rope_type": "default"}, {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, None, ABSENT]}
ENCODER_OWN["nomic_bert"] = {**ROTARY, "head_dim": [8, None]}
ENCODER_OWN["gte"] = {**ROTARY, "type_vocab_size": [0, 3]}
GENERIC = {"is_causal", "rope_theta", "rope_scaling", "rotary_dim"}  # keys that no class declares and some file has


# Those that keep their rope scaling and their layers: it is what they are.
ZOO = ("gemma4-e2b", "gemma4-12b", "cohere2", "ernie4_5", "exaone4", "gemma2", "gemma3", "glm4", "granite", "hunyuan_v1_dense",
       "ministral3", "olmo2", "olmo3", "phi3", "seed_oss", "smollm3", "starcoder2", "qwen2-moe", "glm4-moe", "ernie4_5-moe",
       "minimax-m2", "gpt-oss", "llama4", "deepseek-v2", "deepseek-v3", "glm4-moe-lite", "mistral4", "minicpm3", "lfm2",
       "lfm2-moe", "qwen3-next", "qwen3_5", "qwen3_5-moe", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h")


def key_names(config_class) -> list[str]:
    return [f.name for f in fields(config_class)]


def variations(model_type: str, base: dict, encoder: bool):
    """(set, remove, refused) for every case."""
    values = ENCODER if encoder else GPT2 if model_type == "gpt2" else DECODER
    if values is DECODER: values = {**values, "num_attention_heads": [base["hidden_size"] // 8]}  # kernels want heads of 8 k
    values = {**values, **(ENCODER_OWN if encoder else OWN).get(model_type, {})}
    names = key_names(type(AutoConfig.for_model(model_type)))
    refused = dict(REFUSED)
    if encoder:
        refused.pop("hidden_act"), refused.pop("is_causal")
    else:  # a decoder is one; cross-attention needs states that are not there
        refused.pop("is_decoder"), refused.pop("use_task_id"), refused.pop("add_cross_attention")
    if model_type in ("gpt2", "starcoder2"): refused.pop("hidden_act")
    if not model_type.startswith("gemma"): refused.pop("use_bidirectional_attention")
    if model_type.startswith("gemma4"): refused["use_bidirectional_attention"] = ["all"]
    if model_type == "nemotron_h": refused["tie_word_embeddings"] = [True]  # which the class never does
    harmless = {k: v for k, v in WITHOUT_EFFECT.items() if k in names}
    if model_type in ("roberta", "xlm-roberta", "camembert"): del harmless["pad_token_id"]
    if model_type == "gpt2": harmless["add_cross_attention"] = False
    # It is of how training begins; this class rescales matrices that it has loaded, too.
    if model_type == "mamba2": del harmless["rescale_prenorm_residual"]
    yield harmless, [], None
    known = set(harmless) | {"rescale_prenorm_residual"}
    if "pad_token_id" not in known and encoder:
        yield {"pad_token_id": 0}, [], None
        yield {}, ["pad_token_id"], None
        known.add("pad_token_id")
    for key, tried in values.items():
        if key not in names and key not in base and key not in GENERIC: continue
        if key in GENERIC and "rope_parameters" not in names: continue
        known.add(key)
        for value in tried:
            if value == ABSENT: yield {}, [key], None
            else: yield {key: value}, [], None
    for key, tried in refused.items():
        if key not in names and key != "is_causal": continue
        known.add(key)
        for value in tried: yield {key: value}, [], key
    for key, tried in EXPECTED.get(model_type, {}).items():
        for value in tried: yield {key: value}, [], key
    for case in TOGETHER.get(model_type, []): yield case, [], None
    forgotten = [n for n in names if n not in known]
    assert not forgotten, (model_type, forgotten)


def changed(base: dict, to_set: dict, to_remove: list[str]) -> dict:
    config = {k: v for k, v in copy.deepcopy(base).items() if k not in to_remove}
    config.update(copy.deepcopy(to_set))
    return config


def decoder_values(config: dict, tokens: list[int]):
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        (folder / "config.json").write_text(json.dumps(config))
        shapes = checkpoint_shapes(folder)
        weights = {n: tiny_weights(n, s, SEED) for n, s in shapes.items()}
        logits, _ = run(load(folder, weights), tokens)
    return shapes, logits


@torch.no_grad()
def encoder_values(config: dict, tokens: list[int]):
    with tempfile.TemporaryDirectory() as temp:
        (Path(temp) / "config.json").write_text(json.dumps(config))
        made = AutoConfig.from_pretrained(temp)
    made._attn_implementation = "eager"
    model = AutoModel.from_config(made).double().eval()
    shapes = {}
    for key, value in model.state_dict().items():
        if value.dtype != torch.float64: continue
        shapes[key] = tuple(value.shape)
        value.copy_(torch.from_numpy(tiny_weights(key, shapes[key], SEED).astype(np.float64)))
    arguments = {"input_ids": torch.tensor([tokens]), "attention_mask": torch.ones(1, len(tokens), dtype=torch.long)}
    return shapes, model(**arguments).last_hidden_state[0].numpy()


def probes(values: np.ndarray) -> list[float]:
    flat = values.flatten()
    return [float(f"{v:.7g}") for v in flat[np.linspace(0, len(flat) - 1, PROBES).astype(int)]]


def generate(model_type: str, base: dict, encoder: bool) -> None:
    if sys.argv[1:] and model_type not in sys.argv[1:]: return
    tokens = [5 + t % 90 for t in tokens_of(1, 20)] if encoder else tokens_of(7, 24)
    compute = encoder_values if encoder else decoder_values
    shapes, values = compute(base, tokens)
    out = {"made_with": f"transformers {transformers.__version__}", "encoder": encoder, "base": base, "weight_seed": SEED,
           "tokens": tokens, "tensors": [[n, list(s)] for n, s in shapes.items()], "logits": probes(values)}
    cases, counts = [], {"same": 0, "logits": 0, "refused": 0}
    for to_set, to_remove, refused in variations(model_type, base, encoder):
        if not to_set and all(k not in base for k in to_remove): continue
        case = {"set": to_set} if to_set else {"remove": to_remove}
        if refused: case["refused"] = refused
        else:
            try: own, logits = compute(changed(base, to_set, to_remove), tokens)
            except Exception as e:
                print(f"  {model_type} {case}: the reference fails: {str(e)[:120]}")
                continue
            if own != shapes: case["tensors"] = [[n, list(s)] for n, s in own.items() if shapes.get(n) != s]
            gone = [n for n in shapes if n not in own]
            if gone: case["without"] = gone
            if own == shapes and np.array_equal(logits, values): case["same"] = True
            else: case["logits"] = probes(logits)
        for k in counts: counts[k] += k in case
        cases.append(case)
    lines = [f'"{k}":{json.dumps(v, separators=(",", ":"))}' for k, v in out.items()]
    lines.append('"cases":[\n' + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]")
    text = "{" + ",\n".join(lines) + "}\n"
    if model_type == "gte":  # published as another type, which rotates otherwise where no base is said
        with_base = [c for c in cases if "rope_theta" in str({**base, **c.get("set", {})}.get("rope_parameters")) and
                     "rope_parameters" not in c.get("remove", [])]
        rows = ",\n".join(json.dumps(c, separators=(",", ":")) for c in with_base)
        new = "{" + ",\n".join([*lines[:-1], f'"cases":[\n{rows}]']) + "}\n"
        (OUT / "new.json").write_text(new.replace('"model_type":"gte"', '"model_type":"new"'))
    for written in [model_type, *ALIASES.get(model_type, [])]:
        (OUT / f"{written}.json").write_text(text.replace(f'"model_type":"{model_type}"', f'"model_type":"{written}"'))
    print(model_type, counts)


def main() -> None:
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    OUT.mkdir(exist_ok=True)
    for name in ("llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3-moe", "gpt2"):
        base = {k: v for k, v in MODELS[name].items() if k not in ("rope_scaling", "torch_dtype", "architectures")}
        generate(base["model_type"], {**base, "num_hidden_layers" if "n_layer" not in base else "n_layer": 2}, False)
    for name in ZOO:
        base = {k: v for k, v in MODELS[name].items() if k not in ("torch_dtype", "architectures")}
        generate(base["model_type"], base, False)
    for name in ("bert", "ernie", "roberta", "distilbert", "electra", "modernbert", "nomic-bert", "gte"):
        base = {k: v for k, v in ENCODERS[name].items() if k != "architectures"}
        for model_type in {"roberta": ["roberta", "xlm-roberta", "camembert"]}.get(name, [base["model_type"]]):
            generate(model_type, {**base, "model_type": model_type}, True)


if __name__ == "__main__":
    main()
