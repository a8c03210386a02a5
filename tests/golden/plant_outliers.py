#!/usr/bin/env python3
"""A random Qwen 2 model with the outliers that real models have, planted where they hurt: plant_outliers.py DEMO OUT
[LIST]. DEMO gives the tokenizer; OUT is a Hugging Face folder. The same numpy release gives the same bytes. LIST, by
commas, says what is planted (default: all; "plain": nothing):

  channels   x20: two channels of every value head and two rope pairs of every key head; queries and the output
             projection undo it
  bias       +30: the bias of four key channels of every head, of those that rope turns slowest, as large keys are in
             trained models (https://arxiv.org/abs/2502.01563); a bias that rope turns within a page has no mean there
  token0     the embedding of BOS is 100 times larger in two channels: a massive activation
  spikes     x1000: four rows of each up projection; the down projection's columns undo it

"undo" means that the model's function is the same as without, so what is lost is lost to quantization. Judged by the signal-to-noise ratio of the logits (oar eval), never by perplexity: the weights are random.
"""
import json
import pathlib
import shutil
import sys

import numpy as np
import torch
from safetensors.torch import save_file

demo, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
planted = set((sys.argv[3] if len(sys.argv) > 3 else "channels,bias,token0,spikes").split(",")) - {"plain"}
assert planted <= {"channels", "bias", "token0", "spikes"}, planted
E, F, L, H, K, D = 512, 1536, 4, 4, 2, 128
config = json.loads((demo / "config.json").read_text())
V = config["vocab_size"]
config.update(architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=E, intermediate_size=F,
              num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=K, head_dim=D, tie_word_embeddings=False,
              torch_dtype="float32", use_sliding_window=False)
config.pop("attention_bias", None)
rng = np.random.default_rng(11)


def normal(*shape, scale):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


tensors = {"model.embed_tokens.weight": normal(V, E, scale=1), "model.norm.weight": np.ones(E, np.float32),
           "lm_head.weight": normal(V, E, scale=2 / E ** .5)}
for n in range(L):
    p = f"model.layers.{n}."
    t = {"self_attn.q_proj.weight": normal(H * D, E, scale=E ** -.5), "self_attn.k_proj.weight": normal(K * D, E, scale=E ** -.5),
         "self_attn.v_proj.weight": normal(K * D, E, scale=E ** -.5), "self_attn.o_proj.weight": normal(E, H * D, scale=(H * D) ** -.5),
         "self_attn.q_proj.bias": np.zeros(H * D, np.float32), "self_attn.k_proj.bias": np.zeros(K * D, np.float32),
         "self_attn.v_proj.bias": np.zeros(K * D, np.float32), "mlp.gate_proj.weight": normal(F, E, scale=E ** -.5),
         "mlp.up_proj.weight": normal(F, E, scale=E ** -.5), "mlp.down_proj.weight": normal(E, F, scale=F ** -.5),
         "input_layernorm.weight": np.ones(E, np.float32), "post_attention_layernorm.weight": np.ones(E, np.float32)}
    if "channels" in planted:
        for channel in (7, 45):  # 7 + D / 2 and 45 + D / 2 are their partners under rope
            for pair in (channel, channel + D // 2):
                for h in range(K):
                    t["self_attn.k_proj.weight"][h * D + pair] *= 20
                for h in range(H):
                    t["self_attn.q_proj.weight"][h * D + pair] /= 20
            for h in range(K):
                t["self_attn.v_proj.weight"][h * D + channel] *= 20
            for h in range(H):
                t["self_attn.o_proj.weight"][:, h * D + channel] /= 20
    if "bias" in planted:
        for channel in (48, 52, 56, 60):
            for h in range(K):
                t["self_attn.k_proj.bias"][h * D + channel] = 30
    if "spikes" in planted:
        for spike in (3, 400, 801, 1202):
            t["mlp.up_proj.weight"][spike] *= 1000
            t["mlp.down_proj.weight"][:, spike] /= 1000
    tensors |= {p + k: v for k, v in t.items()}
if "token0" in planted:
    tensors["model.embed_tokens.weight"][config["bos_token_id"], [100, 300]] *= 100
out.mkdir(parents=True)
save_file({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in tensors.items()}, out / "model.safetensors")
(out / "config.json").write_text(json.dumps(config, indent=1))
for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
    shutil.copy(demo / name, out / name)
