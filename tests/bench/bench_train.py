#!/usr/bin/env python3
"""Finetuning beside PyTorch: tokens per second, their share of the arithmetic's peak, and the most memory, in turns.

    python tests/bench/bench_train.py [--rounds N] [--threads N] [--model 100m|demo] [--eager]
                                      [--rows full:f32,full:bf16,lora:f32,lora:bf16,lora:int4,full:f32:full,ranks:f32]

Wants torch, transformers and peft. The model is a random Llama of 100 M parameters (E 768, F 2048, 12 layers, 12 heads over 4,
V 32,000, tied), or the demo; a step is 4 samples of 256 tokens. PyTorch's side has scaled-dot-product attention and fused AdamW, eager and
compiled; the faster of each round counts (--eager: eager alone). bf16 is `--precision O2` (full) and O1 (adapters) here, which keep f32
weights, and bf16 throughout there. A third word is `--recompute`; anything but none is gradient checkpointing there. Memory is the peak of
resident pages less those before the model was loaded. A share is 6 operations a weight of a product and token, 4 with adapters, over the
peak that `oar bench --probe` finds in that round.

`ranks` has no PyTorch: it is --ranks 2 beside the sum of two runs of one thread at the same time.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
OAR = os.environ.get("OAR_BIN", str(ROOT / "build/release/bin/oar"))
STEPS, BATCH, LENGTH = 5, 4, 256
RANK = "rank=16,alpha=32,targets=all"


def status(key):
    for line in open("/proc/self/status", encoding="utf-8"):
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return 0.0


def peer(model, mode, dtype, recompute, compiled, threads):
    """The other side of one row, in a process of its own; prints a line of JSON."""
    import torch
    from transformers import LlamaForCausalLM
    torch.set_num_threads(threads)
    before = status("VmRSS")
    net = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32 if dtype == "f32" else torch.bfloat16,
                                           attn_implementation="sdpa")
    if mode == "lora":
        from peft import LoraConfig, get_peft_model
        layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        net = get_peft_model(net, LoraConfig(r=16, lora_alpha=32, target_modules=layers))
    if recompute != "none":
        net.gradient_checkpointing_enable({"use_reentrant": False})
        if mode == "lora":
            net.enable_input_require_grads()
    net.train()
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    run = torch.compile(net) if compiled else net
    ids = torch.randint(0, 500, (BATCH, LENGTH))
    seconds = []
    for _ in range(STEPS):
        start = time.time()
        run(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.time() - start)
    print(json.dumps({"tokens": BATCH * LENGTH / statistics.median(seconds[2:]), "mib": status("VmHWM") - before}))


class Run:
    """One run of ours; tokens() and mib() wait for its end."""

    def __init__(self, model, text, mode, dtype, folder, *more):
        self.log = pathlib.Path(folder) / "log.jsonl"
        out = pathlib.Path(folder) / "out"
        for left in (out, pathlib.Path(f"{out}.training")):
            subprocess.run(["rm", "-rf", str(left)], check=True)
        self.log.unlink(missing_ok=True)
        command = [OAR, "finetune", str(model), "--data", str(text), "--length", str(LENGTH), "--tokens", str(BATCH * LENGTH),
                   "--steps", str(STEPS), "--log", str(self.log), "-o", str(out), *more]
        command += ["--full"] if mode == "full" else ["--lora", RANK]
        if dtype == "int4":
            command += ["--weights", "int4"]
        if dtype != "f32":
            command += ["--precision", "O2" if mode == "full" else "O1"]
        self.times = []  # when each step's line appeared
        self.process = subprocess.Popen(["/usr/bin/time", "-f", "peak %M", *command], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)

    def look(self):
        """Notes new lines; whether it still runs."""
        lines = self.log.read_bytes().count(b"\n") if self.log.exists() else 0
        self.times += [time.monotonic()] * (lines - len(self.times))
        return self.process.poll() is None

    def tokens(self, tokens=BATCH * LENGTH):
        return tokens / statistics.median(b - a for a, b in zip(self.times[1:], self.times[2:]))

    def mib(self):
        said = self.process.stderr.read()
        if self.process.returncode != 0:
            raise SystemExit(said)
        return int(re.search(r"peak (\d+)", said)[1]) / 1024


def finish(*runs):
    while any([run.look() for run in runs]):  # each of them is looked at
        time.sleep(0.002)


def ours(model, text, mode, dtype, recompute, threads, folder):
    run = Run(model, text, mode, dtype, folder, "--threads", str(threads), *(["--recompute", recompute] if recompute else []))
    finish(run)
    return {"mib": run.mib(), "tokens": run.tokens()}


def ranks(model, text, dtype, folder):
    """Tokens per second of two ranks, and of two runs of one thread beside each other."""
    together = Run(model, text, "full", dtype, folder, "--threads", "1", "--ranks", "2")
    finish(together)
    together.mib()
    alone = []
    for n in range(2):
        own = pathlib.Path(folder) / str(n)
        own.mkdir(exist_ok=True)
        alone.append(Run(model, text, "full", dtype, own, "--threads", "1"))
    finish(*alone)
    for run in alone:
        run.mib()
    return together.tokens(2 * BATCH * LENGTH), sum(run.tokens() for run in alone)


def peak_of(dtype, threads):
    """Operations per second of the round's probe. Where no instruction multiplies bf16, the peak is that of f32."""
    said = subprocess.run([OAR, "bench", "--probe", "--json", "--repeat", "1", "--threads", str(threads)], capture_output=True, text=True,
                          check=True)
    peaks = json.loads(said.stdout.strip().splitlines()[-1])["peak_gop_per_second"]
    return 1e9 * max(value for name, value in peaks.items() if name.startswith("f32" if dtype == "f32" else ("f32", "bf16")))


def products_of(config):
    """Weights that each token is multiplied with: the layers' and the head's."""
    c = json.loads(config.read_text())
    E, heads = c["hidden_size"], c["num_attention_heads"]
    kv = c.get("num_key_value_heads", heads) * E // heads
    return c["num_hidden_layers"] * (2 * E * E + 2 * E * kv + 3 * E * c["intermediate_size"]) + E * c["vocab_size"]


def make_model(folder):
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
                         num_key_value_heads=4, max_position_embeddings=2048, tie_word_embeddings=True)
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((ROOT / "configs/demo" / name).read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--model", choices=["100m", "demo"], default="100m")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--rows", default="full:f32,full:bf16,lora:f32,lora:bf16,lora:int4")
    args = parser.parse_args()
    rows = [(row.split(":") + [""])[:3] for row in args.rows.split(",")]
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        model = ROOT / "configs/demo"
        if args.model == "100m":
            model = pathlib.Path(temporary) / "model"
            model.mkdir()
            make_model(model)
        text = ROOT / "configs/demo/heldout.txt"
        weights = products_of(model / "config.json")
        for n in range(args.rounds):
            for mode, dtype, recompute in rows:
                if mode == "ranks":
                    two, sum_of_two = ranks(model, text, dtype, temporary)
                    pair = {"tokens": two, "mib": 0, "share": 0}, {"tokens": sum_of_two, "mib": 1}
                    results.setdefault((mode, dtype, ""), []).append(pair)
                    print(f"round {n + 1}: two ranks {two:.0f} tokens/s, two runs {sum_of_two:.0f}", file=sys.stderr, flush=True)
                    continue
                mine = ours(model, text, mode, dtype, recompute, args.threads, temporary)
                mine["share"] = (6 if mode == "full" else 4) * weights * mine["tokens"] / peak_of(dtype, args.threads)
                theirs = []
                for compiled in ("0",) if args.eager else ("0", "1"):
                    made = subprocess.run(
                        [sys.executable, __file__, "peer", str(model), mode, "f32" if dtype == "f32" else "bf16", recompute or "none",
                         compiled, str(args.threads)], capture_output=True, text=True, check=True)
                    theirs.append(json.loads(made.stdout.strip().splitlines()[-1]))
                best = max(theirs, key=lambda t: t["tokens"])
                results.setdefault((mode, dtype, recompute), []).append((mine, best))
                print(f"round {n + 1}: {mode} {dtype} {recompute}: {mine['tokens']:.0f} tokens/s, {100 * mine['share']:.0f} % of the "
                      f"peak, {mine['mib']:.0f} MiB; PyTorch " + ", ".join(f"{t['tokens']:.0f}, {t['mib']:.0f}" for t in theirs),
                      file=sys.stderr, flush=True)
    print("| row | ours, tokens/s | share of the peak | PyTorch | ratio | ours, MiB | PyTorch, MiB | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for row, pairs in results.items():
        def median(f):
            return statistics.median(f(*pair) for pair in pairs)
        print(f"| {' '.join(row)} | {median(lambda m, t: m['tokens']):.0f} | {100 * median(lambda m, t: m['share']):.0f} % | "
              f"{median(lambda m, t: t['tokens']):.0f} | {median(lambda m, t: m['tokens'] / t['tokens']):.2f} | "
              f"{median(lambda m, t: m['mib']):.0f} | {median(lambda m, t: t['mib']):.0f} | "
              f"{median(lambda m, t: m['mib'] / t['mib']):.2f} |")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "peer":
        peer(*sys.argv[2:6], sys.argv[6] == "1", int(sys.argv[7]))
    else:
        main()
