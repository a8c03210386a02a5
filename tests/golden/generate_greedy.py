#!/usr/bin/env python3
"""Greedy texts of the tiny random models, computed by Hugging Face transformers, for tests/models/each_type_test.cc.

    python3 tests/golden/generate_greedy.py [NAME...]   # needs torch, transformers, safetensors, numpy

Writes tests/golden/greedy.json: by golden a prompt, the 64 tokens that follow it (as many as fit where a model has fewer
positions), each by a forward pass over all that came before, in float64, and the smallest lead of a chosen token over the
runner-up, as a part of the largest logit. It takes the first prompt whose text is decided by a thousandth of that, and of
mixtures by choices of experts that are at least a ten thousandth apart.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers

from generate_models import GOLDEN, MODELS, choices_recorded, dequantized, load, tokens_of
from tiny_weights import is_bytes, tiny_bytes, tiny_weights

OUT = GOLDEN.parent / "greedy.json"
PROMPT, TEXT, PROMPTS = 6, 64, 24
# transformers takes a longrope's short factors up to so many tokens and then rotates all keys anew; here a key keeps what it was first
# given, by the longest context (rope_table.cc). So this text is beyond that length from its first token.
LONG_PROMPTS = {"phi3": 20}
LEAD, ROUTER_LEAD = 1e-3, 1e-4


def model_of(name: str):
    """As generate_models.py loads it, and its manifest."""
    manifest = json.loads((GOLDEN / f"{name}.json").read_text())
    weights = {t["name"]: (tiny_bytes if is_bytes(t["name"]) else tiny_weights)(t["name"], t["shape"], manifest["weight_seed"])
               for t in manifest["tensors"]}
    floats = {n: w for n, w in weights.items() if not is_bytes(n)}
    config = {k: v for k, v in MODELS[name].items() if k != "quantization_config"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return load(Path(folder), {**floats, **dequantized(weights)})


@torch.no_grad()
def greedy(model, prompt: list[int], count: int) -> tuple[list[int], float, float]:
    """The text, its smallest lead, and the smallest lead of an expert that was chosen over one that was not."""
    tokens, lead, largest = list(prompt), float("inf"), 0.0
    with choices_recorded() as gaps:
        for _ in range(count):
            best = model(torch.tensor([tokens])).logits[0, -1].sort(descending=True)
            lead = min(lead, (best.values[0] - best.values[1]).item())
            largest = max(largest, best.values.abs().max().item())
            tokens.append(best.indices[0].item())
    return tokens[len(prompt):], lead / largest, min(gaps, default=float("inf"))


def main() -> None:
    transformers.logging.set_verbosity_error()
    texts = json.loads(OUT.read_text()) if sys.argv[1:] and OUT.exists() else {}
    for name in sys.argv[1:] or [n for n in MODELS if not n.endswith("-long")]:
        model = model_of(name)
        length = LONG_PROMPTS.get(name, PROMPT)
        count = min(TEXT, MODELS[name].get("n_positions", 1 << 20) - length)
        for seed in range(11, 11 + PROMPTS):
            prompt = tokens_of(seed, length)
            text, lead, gap = greedy(model, prompt, count)
            if lead > LEAD and gap > ROUTER_LEAD: break
        assert lead > LEAD and gap > ROUTER_LEAD, (name, lead, gap)
        texts[name] = {"prompt": prompt, "text": text, "lead": round(lead, 5)} | ({"router_lead": round(gap, 6)} if gap < 1e9 else {})
        print(name, {k: v for k, v in texts[name].items() if k.endswith("lead")}, len(set(text)), flush=True)
    ordered = {n: texts[n] for n in MODELS if n in texts}
    OUT.write_text("{" + ",\n".join(f'"{n}": {json.dumps(t)}' for n, t in ordered.items()) + "}\n")


if __name__ == "__main__":
    main()
