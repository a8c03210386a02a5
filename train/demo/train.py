#!/usr/bin/env python3
"""Trains the embedded default model and writes its folder in the Hugging Face layout. One command does it all:

    python3 train/demo/train.py --text DIR --out configs/demo

DIR holds tinyshakespeare.txt and botchan.txt (corpus.py has their checksums). The run is a function of the options
and the seed for one machine type and thread count; it needs torch, tokenizers and safetensors, and about 20 minutes
of two threads of a CPU that multiplies bf16 natively (AMX). The folder is rewritten whenever the held-out loss
improves, so a run that is stopped early leaves the best model so far. evaluate.py then records the perplexity of what
was written.

The text is tiny (about 0.45 million tokens), so the enemy is memorizing it: dropout, weight decay, many random cuts
of the same text, averaged weights, and the held-out loss decides which weights are kept.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from corpus import ASSISTANT, BOS, END, EOS, Conversations, Corpus, read_corpus, speeches
from evaluate import held_out_nll
from model import Llama, Shape
from tokenizer import save_tokenizer, stop_ids, tokenizer_config, train_tokenizer

IGNORE = -100  # target of tokens that are not predicted
# Row lengths, and how often each is drawn: short rows are cheap and see many beginnings, long ones teach the context.
LENGTHS, LENGTH_WEIGHTS = (256, 512, 1024, 2048), (0.45, 0.35, 0.12, 0.08)
# What a row holds. The plays are 4.3 times as long as the novel.
KINDS, KIND_WEIGHTS = ("plays", "novel", "chat"), (0.42, 0.13, 0.45)


class Batches:
    """Random rows of token ids and targets, (B, T) each, with B * T constant."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, tokens: int, seed: int):
        self._rng = random.Random(seed)
        self._encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self._id = tokenizer.token_to_id
        self._plain = {"plays": self._encode(corpus.plays), "novel": self._encode(corpus.novel)}
        self._conversations = Conversations(speeches(corpus.plays))
        self._tokens = tokens

    def next(self) -> tuple[Tensor, Tensor]:
        length = self._rng.choices(LENGTHS, LENGTH_WEIGHTS)[0]
        rows = [self._row(length + 1) for _ in range(self._tokens // length)]
        ids = torch.tensor([r[0][:-1] for r in rows])
        targets = torch.tensor([r[1][1:] for r in rows])
        return ids, targets

    def _row(self, length: int) -> tuple[list[int], list[int]]:
        kind = self._rng.choices(KINDS, KIND_WEIGHTS)[0]
        if kind == "chat": return self._chat(length)
        text = self._plain[kind]
        start = self._rng.randrange(len(text) - length)
        row = [self._id(BOS)] + text[start:start + length - 1]
        return row, row

    def _chat(self, length: int) -> tuple[list[int], list[int]]:
        ids, targets = [], []
        while len(ids) < length:
            self._append(ids, targets, [self._id(BOS)], learn=False)
            for turn in self._conversations.draw(self._rng):
                # Whoever writes a conversation gives the role tokens; only the model's own end of turn matters, but the
                # end of a learned speech costs nothing.
                self._append(ids, targets, [self._id(turn.role)], learn=False)
                self._append(ids, targets, self._encode(turn.text) + [self._id(END)], turn.learn)
            self._append(ids, targets, [self._id(EOS)], learn=turn.role == ASSISTANT)
        return ids[:length], targets[:length]

    @staticmethod
    def _append(ids: list[int], targets: list[int], more: list[int], learn: bool) -> None:
        ids += more
        targets += more if learn else [IGNORE] * len(more)


class Average:
    """Exponential moving average of the weights: generalizes better than the last step's and smooths the choice."""

    def __init__(self, model: Llama, decay: float):
        self.model = Llama(model.shape)
        self.model.load_state_dict(model.state_dict())
        self.model.eval()
        self._decay, self._step = decay, 0

    @torch.no_grad()
    def update(self, model: Llama) -> None:
        self._step += 1
        decay = min(self._decay, self._step / (self._step + 10))  # follow closely at first
        for mean, now in zip(self.model.parameters(), model.parameters()):
            mean.lerp_(now, 1 - decay)


def learning_rate(step: int, args: argparse.Namespace) -> float:
    if step < args.warmup: return args.lr * (step + 1) / args.warmup
    progress = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def export(model: Llama, tokenizer: Tokenizer, corpus: Corpus, folder: Path) -> None:
    """Writes everything but heldout.json and the README. The weights are replaced atomically."""
    shape = model.shape
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer, folder)
    bos, eos = tokenizer.token_to_id(BOS), stop_ids(tokenizer)
    _write_json(folder / "tokenizer_config.json", tokenizer_config(shape.context))
    _write_json(folder / "generation_config.json", {
        "bos_token_id": bos, "eos_token_id": eos, "do_sample": True, "temperature": 0.8, "top_p": 0.95,
        "max_new_tokens": 256})
    _write_json(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape.vocab,
        "hidden_size": shape.width, "intermediate_size": shape.ffn, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context, "rope_theta": shape.rope_theta, "rope_scaling": None,
        "rms_norm_eps": shape.norm_eps, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": True, "initializer_range": 0.02, "bos_token_id": bos, "eos_token_id": eos,
        "torch_dtype": "bfloat16", "use_cache": True})
    (folder / "heldout.txt").write_text(corpus.held_out, encoding="utf-8")
    weights = {f"model.{name}": p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}
    partial = folder / "model.safetensors.part"
    save_file(weights, str(partial), metadata={"format": "pt"})
    partial.chmod(0o644)
    partial.rename(folder / "model.safetensors")


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="folder with tinyshakespeare.txt and botchan.txt")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--steps", type=int, default=3600)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=150)
    parser.add_argument("--dropout", type=float, default=0.15)
    parser.add_argument("--token-dropout", type=float, default=0.0)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--average", type=float, default=0.995, help="decay of the weights' moving average")
    parser.add_argument("--evaluate-every", type=int, default=100)
    parser.add_argument("--patience", type=int, default=2, help="evaluations without improvement before stopping")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    corpus = read_corpus(args.text)
    tokenizer = train_tokenizer(corpus)
    batches = Batches(corpus, tokenizer, args.batch_tokens, args.seed)
    held_out = tokenizer.encode(corpus.held_out, add_special_tokens=False).ids
    bos = tokenizer.token_to_id(BOS)

    model = Llama(Shape(vocab=tokenizer.get_vocab_size()), args.dropout, args.token_dropout)
    average = Average(model, args.average)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    norms = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": args.weight_decay},
                                   {"params": norms, "weight_decay": 0.0}], lr=args.lr, betas=(0.9, 0.95))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(held_out):,} held-out tokens", flush=True)

    best, since_best, start = math.inf, 0, time.monotonic()
    for step in range(args.steps):
        for group in optimizer.param_groups: group["lr"] = learning_rate(step, args)
        ids, targets = batches.next()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update(model)

        if (step + 1) % args.evaluate_every and step + 1 < args.steps: continue
        with torch.autocast("cpu", dtype=torch.bfloat16):
            nll = held_out_nll(average.model, held_out, bos, average.model.shape.context) / len(held_out)
        improved = nll < best
        print(f"step {step + 1:5d}  train {loss.item():.3f}  held out {nll:.4f}  ppl {math.exp(nll):.2f}"
              f"  {time.monotonic() - start:.0f} s{'  saved' if improved else ''}", flush=True)
        if improved:
            best, since_best = nll, 0
            export(average.model, tokenizer, corpus, args.out)
        else:
            since_best += 1
            if since_best == args.patience: break


if __name__ == "__main__":
    main()
