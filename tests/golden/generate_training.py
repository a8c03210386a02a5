#!/usr/bin/env python3
"""Losses of tiny models while they are finetuned, computed by PyTorch, for tests/train/curve_test.cc.

    python3 tests/golden/generate_training.py [NAME...]   # needs what generate_models.py needs

Writes tests/golden/training/<name>.json: the samples, the numbers of the run, and by mode (full, lora) the loss of each of
STEPS steps in double and the largest spread of PyTorch with itself in f32: attention eager and sdpa, 1 and 2 threads, and
double. Of those in EXACT, under full.double, EXACT_STEPS losses where nothing at all is in f32: norms, softmax and rotary tables,
which transformers computes so in a model of doubles too. With --exact these alone are written, into the files there are. A step
sees all samples, none of another, and the loss is the mean over all tokens but the first of each. Of mixtures the load-balancing
loss is added, over all rows but padding. Weights are those of tiny_weights.py; of adapters A is too, by the name PEFT gives it,
and B begins as zeros.
"""

import json
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from generate_models import CONFIGS, GOLDEN, checkpoint_shapes, load
from tiny_weights import fnv1a64, splitmix64, tiny_weights

OUT = GOLDEN.parent / "training"
STEPS, RATE, DECAY, CLIP, EPSILON, BETAS = 200, 1e-3, 0.1, 1.0, 1e-8, (0.9, 0.999)
LENGTHS, SEED, RANK, ALPHA = (12, 9, 7, 4), 3, 4, 8.0
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj", "out_proj", "w1", "w2", "w3",
           "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"]
NAMES = ["llama2", "llama3", "llama-bias", "llama-linear", "qwen2", "qwen3", "mistral", "seed_oss", "gemma2", "gemma3", "granite",
         "olmo2", "smollm3", "starcoder2", "glm4", "phi3", "gpt2", "cohere2", "exaone4", "ernie4_5", "lfm2", "qwen3_5"]
# Mixtures, with the weight of their load-balancing loss, which is large enough to be seen; no adapters: PyTorch has experts as
# stacks, which none is for.
BALANCED = {"mixtral": 0.3, "qwen3-moe": 0.3}
EXACT, EXACT_STEPS = ("llama3", "qwen2"), 20
NO_SDPA = {"gemma2"}  # caps its scores, which transformers offers in eager alone


class Lora(torch.nn.Module):
    """y = x W^T + b + ALPHA / RANK B A x"""

    def __init__(self, inner, name):
        super().__init__()
        self.inner = inner
        n, k = inner.weight.shape
        a = tiny_weights(f"base_model.model.{name}.lora_A.weight", (RANK, k), SEED)
        self.a = torch.nn.Parameter(torch.from_numpy(a).to(inner.weight.dtype))
        self.b = torch.nn.Parameter(torch.zeros(n, RANK, dtype=inner.weight.dtype))

    def forward(self, x):
        return self.inner(x) + (x @ self.a.T @ self.b.T) * (ALPHA / RANK)


def samples(vocab):
    return [[int(t) for t in splitmix64(fnv1a64(b"training") + k, n) % np.uint64(vocab)] for k, n in enumerate(LENGTHS)]


@contextmanager
def doubles_alone(model):
    """What transformers writes as f32 is f64; rotary tables are computed in it and rounded once, as checkpoints' readers do."""
    single = torch.float32
    with mock.patch.object(torch, "float32", torch.float64), mock.patch.object(torch, "float", torch.float64), \
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        for module in model.modules():
            if hasattr(module, "inv_freq"):
                table = ROPE_INIT_FUNCTIONS.get(module.rope_type) or module.compute_default_rope_parameters
                module.inv_freq = table(module.config)[0].to(single).double()
        yield


def curve(folder, weights, batch, mode, dtype, attention, threads, exact=False):
    torch.set_num_threads(threads)
    model = load(folder, weights).to(dtype).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    model.set_attn_implementation(attention)
    if mode == "lora":
        model.requires_grad_(False)
        for name, module in list(model.named_modules()):
            if isinstance(module, torch.nn.Linear) and name.split(".")[-1] in TARGETS:
                parent = model.get_submodule(name.rsplit(".", 1)[0])
                setattr(parent, name.split(".")[-1], Lora(module, name))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert trained, mode
    optimizer = torch.optim.AdamW([{"params": [p for p in trained if p.dim() > 1], "weight_decay": DECAY},
                                   {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0}],
                                  lr=RATE, betas=BETAS, eps=EPSILON)
    # Padding lies behind a sample, where causal attention never looks.
    width = max(map(len, batch))
    ids = torch.tensor([s + [0] * (width - len(s)) for s in batch])
    wanted = torch.tensor([s[1:] + [-100] * (width - len(s)) for s in batch])
    count = sum(len(s) - 1 for s in batch)
    balance = getattr(model.config, "output_router_logits", False)
    mask = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in batch])
    losses = []
    with doubles_alone(model) if exact else nullcontext():
        for _ in range(EXACT_STEPS if exact else STEPS):
            optimizer.zero_grad()
            result = model(input_ids=ids, use_cache=False, **({"attention_mask": mask} if balance else {}))
            logits = result.logits[:, :-1]
            rows = logits.reshape(-1, logits.shape[-1])
            loss = torch.nn.functional.cross_entropy(rows, wanted.reshape(-1), reduction="sum") / count
            if balance:
                loss = loss + model.config.router_aux_loss_coef * result.aux_loss
            loss.backward()
            norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in trained if p.grad is not None))
            if norm > CLIP:
                for p in trained:
                    if p.grad is not None:
                        p.grad.mul_(CLIP / float(norm))
            optimizer.step()
            losses.append(float(loss.detach()))
    return np.array(losses)


def generate(name, exact_alone):
    manifest = json.loads((GOLDEN / f"{name}.json").read_text())
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        config = json.loads((CONFIGS / f"tiny-{name}.json").read_text())
        if name in BALANCED:
            config |= {"output_router_logits": True, "router_aux_loss_coef": BALANCED[name]}
        (folder / "config.json").write_text(json.dumps(config))
        weights = {n: tiny_weights(n, s, manifest["weight_seed"]) for n, s in checkpoint_shapes(folder).items()}
        batch = samples(json.loads((folder / "config.json").read_text())["vocab_size"])
        out = {"samples": batch, "rate": RATE, "decay": DECAY, "clip": CLIP, "seed": SEED, "rank": RANK, "alpha": ALPHA}
        if name in BALANCED:
            out["balance"] = BALANCED[name]
        written = OUT / f"{name}.json"
        if exact_alone:
            out = json.loads(written.read_text())
        for mode in () if exact_alone else ("full",) if name == "gpt2" or name in BALANCED else ("full", "lora"):
            exact = curve(folder, weights, batch, mode, torch.float64, "eager", 1)
            ways = [("eager", 1), ("eager", 2)] + ([] if name in NO_SDPA else [("sdpa", 1)])
            spread = max(float(np.abs(curve(folder, weights, batch, mode, torch.float32, a, t) - exact).max()) for a, t in ways)
            out[mode] = {"loss": [float(f"{x:.9g}") for x in exact], "spread": float(f"{spread:.3g}")}
            print(name, mode, exact[0], exact[-1], "spread", spread, flush=True)
        if name in EXACT:
            losses = curve(folder, weights, batch, "full", torch.float64, "eager", 1, exact=True)
            out["full"]["double"] = [float(f"{x:.13g}") for x in losses]
    OUT.mkdir(exist_ok=True)
    written.write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    exact_alone = sys.argv[1:2] == ["--exact"]
    for name in sys.argv[1 + exact_alone:] or (EXACT if exact_alone else NAMES + list(BALANCED)):
        generate(name, exact_alone)
