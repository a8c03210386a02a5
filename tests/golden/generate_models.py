#!/usr/bin/env python3
"""Logits of tiny random models, computed by Hugging Face transformers, for tests/models to compare the engine with.

    python3 tests/golden/generate_models.py            # needs torch, transformers, safetensors, numpy

Writes configs/models/tiny-<name>.json (the model's config.json) and
tests/golden/models/<name>.{json,f32.bin,bf16.bin}. README.md beside this file has the formats. Weights are not
stored: tiny_weights.py and tests/support/tiny_weights.cc both make them, bit for bit, from each tensor's name.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tiny_weights import checksum, fnv1a64, round_to_bf16, splitmix64, tiny_weights

ROOT = Path(__file__).resolve().parents[2]
CONFIGS, GOLDEN = ROOT / "configs/models", ROOT / "tests/golden/models"
VOCAB, TOKENS, TOKENS_ROUTED = 256, 40, 24

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


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes as a checkpoint has them, which are not always those of the module in memory (fused experts)."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        with safe_open(f"{saved}/model.safetensors", "pt") as f:
            return {name: tuple(f.get_slice(name).get_shape()) for name in sorted(f.keys())}


def load(folder: Path, weights: dict[str, np.ndarray]) -> torch.nn.Module:
    """Through the ordinary loading path, which must use every tensor and miss none (but a tied head)."""
    save_file({n: torch.from_numpy(w) for n, w in weights.items()}, str(folder / "model.safetensors"), {"format": "pt"})
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                       experts_implementation="eager", output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[problem], (problem, info[problem])
    # Products and sums in float64; transformers itself keeps norms, rope tables and softmax in float32.
    return model.double().eval()


@torch.no_grad()
def run(model: torch.nn.Module, tokens: list[int]) -> tuple[np.ndarray, float | None]:
    """Logits (T, V), and for mixtures of experts the smallest margin, over tokens and layers, between the router logits
    of the last expert chosen and the first one not chosen."""
    routed = getattr(model.config, "num_experts_per_tok", None)
    result = model(torch.tensor([tokens]), **({"output_router_logits": True} if routed else {}))
    margin = None
    if routed:
        top = [layer.reshape(len(tokens), -1).sort(-1, descending=True).values for layer in result.router_logits]
        margin = min((t[:, routed - 1] - t[:, routed]).min().item() for t in top)
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


def generate(name: str, config: dict) -> None:
    config_path = CONFIGS / f"tiny-{name}.json"
    config_path.write_text(json.dumps(config, indent=2) + "\n")
    weight_seed = 1
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        (folder / "config.json").write_text(config_path.read_text())
        shapes = checkpoint_shapes(folder)
        weights = {n: tiny_weights(n, s, weight_seed) for n, s in shapes.items()}
        models = {"f32": load(folder, weights)}
        models["bf16"] = load(folder, {n: round_to_bf16(w) for n, w in weights.items()})
    if "num_experts_per_tok" in config:
        # An engine in bf16 must choose the same experts for its logits to be comparable at all, so take, of many token
        # sequences, the one whose closest choice is widest.
        candidates = [tokens_of(seed, TOKENS_ROUTED) for seed in range(1, 257)]
        tokens = max(candidates, key=lambda t: min(run(m, t)[1] for m in models.values()))
    else:
        tokens = tokens_of(1, TOKENS)

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
    manifest["tensors"] = [{"name": n, "shape": list(s), "checksum": checksum(weights[n])} for n, s in shapes.items()]
    write_manifest(GOLDEN / f"{name}.json", manifest)
    print(name, sum(w.size for w in weights.values()), "weights", manifest["logits"])


def main() -> None:
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    CONFIGS.mkdir(parents=True, exist_ok=True)
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, config in MODELS.items(): generate(name, config)


if __name__ == "__main__":
    main()
