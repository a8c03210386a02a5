#!/usr/bin/env python3
"""Held-out perplexity of a model folder, computed in float32 from the weights as stored (bf16) with transformers.

    python3 train/demo/evaluate.py configs/demo

Writes heldout.json into the folder and prints a few replies. PROTOCOL states what the number means, so that another
engine can repeat it.
"""

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers

PROTOCOL = (
    "heldout.txt is tokenized whole, without special tokens. The ids are cut into consecutive windows of context - 1 "
    "ids (the last one shorter); each window is evaluated alone, preceded by one BOS. Every id is predicted once, from "
    "the BOS and the ids before it in its window. nll is the sum of -ln p; perplexity = exp(nll / tokens); "
    "bits_per_byte = nll / ln 2 / bytes. Weights as stored (bf16), arithmetic in float32.")


@torch.no_grad()
def held_out_nll(model: torch.nn.Module, ids: list[int], bos: int, context: int) -> float:
    """Sum of -ln p over ids, by PROTOCOL."""
    total = 0.0
    for start in range(0, len(ids), context - 1):
        window = torch.tensor(ids[start:start + context - 1])
        inputs = torch.cat((torch.tensor([bos]), window[:-1]))
        logits = model(inputs[None]).logits[0]
        total += F.cross_entropy(logits, window, reduction="none").double().sum().item()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prompts", nargs="*", default=[
        "Good morrow! What news from the palace?", "Hello, who are you?", "What do you think about love?"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()

    text = (args.folder / "heldout.txt").read_bytes()
    ids = tokenizer.encode(text.decode("utf-8"), add_special_tokens=False)
    context = model.config.max_position_embeddings
    nll = held_out_nll(model, ids, tokenizer.bos_token_id, context)
    record = {
        "file": "heldout.txt", "bytes": len(text), "tokens": len(ids), "context": context, "nll_f32": round(nll, 3),
        "perplexity_f32": round(math.exp(nll / len(ids)), 5),
        "bits_per_byte": round(nll / math.log(2) / len(text), 5), "protocol": PROTOCOL}
    (args.folder / "heldout.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in record.items() if k != "protocol"}))

    for seed, prompt in enumerate(args.prompts, args.seed):
        torch.manual_seed(seed)
        inputs = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True,
                                               return_tensors="pt", return_dict=True)
        output = model.generate(**inputs)[0, inputs["input_ids"].shape[1]:]
        print(f"\n> {prompt}\n{tokenizer.decode(output)}")


if __name__ == "__main__":
    main()
