#!/usr/bin/env python3
"""What is left of a distribution after the sampling parameters, computed by transformers' logits processors in float64.

    python3 tests/golden/generate_sampling.py          # needs torch, transformers, numpy

Writes tests/golden/sampling.json: {"order", "vectors": {name: logits}, "cases": [...]}. A case names a vector, has
the tokens of prompt and output so far, the parameters that differ from their neutral values, and `kept`: [id,
log-probability] of every token that can still be drawn, by id; all others have probability zero. Presence and
frequency penalties and the bias, which transformers lacks or states differently, follow the definition of the OpenAI
API: logit - presence * (count > 0) - frequency * count, counts over the output; bias is added first.

No case hangs on a rounding: thresholds of top_p and min_p are at least MARGIN from every probability they cut between.
"""

import json
from pathlib import Path

import numpy as np
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

from tiny_weights import fnv1a64, splitmix64

OUT = Path(__file__).with_name("sampling.json")
MARGIN = 1e-4
ORDER = ["logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty", "temperature", "top_k", "top_p",
         "min_p"]


def vector(name: str, size: int, spread: float) -> list[float]:
    """Distinct multiples of 1/256 (exact in float32 and in print), roughly normal, in random order."""
    bits = splitmix64(fnv1a64(name.encode()), 12 * size).reshape(size, 12)
    normal = ((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53).sum(1) - 6  # sum of 12 uniform: variance 1
    taken, out = set(), []
    for x in normal * spread:
        k = round(x * 256)
        while k in taken: k += 1
        taken.add(k)
        out.append(k / 256)
    return out


VECTORS = {
    "five": [1.0, 3.0, -2.0, 0.5, 2.0],
    "small": vector("small", 12, 2.0),
    "wide": vector("wide", 300, 3.0),
    "flat": vector("flat", 200, 0.25),
    "peaked": [24.0 if i == 17 else x for i, x in enumerate(vector("peaked", 64, 1.5))],
}

CASES = [
    ("five", [], [], {}),
    ("small", [], [], {"temperature": 0.7}),
    ("small", [], [], {"temperature": 2.5}),
    ("wide", [], [], {"temperature": 0.05}),
    ("wide", [], [], {"top_k": 1}),
    ("wide", [], [], {"top_k": 40}),
    ("small", [], [], {"top_k": 100}),
    ("wide", [], [], {"top_p": 0.9}),
    ("flat", [], [], {"top_p": 0.95}),
    ("peaked", [], [], {"top_p": 0.5}),
    ("five", [], [], {"top_p": 0.001}),
    ("wide", [], [], {"min_p": 0.05}),
    ("flat", [], [], {"min_p": 0.5}),
    ("peaked", [], [], {"min_p": 1.0}),
    ("small", [0, 3, 3, 5], [7, 1], {"repetition_penalty": 1.3}),
    ("small", [0, 3, 3, 5], [7, 1], {"repetition_penalty": 0.8}),
    ("small", [0, 3], [5, 5, 5, 2], {"presence_penalty": 0.75}),
    ("small", [0, 3], [5, 5, 5, 2], {"frequency_penalty": 0.5}),
    ("small", [0, 3], [5, 5, 5, 2], {"presence_penalty": -1.0, "frequency_penalty": -0.25}),
    ("small", [], [], {"logit_bias": {"4": 100.0}}),
    ("small", [], [], {"logit_bias": {"1": -100.0, "2": 1.5}}),
    ("wide", [], [], {"temperature": 0.8, "top_p": 0.95}),
    ("wide", [], [], {"temperature": 0.8, "top_k": 50, "top_p": 0.95}),
    ("wide", [], [], {"temperature": 1.5, "top_k": 30, "top_p": 0.8, "min_p": 0.1}),
    ("flat", [], [], {"temperature": 0.3, "top_p": 0.7, "min_p": 0.3}),
    ("wide", [10, 11, 12], [10, 20, 20], {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3,
                                           "temperature": 0.9, "top_k": 25, "top_p": 0.9, "min_p": 0.02}),
    ("peaked", [17], [17, 17], {"logit_bias": {"3": 5.0}, "repetition_penalty": 1.5, "frequency_penalty": 2.0,
                                "temperature": 1.3, "top_k": 10}),
]


def check_margin(scores: torch.Tensor, what: str, threshold: float) -> None:
    probability = scores.softmax(-1).sort(descending=True).values
    value = probability.cumsum(-1) if what == "top_p" else probability / probability[..., :1]
    nearest = (value - threshold).abs().min().item()
    if what == "min_p" and threshold == 1.0: nearest = (value[..., 1:] - threshold).abs().min().item()
    assert nearest > MARGIN, (what, threshold, nearest)


def process(logits: list[float], prompt: list[int], output: list[int], p: dict) -> list:
    history = torch.tensor([prompt + output], dtype=torch.long)
    scores = torch.tensor([logits], dtype=torch.float64)
    for token, bias in p.get("logit_bias", {}).items(): scores[0, int(token)] += bias
    if "repetition_penalty" in p: scores = RepetitionPenaltyLogitsProcessor(p["repetition_penalty"])(history, scores)
    count = torch.bincount(torch.tensor(output, dtype=torch.long), minlength=len(logits)).double()
    scores = scores - p.get("presence_penalty", 0.0) * (count > 0) - p.get("frequency_penalty", 0.0) * count
    if "temperature" in p: scores = TemperatureLogitsWarper(p["temperature"])(history, scores)
    if "top_k" in p: scores = TopKLogitsWarper(p["top_k"])(history, scores)
    if "top_p" in p:
        check_margin(scores, "top_p", p["top_p"])
        scores = TopPLogitsWarper(p["top_p"])(history, scores)
    if "min_p" in p:
        check_margin(scores, "min_p", p["min_p"])
        scores = MinPLogitsWarper(p["min_p"])(history, scores)
    logprob = scores.log_softmax(-1)[0]
    return [[i, round(x, 9)] for i, x in enumerate(logprob.tolist()) if x != -np.inf]


def main() -> None:
    cases = [{"vector": name, "prompt": prompt, "output": output, "parameters": p,
              "kept": process(VECTORS[name], prompt, output, p)} for name, prompt, output, p in CASES]
    lines = [f'"order": {json.dumps(ORDER)}',
             '"vectors": {\n  ' + ",\n  ".join(f"{json.dumps(n)}: {json.dumps(v)}" for n, v in VECTORS.items()) + "\n}",
             '"cases": [\n  ' + ",\n  ".join(json.dumps(c) for c in cases) + "\n]"]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for case in cases: print(case["vector"], case["parameters"], len(case["kept"]), "kept")


if __name__ == "__main__":
    main()
