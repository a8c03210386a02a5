#!/usr/bin/env python3
"""Losses of tiny encoders while they are finetuned as classifiers, computed by PyTorch, for tests/train/classifier_test.cc.

    python3 tests/golden/generate_classifiers.py [NAME...]   # needs what generate_encoders.py needs

Writes tests/golden/classifiers/<name>.json: config (config.json), weight_seed, the samples (ids of one text or of two, and the
label, or a label a token, -1 for none), the numbers of the run, the gradient's norm of each tensor at the start, and by mode
(full, lora) the loss of each of STEPS steps (of those in LONG more) in double with the spread of PyTorch with itself in f32:
attention eager and sdpa, 1 and 2 threads, and double. All samples are one step, padded and masked or one by one; the loss is the
mean over what is labelled, without dropout. Weights are those of tiny_weights.py, the head's too; of adapters A is, by the name PEFT gives it, and B is zero. The
head is trained whole beside adapters.
"""

import json
import sys

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

from generate_encoders import BERT, GTE, MODELS, MODERNBERT, NOMIC, OUT as ENCODERS, ROBERTA, with_weights
from generate_training import ALPHA, BETAS, CLIP, DECAY, EPSILON, RANK, RATE, SEED, Lora
from tiny_weights import fnv1a64

OUT = ENCODERS.parent / "classifiers"
STEPS, LONG = 30, {"bert": 200, "bert-tokens": 200}
LABELS = {"id2label": {"0": "A", "1": "B", "2": "C"}, "label2id": {"A": 0, "B": 1, "C": 2}}
CASES = {  # config, what is labelled
    "bert": ({**BERT, **LABELS, "architectures": ["BertForSequenceClassification"]}, "pairs"),
    "bert-tokens": ({**BERT, **LABELS, "architectures": ["BertForTokenClassification"]}, "tokens"),
    "distilbert": ({**MODELS["distilbert"], **LABELS, "architectures": ["DistilBertForSequenceClassification"]}, "texts"),
    "roberta": ({**ROBERTA, **LABELS, "architectures": ["RobertaForSequenceClassification"]}, "texts"),
    "electra": ({**MODELS["electra"], **LABELS, "architectures": ["ElectraForSequenceClassification"]}, "texts"),
    "modernbert": ({**MODERNBERT, **LABELS, "architectures": ["ModernBertForSequenceClassification"],
                    "classifier_pooling": "mean"}, "texts"),
    "nomic-bert": ({**NOMIC, **LABELS, "architectures": ["NomicBertForSequenceClassification"]}, "texts"),
    "gte": ({**GTE, **LABELS, "architectures": ["GteForSequenceClassification"]}, "texts"),
}
# Layers that take adapters: all but those of the head.
HEAD = ("classifier", "pooler", "pre_classifier", "head")


def samples(name, kind):
    rng = np.random.default_rng(fnv1a64(name.encode()) & 0xFFFF)
    out = []
    for k, n in enumerate((12, 9, 7, 4, 15)):
        text = rng.integers(5, 96, n).tolist()
        if kind == "tokens":
            out.append({"text": text, "labels": [int(v) for v in rng.integers(-1, 3, n - 1)] + [int(k % 3)]})
        elif kind == "pairs":
            out.append({"text": text[: n // 2], "pair": text[n // 2:], "label": k % 3})
        else:
            out.append({"text": text, "label": k % 3})
    return out


def build(config, kind, seed, attention):
    made = AutoConfig.for_model(**{k: v for k, v in config.items() if k not in ("architectures",)})
    made._attn_implementation = attention
    auto = AutoModelForTokenClassification if kind == "tokens" else AutoModelForSequenceClassification
    model = auto.from_config(made).double().train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for key in ("attention_dropout", "dropout_prob"):
            if isinstance(getattr(module, key, None), float):
                setattr(module, key, 0.0)
    return with_weights(model, seed)


def run(config, kind, batch, seed, mode, dtype, attention, threads, steps, norms=None):
    torch.set_num_threads(threads)
    model, _ = build(config, kind, seed, attention)
    model = model.to(dtype)
    if mode == "lora":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(any(part in HEAD for part in name.split(".")))
        for name, module in list(model.named_modules()):
            if isinstance(module, torch.nn.Linear) and not any(part in HEAD for part in name.split(".")):
                setattr(model.get_submodule(name.rsplit(".", 1)[0]), name.split(".")[-1], Lora(module, name))
    def loss_of(part):
        """The sum over what is labelled, and how many that are."""
        rows = [s["text"] + s.get("pair", []) for s in part]
        width = max(map(len, rows))
        arguments = {"input_ids": torch.tensor([r + [config["pad_token_id"]] * (width - len(r)) for r in rows]),
                     "attention_mask": torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows])}
        if config["model_type"] == "bert":
            arguments["token_type_ids"] = torch.tensor(
                [[0] * len(s["text"]) + [1] * len(s.get("pair", [])) + [0] * (width - len(r)) for s, r in zip(part, rows)])
        if kind == "tokens":
            wanted = torch.tensor([[v if v >= 0 else -100 for v in s["labels"]] + [-100] * (width - len(r))
                                   for s, r in zip(part, rows)])
        else:
            wanted = torch.tensor([s["label"] for s in part])
        logits = model(**arguments).logits
        return (torch.nn.functional.cross_entropy(logits.reshape(-1, 3), wanted.reshape(-1), reduction="sum"),
                int((wanted >= 0).sum()))

    # In ModernBERT's windows a row of padding may see nothing, which is no number: samples one by one.
    parts = [[s] for s in batch] if config["model_type"] == "modernbert" else [batch]
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": [p for _, p in trained if p.dim() > 1], "weight_decay": DECAY},
                                   {"params": [p for _, p in trained if p.dim() <= 1], "weight_decay": 0.0}],
                                  lr=RATE, betas=BETAS, eps=EPSILON)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        made = [loss_of(part) for part in parts]
        loss = sum(value for value, _ in made) / sum(count for _, count in made)
        loss.backward()
        if norms is not None and step == 0:
            norms.update({n: float(f"{float(p.grad.double().norm()):.9g}") for n, p in trained if p.grad is not None})
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for _, p in trained if p.grad is not None))
        if norm > CLIP:
            for _, p in trained:
                if p.grad is not None:
                    p.grad.mul_(CLIP / float(norm))
        optimizer.step()
        losses.append(float(loss.detach()))
    return np.array(losses)


def generate(name):
    config, kind = CASES[name]
    seed, batch = fnv1a64(("classifier " + name).encode()), samples(name, kind)
    out = {"generator": f"transformers {transformers.__version__}", "config": config, "weight_seed": f"{seed:016x}",
           "tensors": build(config, kind, seed, "eager")[1], "samples": batch, "rate": RATE, "decay": DECAY, "clip": CLIP,
           "seed": SEED, "rank": RANK, "alpha": ALPHA, "norms": {}}
    steps = LONG.get(name, STEPS)
    for mode in ("full", "lora"):
        exact = run(config, kind, batch, seed, mode, torch.float64, "eager", 1, steps, out["norms"] if mode == "full" else None)
        spread = max(float(np.abs(run(config, kind, batch, seed, mode, torch.float32, a, t, steps) - exact).max())
                     for a, t in (("eager", 1), ("eager", 2), ("sdpa", 1)))
        out[mode] = {"loss": [float(f"{x:.9g}") for x in exact], "spread": float(f"{spread:.3g}")}
        print(name, mode, exact[0], exact[-1], "spread", spread, flush=True)
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or CASES:
        generate(name)
