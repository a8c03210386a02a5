#!/usr/bin/env python3
"""Logits of tiny random models, computed by Hugging Face transformers, for tests/models to compare the engine with.

    python3 tests/golden/generate_models.py [NAME...]   # needs torch, transformers, safetensors, numpy

Writes configs/models/tiny-<name>.json (the model's config.json) and
tests/golden/models/<name>.{json,f32.bin,bf16.bin}. README.md beside this file has the formats. Weights are not
stored: tiny_weights.py and tests/support/tiny_weights.cc both make them, bit for bit, from each tensor's name.
"""

import json
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tiny_weights import checksum, fnv1a64, is_bytes, round_to_bf16, splitmix64, tiny_bytes, tiny_weights

ROOT = Path(__file__).resolve().parents[2]
CONFIGS, GOLDEN = ROOT / "configs/models", ROOT / "tests/golden/models"
VOCAB, TOKENS, TOKENS_ROUTED = 256, 40, 24
TOKENS_RECURRENT = 150  # over several pages, whose ends a state crosses

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 64,
    "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": False,
    "mlp_bias": False, "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": False, "bos_token_id": 0,
    "eos_token_id": 1, "torch_dtype": "float32"}


def llama(**changes) -> dict:
    return {**LLAMA, **changes}


# Scaled positions start to differ from plain ones beyond original_max_position_embeddings (by wavelength), so those are
# tiny: 16 dimensions per head have wavelengths 6.3, 20, 63, 199, ... at theta 10000.
# The spellings are those found in the wild: rope_scaling with "rope_type" or, older, "type"; rope_parameters, newer.
MODELS = {
    "llama2": llama(num_key_value_heads=4, num_hidden_layers=3),
    "llama3": llama(rope_theta=500000.0, eos_token_id=[1, 2], rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}),
    "llama-linear": llama(tie_word_embeddings=True, rope_scaling={"type": "linear", "factor": 4.0}),
    "llama-yarn": {**{k: v for k, v in LLAMA.items() if k not in ("rope_theta", "rope_scaling", "torch_dtype")},
                   "dtype": "float32", "rope_parameters": {
                       "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
                       "original_max_position_embeddings": 32}},
    "mistral": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": VOCAB, "hidden_size": 96,
        "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0,
        "sliding_window": 12, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
        "torch_dtype": "float32"},
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": VOCAB, "hidden_size": 64,
        "intermediate_size": 144, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 1000000.0,
        "sliding_window": 8, "use_sliding_window": False, "max_window_layers": 2, "attention_dropout": 0.0,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32"},
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCAB, "hidden_size": 64,
        "intermediate_size": 144, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "rope_theta": 1000000, "rope_scaling": None, "sliding_window": None, "use_sliding_window": False,
        "max_window_layers": 2, "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": False,
        "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "float32"},
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCAB, "n_embd": 64, "n_layer": 2,
        "n_head": 4, "n_positions": 64, "n_ctx": 64, "n_inner": None, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "scale_attn_weights": True, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "resid_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 1},
    "qwen3-moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": VOCAB, "hidden_size": 64,
        "intermediate_size": 128, "moe_intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [1], "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "rope_theta": 1000000.0, "rope_scaling": None, "sliding_window": None,
        "use_sliding_window": False, "attention_bias": False, "attention_dropout": 0.0, "output_router_logits": False,
        "router_aux_loss_coef": 0.001, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
        "torch_dtype": "float32"},
    "mixtral": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": VOCAB, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "rope_theta": 1000000.0, "sliding_window": None, "output_router_logits": False,
        "router_aux_loss_coef": 0.02, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
        "torch_dtype": "float32"},
}


def decoder(model_type: str, architecture: str, **keys) -> dict:
    """What the configs of the models below have in common; each says the rest as its released checkpoint spells it."""
    return {"architectures": [architecture], "model_type": model_type, "vocab_size": VOCAB, "hidden_size": 64,
            "intermediate_size": 112, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 256, "initializer_range": 0.02, "use_cache": True, "torch_dtype": "bfloat16",
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, **keys}


SILU = {"hidden_act": "silu", "attention_dropout": 0.0}


# Four layers, of which the last has attention.
def hybrid(model_type: str, architecture: str, **changes) -> dict:
    return decoder(model_type, architecture, **{
        "head_dim": 32, "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "rms_norm_eps": 1e-6,
        "num_hidden_layers": 4, **changes})


GATED_DELTA = {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_num_key_heads": 2,
               "linear_num_value_heads": 4, "linear_value_head_dim": 32}
SHARED_EXPERT = {"moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 2, "output_router_logits": False,
                 "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 80}
QWEN35 = {"attn_output_gate": True, "layer_types": ["linear_attention"] * 3 + ["full_attention"], "mamba_ssm_dtype": "float32",
          "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "rope_parameters": {
              "mrope_interleaved": True, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
              "rope_type": "default"}}


def gemma4(**changes) -> dict:
    return {**decoder("gemma4_text", "Gemma4ForCausalLM"), **{
        "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": False,
        "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh", "num_kv_shared_layers": 0,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "num_global_key_value_heads": None,
        "rms_norm_eps": 1e-6, "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
        "sliding_window": 12, "tie_word_embeddings": True, "use_bidirectional_attention": "vision",
        "use_double_wide_mlp": False, "vocab_size_per_layer_input": VOCAB, **changes}}


FACTORS = [1.05, 1.1, 1.3, 1.7, 2.5, 4.0, 6.0, 9.0]  # longrope's, one for each pair of dimensions
MODELS |= {
    "llama-bias": llama(attention_bias=True, mlp_bias=True, head_dim=24),
    # Ministral-3-3B-Instruct-2512, text_config
    "ministral3": decoder(
        "ministral3", "Ministral3ForCausalLM", **SILU, head_dim=32, rms_norm_eps=1e-5, sliding_window=None,
        tie_word_embeddings=True, rope_parameters={
            "rope_type": "yarn", "type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 16}),
    # Phi-3.5-mini-instruct
    "phi3": decoder(
        "phi3", "Phi3ForCausalLM", **SILU, num_key_value_heads=4, attention_bias=False, embd_pdrop=0.0, resid_pdrop=0.0,
        rms_norm_eps=1e-5, rope_theta=10000.0, original_max_position_embeddings=16, sliding_window=12,
        tie_word_embeddings=False, rope_scaling={
            "type": "longrope", "long_factor": FACTORS, "short_factor": [1.0] * 4 + [1.2] * 4}),
    # Phi-4-mini-instruct, at a context that the short factors serve
    "phi4": decoder(
        "phi3", "Phi3ForCausalLM", **SILU, attention_bias=False, embd_pdrop=0.0, resid_pdrop=0.0, mlp_bias=False,
        lm_head_bias=False, full_attn_mod=1, interpolate_factor=1, partial_rotary_factor=0.75, rms_norm_eps=1e-5,
        rope_theta=10000.0, original_max_position_embeddings=256, sliding_window=512, tie_word_embeddings=True,
        rope_scaling={"type": "longrope", "long_factor": FACTORS[:6], "short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 3.0]}),
    # SmolLM3-3B
    "smollm3": decoder(
        "smollm3", "SmolLM3ForCausalLM", **SILU, attention_bias=False, mlp_bias=False, max_window_layers=28,
        layer_types=["full_attention"] * 4, no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0], pretraining_tp=2,
        rms_norm_eps=1e-6, rope_scaling=None, rope_theta=5000000.0, sliding_window=None, use_sliding_window=False,
        tie_word_embeddings=True),
    # granite-3.3-2b-instruct
    "granite": decoder(
        "granite", "GraniteForCausalLM", hidden_act="silu", attention_dropout=0.1, attention_bias=False, mlp_bias=False,
        attention_multiplier=0.0625, embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22,
        rms_norm_eps=1e-5, rope_scaling=None, rope_theta=10000000.0, tie_word_embeddings=True),
    # ERNIE-4.5-0.3B-PT
    "ernie4_5": decoder(
        "ernie4_5", "Ernie4_5ForCausalLM", hidden_act="silu", head_dim=32, rms_norm_eps=1e-5, rope_theta=500000,
        rope_scaling=None, use_bias=False, tie_word_embeddings=True),
    # Seed-OSS-36B-Instruct
    "seed_oss": decoder(
        "seed_oss", "SeedOssForCausalLM", hidden_act="silu", attention_dropout=0.1, residual_dropout=0.1, head_dim=32,
        attention_bias=True, attention_out_bias=False, mlp_bias=False, pretraining_tp=1, rms_norm_eps=1e-6,
        rope_scaling={"rope_type": "default"}, rope_theta=10000000.0, tie_word_embeddings=False),
    # Hunyuan-7B-Instruct
    "hunyuan_v1_dense": decoder(
        "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", **SILU, head_dim=32, attention_bias=False, eod_token_id=3,
        attention_head_dim=32, pretraining_tp=1, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False,
        rope_scaling={"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
                      "mscale_all_dim": 1.0, "type": "dynamic"}),
    # OLMo-2-1124-7B-Instruct
    "olmo2": decoder(
        "olmo2", "Olmo2ForCausalLM", **SILU, attention_bias=False, rms_norm_eps=1e-6, rope_scaling=None,
        rope_theta=500000, tie_word_embeddings=False),
    # Olmo-3-7B-Instruct
    "olmo3": decoder(
        "olmo3", "Olmo3ForCausalLM", **SILU, attention_bias=False, rms_norm_eps=1e-6, rope_theta=500000,
        layer_types=["sliding_attention"] * 3 + ["full_attention"], sliding_window=12, tie_word_embeddings=False,
        rope_scaling={"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
                      "original_max_position_embeddings": 32, "rope_type": "yarn"}),
    # gemma-2-2b-it
    "gemma2": decoder(
        "gemma2", "Gemma2ForCausalLM", attention_bias=False, attention_dropout=0.0, attn_logit_softcapping=50.0,
        cache_implementation="hybrid", final_logit_softcapping=30.0, head_dim=32, hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=24, rms_norm_eps=1e-6, rope_theta=10000.0,
        sliding_window=12, sliding_window_size=12),
    # gemma-3-1b-it, with the scaled rope of the larger ones
    "gemma3": decoder(
        "gemma3_text", "Gemma3ForCausalLM", attention_bias=False, attention_dropout=0.0, attn_logit_softcapping=None,
        cache_implementation="hybrid", final_logit_softcapping=None, head_dim=32,
        hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=24, rms_norm_eps=1e-6, rope_local_base_freq=10000,
        rope_scaling={"factor": 8.0, "rope_type": "linear"}, rope_theta=1000000, sliding_window=12,
        sliding_window_pattern=3),
    # GLM-4-9B-0414
    "glm4": decoder(
        "glm4", "Glm4ForCausalLM", **SILU, attention_bias=True, head_dim=32, partial_rotary_factor=0.5,
        rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False),
    # c4ai-command-r7b-12-2024
    "cohere2": decoder(
        "cohere2", "Cohere2ForCausalLM", **SILU, attention_bias=False, cache_implementation="hybrid", head_dim=16,
        layer_norm_eps=1e-5, layer_switch=4, logit_scale=0.25, order_of_interleaved_layers="local_attn_first",
        position_embedding_type="rope_gptj", rope_scaling=None, rope_theta=50000, rotary_pct=1.0, sliding_window=12,
        sliding_window_pattern=4, use_embedding_sharing=True, use_gated_activation=True, use_parallel_block=True,
        use_parallel_embedding=True),
    # EXAONE-4.0-32B
    "exaone4": decoder(
        "exaone4", "Exaone4ForCausalLM", **SILU, head_dim=32, layer_types=["sliding_attention"] * 3 + ["full_attention"],
        rms_norm_eps=1e-5, rope_theta=1000000, sliding_window=12, sliding_window_pattern="LLLG",
        tie_word_embeddings=False, rope_scaling={
            "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32,
            "rope_type": "llama3"}),
    # starcoder2-3b
    "starcoder2": decoder(
        "starcoder2", "Starcoder2ForCausalLM", activation_function="gelu", attention_dropout=0.1,
        attention_softmax_in_fp32=True, embedding_dropout=0.1, hidden_act="gelu_pytorch_tanh", layer_norm_epsilon=1e-5,
        mlp_type="default", norm_epsilon=1e-5, norm_type="layer_norm", residual_dropout=0.1,
        rope_theta=999999.4420358813, scale_attention_softmax_in_fp32=True, scale_attn_weights=True, sliding_window=12,
        use_bias=True),
    # Qwen1.5-MoE-A2.7B-Chat
    "qwen2-moe": decoder(
        "qwen2_moe", "Qwen2MoeForCausalLM", **SILU, decoder_sparse_step=1, max_window_layers=21, moe_intermediate_size=48,
        norm_topk_prob=False, num_experts=8, num_experts_per_tok=2, output_router_logits=False, rms_norm_eps=1e-6,
        rope_theta=1000000.0, router_aux_loss_coef=0.001, shared_expert_intermediate_size=80, sliding_window=32768,
        tie_word_embeddings=False, use_sliding_window=False),
    # GLM-4.5, of whose groups there is one, with the groups of its kin
    "glm4-moe": decoder(
        "glm4_moe", "Glm4MoeForCausalLM", **SILU, attention_bias=True, first_k_dense_replace=1, head_dim=32,
        moe_intermediate_size=48, n_group=4, n_routed_experts=16, n_shared_experts=1, norm_topk_prob=True,
        num_experts_per_tok=2, num_nextn_predict_layers=1, partial_rotary_factor=0.5, rms_norm_eps=1e-5,
        rope_scaling=None, rope_theta=1000000, routed_scaling_factor=2.5, tie_word_embeddings=False, topk_group=2,
        use_qk_norm=True),
    # ERNIE-4.5-21B-A3B-PT
    "ernie4_5-moe": decoder(
        "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", hidden_act="silu", moe_capacity=[64, 64, 64], moe_gate="topk",
        moe_intermediate_size=48, moe_k=2, moe_layer_end_index=-1, moe_layer_interval=1, moe_layer_start_index=1,
        moe_num_experts=8, moe_num_shared_experts=2, moe_use_aux_free=True, rms_norm_eps=1e-5, rope_scaling=None,
        rope_theta=500000.0, tie_word_embeddings=True, use_bias=False),
    # MiniMax-M2
    "minimax-m2": decoder(
        "minimax_m2", "MiniMaxM2ForCausalLM", **SILU, attn_type_list=[1, 1, 1, 1], head_dim=32, intermediate_size=48,
        mtp_transformer_layers=1, num_experts_per_tok=2, num_local_experts=8, num_mtp_modules=3,
        output_router_logits=False, qk_norm_type="per_layer", rms_norm_eps=1e-6, rope_theta=5000000, rotary_dim=16,
        router_aux_loss_coef=0.001, router_jitter_noise=0.0, scoring_func="sigmoid", shared_intermediate_size=0,
        sliding_window=None, tie_word_embeddings=False, use_mtp=True, use_qk_norm=True, use_routing_bias=True),
    # Llama-4-Scout-17B-16E-Instruct, text_config, with mixtures in every other layer as Maverick has them
    "llama4": decoder(
        "llama4_text", "Llama4ForCausalLM", **SILU, attention_bias=False, attention_chunk_size=8, attn_scale=0.1,
        attn_temperature_tuning=True, cache_implementation="hybrid", floor_scale=8, for_llm_compressor=False, head_dim=32,
        interleave_moe_layer_step=2, intermediate_size=48, intermediate_size_mlp=112, no_rope_layers=[1, 1, 1, 0],
        num_experts_per_tok=1, num_local_experts=8, output_router_logits=False, rms_norm_eps=1e-5, rope_scaling={
            "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32,
            "rope_type": "llama3"},
        rope_theta=500000.0, router_aux_loss_coef=0.001, router_jitter_noise=0.0, tie_word_embeddings=False,
        use_qk_norm=True),
    # gpt-oss-20b, its experts not in mxfp4
    "gpt-oss": decoder(
        "gpt_oss", "GptOssForCausalLM", **SILU, attention_bias=True, experts_per_token=2, head_dim=32,
        initial_context_length=32, intermediate_size=96, layer_types=["sliding_attention", "full_attention"] * 2,
        num_experts_per_tok=2, num_local_experts=8, output_router_logits=False, rms_norm_eps=1e-5, rope_scaling={
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 32,
            "rope_type": "yarn", "truncate": False},
        rope_theta=150000, router_aux_loss_coef=0.9, sliding_window=12, swiglu_limit=0.75, tie_word_embeddings=False),
    # gemma-4-E2B-it, text_config; its head sizes are a sixteenth
    "gemma4-e2b": gemma4(
        enable_moe_block=False, global_head_dim=32, head_dim=16, hidden_size_per_layer_input=16,
        layer_types=["sliding_attention"] * 2 + ["full_attention"] + ["sliding_attention"] * 2 + ["full_attention"],
        num_hidden_layers=6, num_key_value_heads=1, num_kv_shared_layers=3, use_bidirectional_attention=None,
        use_double_wide_mlp=True),
    # gemma-4-12B-it, text_config; its head sizes as they are
    "gemma4-12b": {k: v for k, v in gemma4(
        attention_k_eq_v=True, global_head_dim=512, head_dim=256, num_attention_heads=2, num_key_value_heads=2,
        num_global_key_value_heads=1, model_type="gemma4_unified_text",
        architectures=["Gemma4UnifiedForCausalLM"]).items() if k != "vocab_size_per_layer_input"},
    # gemma-4-26B-A4B-it, text_config
    "gemma4-26b-a4b": gemma4(
        attention_k_eq_v=True, enable_moe_block=True, global_head_dim=32, head_dim=16, hidden_size_per_layer_input=0,
        moe_intermediate_size=48, num_experts=8, num_global_key_value_heads=1, top_k_experts=2),
    # Qwen3-Next-80B-A3B-Instruct, with a dense layer
    "qwen3-next": hybrid(
        "qwen3_next", "Qwen3NextForCausalLM", decoder_sparse_step=1, full_attention_interval=4, mlp_only_layers=[1],
        **GATED_DELTA, **SHARED_EXPERT, norm_topk_prob=True, rope_scaling=None, rope_theta=10000000,
        partial_rotary_factor=0.25, tie_word_embeddings=False),
    # Qwen3.5-4B, text_config
    "qwen3_5": hybrid(
        "qwen3_5_text", "Qwen3_5ForCausalLM", full_attention_interval=4, **GATED_DELTA, **QWEN35, tie_word_embeddings=True),
    # Qwen3.5-35B-A3B, text_config
    "qwen3_5-moe": {k: v for k, v in hybrid(
        "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", full_attention_interval=4, **GATED_DELTA, **SHARED_EXPERT, **QWEN35,
        tie_word_embeddings=False).items() if k != "intermediate_size"},
}
# LFM2-1.2B as it is released
MODELS["lfm2"] = {**decoder("lfm2", "Lfm2ForCausalLM"), **{
    "block_auto_adjust_ff_dim": True, "block_dim": 64, "block_ff_dim": 160, "block_ffn_dim_multiplier": 1.0,
    "block_mlp_init_scale": 1.0, "block_multiple_of": 16, "block_norm_eps": 1e-5, "block_out_init_scale": 1.0,
    "block_use_swiglu": True, "block_use_xavier_init": True, "conv_L_cache": 3, "conv_bias": False, "conv_dim": 64,
    "conv_dim_out": 64, "conv_use_xavier_init": True, "full_attn_idxs": [1, 3], "norm_eps": 1e-5, "num_heads": 4,
    "rope_theta": 1000000.0, "theta": 1000000.0, "use_pos_enc": True}}
del MODELS["lfm2"]["intermediate_size"]
MODELS["lfm2-long"] = {**MODELS["lfm2"], "block_auto_adjust_ff_dim": False, "conv_bias": True, "conv_L_cache": 4,
                       "layer_types": ["conv", "full_attention", "conv", "conv"]}
del MODELS["lfm2-long"]["full_attn_idxs"]
# LFM2-8B-A1B
MODELS["lfm2-moe"] = {**decoder("lfm2_moe", "Lfm2MoeForCausalLM"), **{
    "conv_L_cache": 3, "conv_bias": False, "layer_types": ["conv", "conv", "full_attention", "conv"],
    "moe_intermediate_size": 48, "norm_eps": 1e-5, "norm_topk_prob": True, "num_dense_layers": 1, "num_experts": 8,
    "num_experts_per_tok": 2, "rope_theta": 1000000.0, "routed_scaling_factor": 1.0, "use_expert_bias": True}}
MODELS["qwen3_5-long"] = MODELS["qwen3_5"]

# Mamba-Codestral-7B-v0.1
MODELS["mamba2"] = {k: v for k, v in decoder(
    "mamba2", "Mamba2ForCausalLM", chunk_size=256, conv_kernel=4, expand=2, head_dim=16, hidden_act="silu",
    intermediate_size=128, layer_norm_epsilon=1e-5, n_groups=2, norm_before_gate=True, num_heads=8,
    rescale_prenorm_residual=False, residual_in_fp32=True, rms_norm=True, state_size=16, tie_word_embeddings=False,
    time_step_floor=0.0001, time_step_init_scheme="random", time_step_limit=[0.0, float("inf")], time_step_max=0.1,
    time_step_min=0.001, time_step_rank=256, use_bias=False, use_conv_bias=True).items()
    if k not in ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")}
# Steps at both limits, biases where the other has none and none where it has, one group.
MODELS["mamba2-long"] = {**MODELS["mamba2"], "n_groups": 1, "time_step_limit": [0.5, 0.75], "use_bias": True,
                         "use_conv_bias": False}

# granite-4.0-h-tiny; attention_multiplier as for its heads of 16
MODELS["granitemoehybrid"] = decoder(
    "granitemoehybrid", "GraniteMoeHybridForCausalLM", **SILU, attention_bias=False, attention_multiplier=0.0625,
    embedding_multiplier=12, init_method="mup", intermediate_size=48, layer_types=["mamba", "mamba", "attention", "mamba"],
    logits_scaling=6, mamba_chunk_size=256, mamba_conv_bias=True, mamba_d_conv=4, mamba_d_head=16, mamba_d_state=16,
    mamba_expand=2, mamba_n_groups=1, mamba_n_heads=8, mamba_proj_bias=False, normalization_function="rmsnorm",
    num_experts_per_tok=2, num_local_experts=8, output_router_logits=False, position_embedding_type="nope",
    residual_multiplier=0.22, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=10000, router_aux_loss_coef=0.0,
    shared_intermediate_size=80, tie_word_embeddings=True)
# granite-4.0-h-micro, which has no mixture, with positions, as granite-4.0-micro has them
MODELS["granitemoehybrid-long"] = {**MODELS["granitemoehybrid"], "num_local_experts": 0, "num_experts_per_tok": 0,
                                   "position_embedding_type": "rope", "shared_intermediate_size": 112}
# Falcon-H1-0.5B-Instruct
MODELS["falcon_h1"] = decoder(
    "falcon_h1", "FalconH1ForCausalLM", **SILU, attention_bias=False, attention_in_multiplier=1.0,
    attention_out_multiplier=0.9375, embedding_multiplier=5.656854249492381, head_dim=16, key_multiplier=0.390625,
    lm_head_multiplier=0.0390625, mamba_chunk_size=128, mamba_conv_bias=True, mamba_d_conv=4, mamba_d_head=16, mamba_d_ssm=96,
    mamba_d_state=16, mamba_expand=2, mamba_n_groups=1, mamba_n_heads=6, mamba_norm_before_gate=False, mamba_proj_bias=False,
    mamba_rms_norm=False, mamba_use_mlp=True, mlp_bias=False, mlp_expansion_factor=8,
    mlp_multipliers=[0.8838834764831844, 0.5859375], num_logits_to_keep=1, projectors_bias=False, rms_norm_eps=1e-5,
    rope_scaling=None, rope_theta=100000000000.0, ssm_in_multiplier=1.25,
    ssm_multipliers=[0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
    ssm_out_multiplier=0.23570226039551587, tie_word_embeddings=False)
# Falcon-H1-34B-Instruct's norm, in two groups, in front of its gate; multipliers that the smaller has as 1
MODELS["falcon_h1-long"] = {**MODELS["falcon_h1"], "attention_in_multiplier": 0.75, "mamba_n_groups": 2, "mamba_rms_norm": True,
                            "mamba_norm_before_gate": True, "projectors_bias": True}
# NVIDIA-Nemotron-Nano-9B-v2
MODELS["nemotron_h"] = decoder(
    "nemotron_h", "NemotronHForCausalLM", attention_bias=False, attention_dropout=0.0, chunk_size=128, conv_kernel=4, expand=2,
    head_dim=24, hidden_dropout=0.0, hybrid_override_pattern="M-*M", layer_norm_epsilon=1e-5, mamba_head_dim=24,
    mamba_hidden_act="silu", mamba_num_heads=8, mamba_proj_bias=False, mlp_bias=False, mlp_hidden_act="relu2", n_groups=4,
    num_logits_to_keep=1, num_query_groups=2, rescale_prenorm_residual=True, residual_in_fp32=False, rms_norm_eps=1e-5,
    sliding_window=None, ssm_state_size=16, tie_word_embeddings=False, time_step_floor=0.0001,
    time_step_limit=[0.0, float("inf")], time_step_max=0.1, time_step_min=0.001, time_step_rank=256, use_bias=False,
    use_conv_bias=True, use_mamba_kernels=True)
MODELS["nemotron_h-long"] = {**MODELS["nemotron_h"], "use_bias": True, "mlp_bias": True}
# NVIDIA-Nemotron-3-Nano-30B-A3B, with the latent of its larger kin; chunks, which change nothing, as few tokens need
MODELS["nemotron_h-moe"] = {**MODELS["nemotron_h"], **{
    "chunk_size": 32,
    "hybrid_override_pattern": "ME*E", "moe_intermediate_size": 48, "moe_latent_size": 32,
    "moe_shared_expert_intermediate_size": 80, "moe_shared_expert_overlap": True, "n_group": 1, "n_routed_experts": 8,
    "n_shared_experts": 1, "norm_eps": 1e-5, "norm_topk_prob": True, "num_experts_per_tok": 2, "partial_rotary_factor": 1.0,
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "topk_group": 1}}


def latent(model_type: str, architecture: str, **keys) -> dict:
    """Attention over a latent: V3's config with a sixteenth of its sizes."""
    return {**decoder(model_type, architecture, **SILU), **{
        "attention_bias": False, "kv_lora_rank": 32, "num_key_value_heads": 4, "q_lora_rank": 24,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "v_head_dim": 24, **keys}}


YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "original_max_position_embeddings": 16, "type": "yarn"}
MODELS |= {
    # DeepSeek-V2-Lite
    "deepseek-v2": latent(
        "deepseek_v2", "DeepseekV2ForCausalLM", aux_loss_alpha=0.001, first_k_dense_replace=1, moe_intermediate_size=48,
        moe_layer_freq=1, n_group=1, n_routed_experts=8, n_shared_experts=2, norm_topk_prob=False, num_experts_per_tok=2,
        q_lora_rank=None, rope_scaling={**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}, routed_scaling_factor=1.0,
        scoring_func="softmax", seq_aux=True, topk_group=1, topk_method="greedy", pretraining_tp=1),
    # DeepSeek-V2 (236B): experts of 3 of 8 groups, each as good as its best
    "deepseek-v2-groups": latent(
        "deepseek_v2", "DeepseekV2ForCausalLM", aux_loss_alpha=0.001, first_k_dense_replace=1, moe_intermediate_size=48,
        moe_layer_freq=1, n_group=4, n_routed_experts=16, n_shared_experts=2, norm_topk_prob=False, num_experts_per_tok=3,
        rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, routed_scaling_factor=16.0,
        scoring_func="softmax", seq_aux=True, topk_group=2, topk_method="group_limited_greedy", pretraining_tp=1),
    # DeepSeek-V3; mscale and mscale_all_dim are the same there
    "deepseek-v3": latent(
        "deepseek_v3", "DeepseekV3ForCausalLM", ep_size=1, first_k_dense_replace=1, moe_intermediate_size=48,
        moe_layer_freq=1, n_group=4, n_routed_experts=16, n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=2,
        num_nextn_predict_layers=1, rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
        routed_scaling_factor=2.5, scoring_func="sigmoid", topk_group=2, topk_method="noaux_tc"),
    # GLM-4.7-Flash
    "glm4-moe-lite": {k: v for k, v in latent(
        "glm4_moe_lite", "Glm4MoeLiteForCausalLM", first_k_dense_replace=1, moe_intermediate_size=48, n_group=1,
        n_routed_experts=8, n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=2, num_nextn_predict_layers=1,
        partial_rotary_factor=1.0, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=1000000, routed_scaling_factor=1.8,
        topk_group=1, topk_method="noaux_tc").items()},
    # Mistral-Small-4-119B-2603, text_config
    "mistral4": latent(
        "mistral4", "Mistral4ForCausalLM", first_k_dense_replace=0, head_dim=24, moe_intermediate_size=48, n_group=1,
        n_routed_experts=8, n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=2, output_router_logits=False,
        pretraining_tp=1, qk_head_dim=24, rope_interleave=True, rope_parameters={
            "type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16,
            "max_position_embeddings": 256, "partial_rotary_factor": 1 / 3},
        routed_scaling_factor=1.0, topk_group=1),
    # MiniCPM3-4B
    "minicpm3": latent(
        "minicpm3", "MiniCPM3ForCausalLM", dim_model_base=16, rms_norm_eps=1e-5, scale_depth=1.4, scale_emb=12,
        tie_word_embeddings=True, v_head_dim=16, original_max_position_embeddings=64, rope_scaling={
            "type": "longrope", "long_factor": FACTORS[:4], "short_factor": FACTORS[:4],
            "original_max_position_embeddings": 64}),
}
# Over two borders of pages of 64. Mistral 4's without mixtures: of an engine that rounds, what it rounds remains.
for latent_name in ("deepseek-v2", "deepseek-v3", "glm4-moe-lite", "minicpm3"): MODELS[f"{latent_name}-long"] = MODELS[latent_name]
MODELS["mistral4-long"] = {**MODELS["mistral4"], "first_k_dense_replace": 4}
F32_ALONE = {f"{n}-long" for n in ("deepseek-v2", "deepseek-v3", "glm4-moe-lite", "minicpm3")}
# Longer than three pages of 16.
LENGTHS = {"minicpm3": 56}
# gpt-oss-20b as it is released
MODELS["gpt-oss-mxfp4"] = {**MODELS["gpt-oss"], "quantization_config": {
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    "quant_method": "mxfp4"}}


def class_of(folder: Path):
    """What reads the folder: a class by its name where no AutoModel knows the type."""
    config = json.loads((folder / "config.json").read_text())
    return transformers.Mistral4ForCausalLM if config["model_type"] == "mistral4" else AutoModelForCausalLM


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes as a checkpoint has them, which are not always those of the module in memory (fused experts)."""
    config, kind = AutoConfig.from_pretrained(folder), class_of(folder)
    model = kind.from_config(config) if kind is AutoModelForCausalLM else kind(config)
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        with safe_open(f"{saved}/model.safetensors", "pt") as f:
            return {name: tuple(f.get_slice(name).get_shape()) for name in sorted(f.keys())}


def load(folder: Path, weights: dict[str, np.ndarray]) -> torch.nn.Module:
    """Through the ordinary loading path, which must use every tensor and miss none (but a tied head)."""
    save_file({n: torch.from_numpy(w) for n, w in weights.items()}, str(folder / "model.safetensors"), {"format": "pt"})
    model, info = class_of(folder).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                       experts_implementation="eager", output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[problem], (problem, info[problem])
    # Products and sums in float64; transformers itself keeps norms, rope tables and softmax in float32.
    return model.double().eval()


@contextmanager
def choices_recorded():
    """Every torch.topk over rows: the distances between the last number taken and the first one left."""
    gaps, topk = [], torch.topk

    def recording(x, k, *args, **kwargs):
        if x.dim() == 2 and x.shape[1] > k:
            ordered = topk(x, k + 1, dim=-1).values
            gaps.append((ordered[:, k - 1] - ordered[:, k]).min().item())
        return topk(x, k, *args, **kwargs)

    torch.topk = recording
    try: yield gaps
    finally: torch.topk = topk


@torch.no_grad()
def run(model: torch.nn.Module, tokens: list[int]) -> tuple[np.ndarray, float | None]:
    """Logits (T, V), and for mixtures of experts the smallest margin, over tokens and layers, between the router logits
    of the last expert chosen and the first one not chosen; where logits are not what is chosen by, between what is."""
    routed = getattr(model.config, "num_experts_per_tok", None) or getattr(model.config, "top_k_experts", None)
    if model.config.model_type == "nemotron_h" and "moe" not in model.config.layer_types: routed = None
    corrected = (any(k in n for n in model.state_dict() for k in ("e_score_correction_bias", "expert_bias", "router.scale")) or
                 model.config.model_type == "llama4_text" or
                 getattr(model.config, "topk_method", "") == "group_limited_greedy")
    with choices_recorded() as gaps:
        result = model(torch.tensor([tokens]), **({"output_router_logits": True} if routed and not corrected else {}))
    margin = None
    if routed and corrected: margin = min(gaps, default=None)
    elif routed:
        top = [layer.reshape(len(tokens), -1).sort(-1, descending=True).values for layer in result.router_logits]
        margin = min(((t[:, routed - 1] - t[:, routed]).min().item() for t in top), default=None)
    return result.logits[0].numpy(), margin


def tokens_of(seed: int, count: int) -> list[int]:
    return [int(x) for x in splitmix64(fnv1a64(b"tokens") ^ seed, count) % np.uint64(VOCAB)]


def write_manifest(path: Path, manifest: dict) -> None:
    """JSON with one line per field, per set of logits and per tensor."""
    def block(value) -> str:
        if isinstance(value, dict): items, ends = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()], "{}"
        elif isinstance(value, list) and isinstance(value[0], dict): items, ends = [json.dumps(v) for v in value], "[]"
        else: return json.dumps(value)
        return ends[0] + "\n    " + ",\n    ".join(items) + "\n  " + ends[1]

    fields = [f'  "{k}": {block(v)}' for k, v in manifest.items()]
    path.write_text("{\n" + ",\n".join(fields) + "\n}\n")


def in_mxfp4(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The same checkpoint with experts (E, K, N) as blocks (E, N, K / 32, 16) and scales (E, N, K / 32)."""
    out = {}
    for name, shape in shapes.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")): out[name] = shape
        else:
            experts, k, n = shape
            out[name + "_blocks"], out[name + "_scales"] = (experts, n, k // 32, 16), (experts, n, k // 32)
    return dict(sorted(out.items()))


def dequantized(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The numbers that transformers makes of blocks and scales, (E, K, N), by the name of the weight."""
    return {n.removesuffix("_blocks"): convert_moe_packed_tensors(
        torch.from_numpy(w), torch.from_numpy(weights[n.replace("_blocks", "_scales")]), dtype=torch.float32).contiguous().numpy()
        for n, w in weights.items() if n.endswith("_blocks")}


def generate(name: str, config: dict) -> None:
    config_path = CONFIGS / f"tiny-{name}.json"
    config_path.write_text(json.dumps(config, indent=2) + "\n")
    weight_seed = 1
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "quantization_config"}))
        shapes = checkpoint_shapes(folder)
        if "quantization_config" in config: shapes = in_mxfp4(shapes)
        weights = {n: (tiny_bytes if is_bytes(n) else tiny_weights)(n, s, weight_seed) for n, s in shapes.items()}
        decoded = dequantized(weights)
        floats = {n: w for n, w in weights.items() if not is_bytes(n)}
        models = {"f32": load(folder, {**floats, **decoded})}
        if name not in F32_ALONE: models["bf16"] = load(folder, {**{n: round_to_bf16(w) for n, w in floats.items()}, **decoded})
    length = TOKENS_RECURRENT if name.endswith("-long") else TOKENS_ROUTED
    if name != "mistral4-long" and config.get("num_experts_per_tok") or "moe_k" in config or "top_k_experts" in config:
        # An engine in bf16 must choose the same experts for its logits to be comparable at all, so take, of many token
        # sequences, the one whose closest choice is widest.
        candidates = [tokens_of(seed, length) for seed in range(1, 257 if length == TOKENS_ROUTED else 33)]
        tokens = max(candidates, key=lambda t: min(run(m, t)[1] for m in models.values()))
    else:
        tokens = tokens_of(1, LENGTHS.get(name, TOKENS_RECURRENT if name.endswith("-long") else TOKENS))

    manifest = {
        "config": str(config_path.relative_to(ROOT)), "weight_seed": weight_seed, "tokens": tokens,
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}", "logits": {}}
    for dtype, model in models.items():
        logits, margin = run(model, tokens)
        assert np.isfinite(logits).all() and logits.shape == (len(tokens), VOCAB)
        file = f"{name}.{dtype}.bin"
        (GOLDEN / file).write_bytes(logits.astype("<f4").tobytes())
        manifest["logits"][dtype] = {"file": file, "shape": list(logits.shape),
                                     "max_abs": round(float(np.abs(logits).max()), 4),
                                     "std": round(float(logits.std()), 4)}
        if margin is not None: manifest["logits"][dtype]["router_margin"] = round(margin, 5)
    if decoded:
        manifest["decoded"] = [{"name": n, "shape": list(w.shape), "checksum": checksum(w)} for n, w in decoded.items()]
    manifest["tensors"] = [{"name": n, "shape": list(s), "checksum": checksum(weights[n])} for n, s in shapes.items()]
    write_manifest(GOLDEN / f"{name}.json", manifest)
    print(name, sum(w.size for w in weights.values()), "weights", manifest["logits"])


def main() -> None:
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    CONFIGS.mkdir(parents=True, exist_ok=True)
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or MODELS: generate(name, MODELS[name])


if __name__ == "__main__":
    main()
