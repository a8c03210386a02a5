#!/usr/bin/env python3
"""Logits of tiny models with low-rank adapters, computed by transformers and PEFT, for tests/models/adapter_test.cc.

    python3 tests/golden/generate_adapters.py [NAME...]   # needs what generate_models.py needs, and peft

Writes tests/golden/adapters/<name>.{json,f32.bin}: the base's name, adapter_config.json as PEFT writes it (fields that
are of this run apart), the names and shapes of the adapter's tensors, and logits of the base's first tokens. The numbers
of an adapter are those of tiny_weights.py, by the tensor's name.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from generate_models import CONFIGS, GOLDEN, checkpoint_shapes, load, run, write_manifest
from tiny_weights import tiny_weights

OUT = GOLDEN.parent / "adapters"
SEED = 2
TOKENS = 20  # so that phi3 is behind the length at which its rope takes the long factors
ATTENTION, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
PATTERNS = {"use_rslora": True, "rank_pattern": {
    "down_proj": 3, "layers.1.self_attn.q_proj": 2, "^model.layers.0.mlp.up_proj": 7},
            "alpha_pattern": {"v_proj": 3, "layers.1.self_attn.q_proj": 1.5}}
ADAPTERS = {
    "llama3": ("llama3", {"target_modules": ATTENTION + MLP}),
    "llama3-few": ("llama3", {"r": 1, "lora_alpha": 0.5, "target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]}),
    "qwen2": ("qwen2", {"target_modules": ATTENTION + MLP, **PATTERNS}),
    "qwen3": ("qwen3", {"target_modules": ATTENTION + MLP, "r": 5}),
    "mistral": ("mistral", {"target_modules": ATTENTION + MLP, **PATTERNS}),
    "gemma2": ("gemma2", {"target_modules": ATTENTION + MLP}),
    "gemma3": ("gemma3", {"target_modules": ATTENTION + MLP, "r": 16}),
    "phi3": ("phi3", {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}),
    "glm4": ("glm4", {"target_modules": ATTENTION + ["gate_up_proj", "down_proj"]}),
    "olmo2": ("olmo2", {"target_modules": ATTENTION + MLP}),
    "starcoder2": ("starcoder2", {"target_modules": ATTENTION + ["c_fc", "c_proj"]}),
    "gpt2": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "qwen3-moe": ("qwen3-moe", {"target_modules": ATTENTION}),
    "gpt-oss": ("gpt-oss", {"target_modules": ATTENTION}),
    "llama4": ("llama4", {"target_modules": ATTENTION + MLP}),
}


def generate(name: str) -> None:
    base, options = ADAPTERS[name]
    manifest = json.loads((GOLDEN / f"{base}.json").read_text())
    tokens = manifest["tokens"][:TOKENS]
    with tempfile.TemporaryDirectory() as temp:
        folder, saved = Path(temp) / "base", Path(temp) / "adapter"
        folder.mkdir()
        (folder / "config.json").write_text((CONFIGS / f"tiny-{base}.json").read_text())
        weights = {n: tiny_weights(n, s, manifest["weight_seed"]) for n, s in checkpoint_shapes(folder).items()}
        config = LoraConfig(task_type="CAUSAL_LM", **{"r": 8, "lora_alpha": 8, **options})
        get_peft_model(load(folder, weights), config).save_pretrained(saved)
        shapes = {n: tuple(t.shape) for n, t in sorted(load_file(saved / "adapter_model.safetensors").items())}
        save_file({n: torch.from_numpy(tiny_weights(n, s, SEED)) for n, s in shapes.items()},
                  str(saved / "adapter_model.safetensors"), {"format": "pt"})
        written = json.loads((saved / "adapter_config.json").read_text())
        model = PeftModel.from_pretrained(load(folder, weights), saved).double().eval()
        logits, _ = run(model, tokens)
        plain, _ = run(load(folder, weights), tokens)
    written["base_model_name_or_path"] = base
    written["target_modules"] = sorted(written["target_modules"])
    assert np.isfinite(logits).all() and np.abs(logits - plain).max() > 0.1 * np.abs(plain).max(), name
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.f32.bin").write_bytes(logits.astype("<f4").tobytes())
    write_manifest(OUT / f"{name}.json", {
        "base": base, "tokens": len(tokens), "seed": SEED,
        "made_with": f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}",
        "adapter_config": written, "tensors": [{"name": n, "shape": list(s)} for n, s in shapes.items()]})
    print(name, len(shapes), "tensors, largest change", float(np.abs(logits - plain).max()))


if __name__ == "__main__":
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or ADAPTERS: generate(name)
