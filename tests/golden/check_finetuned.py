#!/usr/bin/env python3
"""What `oar finetune` writes, loaded by PEFT and transformers: they and `oar serve` give each token the same probability.

    python3 tests/golden/check_finetuned.py [NAME...]     # needs what generate_models.py needs, and peft; OAR_BIN: the program

Run by hand. Tiny models of generate_models.py and an encoder are finetuned in a temporary folder, with adapters and whole. PEFT
loads an adapter over the base as it was, transformers a whole model; both compute in double, `oar serve` in f32. Compared are
the logarithms of all probabilities behind each token but the last, of encoders the scores of labels. A line a result: the
largest difference, and how far training moved them, of which the difference may be a thousandth. Ends with an error beyond it.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
import torch
import transformers
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification

from generate_classifiers import CASES, build
from generate_models import CONFIGS, GOLDEN, checkpoint_shapes, class_of
from generate_training import LENGTHS, OTHERS, samples
from tiny_weights import fnv1a64, tiny_weights

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from program import OAR, Server

ADAPTER = ["--lora", "rank=4,targets=all"]
# A stack of experts has no adapter in PEFT by name, nor have turned matrices.
WAYS = {"llama3": ("lora", "full"), "qwen2": ("lora", "full"), "gemma3": ("lora", "full"), "phi3": ("lora", "full"),
        "starcoder2": ("lora", "full"), "lfm2": ("lora", "full"), "mamba2": ("lora", "full"), "gpt2": ("full",),
        "mixtral": ("full",), "qwen3-moe": ("full",), "minicpm3": ("lora", "full"), "gpt-oss": ("full",), "llama4": ("full",),
        "granitemoehybrid": ("full",), "gemma4-26b-a4b": ("full",), "deepseek-v2": ("full",), "deepseek-v3": ("full",), "bert": ("lora", "full")}
STEPS, RATES, LARGEST = 20, {"lora": "2e-2", "full": "2e-3"}, 1e-3


def write_number_tokenizer(folder, vocab):
    """Of the numbers below `vocab`, apart by white space."""
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "unk_token": "0", "vocab": {str(k): k for k in range(vocab)}}}))


def finetune(base, data, way, out):
    done = subprocess.run([OAR, "finetune", base, "--data", data, *(["--full"] if way == "full" else ADAPTER), "--steps", str(STEPS),
                           "--rate", RATES[way], "--length", "32", "--tokens", "32", "--threads", "1", "-o", out],
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"oar finetune {base}: {done.stderr}")


def ask(server, path, body):
    request = urllib.request.Request(server.url(path), json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def served(model, adapter, tokens, vocab):
    """(T - 1, V): behind all tokens but the last."""
    more = ["--lora", f"it={adapter}"] if adapter else []
    with Server("--kv", "f32", "--threads", "1", "--max-logprobs", "-1", *more, model=str(model)) as server:
        name = "it" if adapter else ask_models(server)
        answer = ask(server, "/v1/completions", {"model": name, "prompt": tokens, "max_tokens": 1, "prompt_logprobs": -1})
    rows = answer["choices"][0]["prompt_logprobs"][1:]
    out = np.full((len(rows), vocab), -np.inf)
    for k, row in enumerate(rows):
        for token, said in row.items():
            out[k, int(token)] = said["logprob"]
    return out


def ask_models(server):
    with urllib.request.urlopen(server.url("/v1/models"), timeout=120) as answer:
        return json.load(answer)["data"][0]["id"]


def by_transformers(folder, adapter, tokens):
    model = class_of(folder).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                             experts_implementation="eager")
    if adapter:
        model = PeftModel.from_pretrained(model, str(adapter))
    with torch.no_grad():
        logits = model.double().eval()(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :-1]
    return logits.log_softmax(-1).numpy()


def language_model(name, way, folder):
    base, out = folder / "base", folder / "out"
    base.mkdir()
    config = json.loads((CONFIGS / f"tiny-{name}.json").read_text())
    (base / "config.json").write_text(json.dumps(config))
    seed = json.loads((GOLDEN / f"{name}.json").read_text())["weight_seed"]
    weights = {n: torch.from_numpy(tiny_weights(n, s, seed)) for n, s in checkpoint_shapes(base).items()}
    save_file(weights, str(base / "model.safetensors"), {"format": "pt"})
    write_number_tokenizer(base, config["vocab_size"])
    batch = samples(config["vocab_size"], OTHERS.get(name, LENGTHS))
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"text": " ".join(map(str, s))}) + "\n" for s in batch))
    finetune(base, data, way, out)
    model, adapter = (base, out) if way == "lora" else (out, None)
    ours, theirs = served(model, adapter, batch[0], config["vocab_size"]), by_transformers(model, adapter, batch[0])
    return ours, theirs, by_transformers(base, None, batch[0])


def encoder(name, way, folder):
    base, out = folder / "base", folder / "out"
    base.mkdir()
    config, kind = CASES[name]
    seed = fnv1a64(("classifier " + name).encode())
    model, tensors = build(config, kind, seed, "eager")
    (base / "config.json").write_text(json.dumps(config))
    save_file({t["name"]: torch.from_numpy(tiny_weights(t["name"], tuple(t["shape"]), seed)) for t in tensors},
              str(base / "model.safetensors"), {"format": "pt"})
    write_number_tokenizer(base, config["vocab_size"])
    texts = [" ".join(str(5 + (7 * k + 11 * j) % 90) for j in range(6)) for k in range(4)]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"text": t, "label": "ABC"[k % 3]}) + "\n" for k, t in enumerate(texts)))
    finetune(base, data, way, out)
    ids = list(map(int, texts[0].split()))
    with Server("--threads", "1", model=str(out)) as server:
        given = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": [0] * len(ids)}
        answer = ask(server, f"/v2/models/{ask_models(server)}/infer", {
            "inputs": [{"name": n, "shape": [1, len(ids)], "datatype": "INT64", "data": v} for n, v in given.items()]})
    ours = np.array(next(o["data"] for o in answer["outputs"] if o["name"] == "logits"))

    def logits(of):
        with torch.no_grad():
            return of.double().eval()(input_ids=torch.tensor([ids])).logits[0].numpy()
    return ours, logits(AutoModelForSequenceClassification.from_pretrained(out, dtype=torch.float32)), logits(model)


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    wrong = []
    for name in sys.argv[1:] or WAYS:
        for way in WAYS[name]:
            with tempfile.TemporaryDirectory() as temp:
                ours, theirs, before = (encoder if name in CASES else language_model)(name, way, Path(temp))
            difference, moved = float(np.abs(ours - theirs).max()), float(np.abs(theirs - before).max())
            print(f"{name} {way}: {difference:.2g}, moved by {moved:.2g}", flush=True)
            if not difference <= LARGEST * moved:
                wrong.append(f"{name} {way}")
    if wrong:
        sys.exit(f"not the same: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
