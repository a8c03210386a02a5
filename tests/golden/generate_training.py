#!/usr/bin/env python3
"""Losses of tiny models while they are finetuned, computed by PyTorch, for tests/train/curve_test.cc.

    python3 tests/golden/generate_training.py [NAME...]   # needs what generate_models.py needs

Writes tests/golden/training/<name>.json: the samples, the numbers of the run, and by mode (full, lora) the loss of each of
STEPS steps in double and the largest spread of PyTorch with itself in f32: attention eager and sdpa, 1 and 2 threads, and
double. Losses of a mixture end where a route may differ: where PyTorch in f32 chooses another expert than in double, or
scores of the last expert taken and the first one left are no further apart than 4 times what f32 moves a score. Those of fewer than
LEAST steps are left out. Of those in EXACT,
under full.double, EXACT_STEPS losses where nothing at all is in f32: norms, softmax and rotary tables, which transformers computes
so in a model of doubles too. With --exact these alone are written, into the files there are. A step sees all
samples, none of another, and the loss is the mean over all tokens but the first of each. Of mixtures the load-balancing
loss is added, over all rows but padding. Weights are those of tiny_weights.py; of adapters A is too, by the name PEFT gives it,
and B begins as zeros. Adapters are those of `targets`, in a file without of every linear layer of the blocks, but routers: of
mixtures all but experts and what is called as they are, of attention over a latent all but `kv_b_proj`, of Mamba-2 all but
`out_proj`, for which PEFT has none.
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
from safetensors.torch import load_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from generate_models import CONFIGS, GOLDEN, checkpoint_shapes, load
from tiny_weights import fnv1a64, splitmix64, tiny_weights

OUT, DEMO = GOLDEN.parent / "training", CONFIGS.parent / "demo"
STEPS, LEAST, RATE, DECAY, CLIP, EPSILON, BETAS = 200, 5, 1e-3, 0.1, 1.0, 1e-8, (0.9, 0.999)
LENGTHS, SEED, RANK, ALPHA = (12, 9, 7, 4), 3, 4, 8.0
# Past the 16 positions behind which transformers too has the factors of the model's context; and few rows, of which none chooses
# among nearly equal experts soon.
OTHERS = {"phi3": (20, 8, 4), "qwen3-next": (5, 3), "qwen3_5-moe": (5, 3), "ernie4_5-moe": (5, 3)}
NAMES = ["llama2", "llama3", "llama-bias", "llama-linear", "llama-yarn", "qwen2", "qwen3", "mistral", "ministral3", "seed_oss",
         "gemma2", "gemma3", "gemma4-12b", "gemma4-e2b", "granite", "olmo2", "olmo3", "smollm3", "starcoder2", "glm4", "phi3",
         "phi4", "gpt2", "cohere2", "exaone4", "ernie4_5", "hunyuan_v1_dense", "minicpm3", "lfm2", "qwen3_5", "mamba2", "falcon_h1",
         "nemotron_h", "demo"]
# Their experts are stacks in PyTorch, which no adapter is for.
MIXTURES = ["mixtral", "qwen2-moe", "qwen3-moe", "qwen3-next", "qwen3_5-moe", "glm4-moe", "ernie4_5-moe", "minimax-m2", "lfm2-moe",
            "nemotron_h-moe", "granitemoehybrid", "gpt-oss", "llama4", "gemma4-26b-a4b", "deepseek-v2", "deepseek-v3",
            "glm4-moe-lite", "mistral4"]
# With the weight of their load-balancing loss, which is large enough to be seen.
BALANCED = {"mixtral": 0.3, "qwen3-moe": 0.3}
# Turned matrices have no adapters.
FULL_ALONE = {"gpt2"}
AROUND_EXPERTS = ["q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "in_proj", "out_proj",
                  "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "in_proj_qkvz", "in_proj_ba"]
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


def samples(vocab, lengths=LENGTHS):
    return [[int(t) for t in splitmix64(fnv1a64(b"training") + k, n) % np.uint64(vocab)] for k, n in enumerate(lengths)]


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


def ways(name, model):
    """Attention and threads of the runs in f32: sdpa where transformers has it for the model."""
    return [("eager", 1), ("eager", 2)] + ([("sdpa", 1)] if model._supports_sdpa and name not in NO_SDPA else [])


def adapted(model, mixture):
    """Names of the layers that get adapters."""
    blocks = [n for n, m in model.named_modules()
              if isinstance(m, torch.nn.Linear) and (".layers." in n or n.endswith("per_layer_model_projection"))]
    last = lambda n: n.split(".")[-1]
    return [n for n in blocks if last(n) != "kv_b_proj" and not n.endswith((".mamba.out_proj", ".mixer.out_proj"))
            and (not mixture or last(n) in AROUND_EXPERTS)]


@contextmanager
def choices_recorded(mask, found):
    """Appends to `found` the scores (rows, experts) and how many are taken, of every torch.topk over all rows; padding is left out."""
    topk, rows = torch.topk, mask.flatten().bool()

    def recording(x, k, *args, **kwargs):
        scores = x.detach().reshape(-1, x.shape[-1])
        if len(scores) == len(rows) and k < scores.shape[1]:
            found.append((scores[rows].double().nan_to_num(), k))
        return topk(x, k, *args, **kwargs)

    with mock.patch.object(torch, "topk", recording), mock.patch.object(torch.Tensor, "topk", recording):
        yield


def sure_steps(exact, others):
    """How many steps have the same choices in all runs, each by more than 4 times what f32 moves a score."""
    for step, wanted in enumerate(exact):
        moved, closest = 0.0, np.inf
        for k, (scores, n) in enumerate(wanted):
            order = scores.sort(-1, descending=True).values
            closest = min(closest, float((order[:, n - 1] - order[:, n]).min()))
            for other in others:
                moved = max(moved, float((other[step][k][0] - scores).abs().max()))
        if closest <= 4 * moved:
            return step
    return len(exact)


def curve(folder, weights, batch, mode, dtype, attention, threads, exact=False, mixture=False, words=None):
    """The loss of each step, and the choices of its mixtures."""
    torch.set_num_threads(threads)
    model = load(folder, weights).to(dtype).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for key, value in vars(module).items():
            if "dropout" in key and isinstance(value, float):
                setattr(module, key, 0.0)
    model.set_attn_implementation(attention)
    if mode == "lora":
        model.requires_grad_(False)
        for name in adapted(model, mixture):
            stored = name.replace("model.", "backbone.", 1) if model.config.model_type == "nemotron_h" else name  # in its file
            setattr(model.get_submodule(name.rsplit(".", 1)[0]), name.split(".")[-1], Lora(model.get_submodule(name), stored))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert trained, mode
    optimizer = torch.optim.AdamW([{"params": [p for p in trained if p.dim() > 1], "weight_decay": DECAY},
                                   {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0}],
                                  lr=RATE, betas=BETAS, eps=EPSILON, foreach=True)
    # Padding lies behind a sample, where causal attention never looks.
    width = max(map(len, batch))
    ids = torch.tensor([s + [0] * (width - len(s)) for s in batch])
    wanted = torch.tensor([s[1:] + [-100] * (width - len(s)) for s in batch])
    count = sum(len(s) - 1 for s in batch)
    balance = getattr(model.config, "output_router_logits", False)
    mask = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in batch])
    losses, choices = [], []
    with doubles_alone(model) if exact else nullcontext():
        for _ in range(EXACT_STEPS if exact else STEPS):
            optimizer.zero_grad()
            choices.append([])
            with choices_recorded(mask, choices[-1]) if mixture else nullcontext():
                result = model(input_ids=ids, use_cache=False, **({"attention_mask": mask} if balance else {}))
            logits = result.logits[:, :-1]
            rows = logits.reshape(-1, logits.shape[-1])
            loss = torch.nn.functional.cross_entropy(rows, wanted.reshape(-1), reduction="sum") / count
            if balance:
                loss = loss + model.config.router_aux_loss_coef * result.aux_loss
            loss.backward()
            gradients = [p.grad for p in trained if p.grad is not None]
            norm = float(torch.stack(torch._foreach_norm(gradients)).double().norm())
            if norm > CLIP:
                torch._foreach_mul_(gradients, CLIP / norm)
            optimizer.step()
            losses.append(float(loss.detach()))
    if words is not None and mode == "lora":
        words |= {"targets": sorted({n.split(".")[-2] for n, m in model.named_modules() if n.endswith(".inner")}),
                  "adapters": sum(isinstance(m, Lora) for m in model.modules())}
    return np.array(losses), choices


def generate(name, exact_alone):
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        if name == "demo":
            config = json.loads((DEMO / "config.json").read_text())
            weights = {n: t.float().numpy() for n, t in load_file(DEMO / "model.safetensors").items()}
        else:
            config = json.loads((CONFIGS / f"tiny-{name}.json").read_text())
        # Samples are padded to a chunk, which costs time alone.
        config |= {k: 16 for k in ("chunk_size", "mamba_chunk_size") if k in config}
        if name in BALANCED:
            config |= {"output_router_logits": True, "router_aux_loss_coef": BALANCED[name]}
        (folder / "config.json").write_text(json.dumps(config))
        if name != "demo":
            seed = json.loads((GOLDEN / f"{name}.json").read_text())["weight_seed"]
            weights = {n: tiny_weights(n, s, seed) for n, s in checkpoint_shapes(folder).items()}
        batch = samples(config["vocab_size"], OTHERS.get(name, LENGTHS))
        out = {"samples": batch, "rate": RATE, "decay": DECAY, "clip": CLIP, "seed": SEED, "rank": RANK, "alpha": ALPHA}
        if name in BALANCED:
            out["balance"] = BALANCED[name]
        written = OUT / f"{name}.json"
        if exact_alone:
            out = json.loads(written.read_text())
        modes = [m for m in ("full", "lora") if m == "full" or name not in FULL_ALONE]
        for mode in () if exact_alone else modes:
            words, mixture = {}, name in MIXTURES
            exact, choices = curve(folder, weights, batch, mode, torch.float64, "eager", 1, mixture=mixture, words=words)
            others = [curve(folder, weights, batch, mode, torch.float32, a, t, mixture=mixture)
                      for a, t in ways(name, load(folder, weights))]
            assert not mixture or choices[0], name
            steps = sure_steps(choices, [c for _, c in others]) if mixture else STEPS
            spread = float(np.ptp([exact[:steps], *(losses[:steps] for losses, _ in others)], axis=0).max())
            if not mixture:
                words.pop("targets", None)
            out[mode] = {"loss": [float(f"{x:.9g}") for x in exact[:steps]], "spread": float(f"{spread:.3g}")} | words
            first = next(out[m]["loss"][0] for m in modes if m in out)
            assert out[mode]["loss"][0] == first, f"{name}: dropout, or adapters that begin with something"
            if steps < LEAST:
                print(name, mode, steps, "steps: left out", flush=True)
                del out[mode]
                continue
            print(name, mode, steps, "steps", exact[0], exact[steps - 1], "spread", spread, flush=True)
        if name in EXACT:
            losses, _ = curve(folder, weights, batch, "full", torch.float64, "eager", 1, exact=True)
            out["full"]["double"] = [float(f"{x:.13g}") for x in losses]
    OUT.mkdir(exist_ok=True)
    written.write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    exact_alone = sys.argv[1:2] == ["--exact"]
    for name in sys.argv[1 + exact_alone:] or (EXACT if exact_alone else NAMES + MIXTURES):
        generate(name, exact_alone)
