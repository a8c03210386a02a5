#!/usr/bin/env python3
"""Finetuning beside PyTorch: tokens per second and the most memory, in turns.

    python tests/bench/bench_train.py [--rounds N] [--threads N] [--rows full:f32,full:bf16,lora:f32,lora:bf16,lora:int4]

Wants torch, transformers and peft. The model is a random Llama of 125 M parameters (E 768, F 2048, 12 layers, 12 heads over 4,
V 32,000), a step is 4 samples of 256 tokens. PyTorch's side has scaled-dot-product attention and fused AdamW, eager and compiled; the
faster of each round counts. bf16 is `--precision O2` (full) and O1 (adapters) here, which keep f32 weights, and bf16 throughout
there. Memory is the peak of resident pages less those before the model was loaded.
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


def peer(model, mode, dtype, compiled, threads):
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


def ours(model, text, mode, dtype, threads, folder):
    out = pathlib.Path(folder) / "out"
    for left in (out, pathlib.Path(f"{out}.training")):
        subprocess.run(["rm", "-rf", str(left)], check=True)
    command = [OAR, "finetune", str(model), "--data", str(text), "--length", str(LENGTH), "--tokens", str(BATCH * LENGTH),
               "--steps", str(STEPS), "--threads", str(threads), "--log", str(pathlib.Path(folder) / "log.jsonl"), "-o", str(out)]
    command += ["--full"] if mode == "full" else ["--lora", RANK]
    if dtype == "int4":
        command += ["--weights", "int4"]
    if dtype != "f32":
        command += ["--precision", "O2" if mode == "full" else "O1"]
    log = pathlib.Path(folder) / "log.jsonl"
    log.unlink(missing_ok=True)
    with subprocess.Popen(["/usr/bin/time", "-f", "peak %M", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True) as run:
        times = []  # when each step's line appeared
        while run.poll() is None:
            lines = log.read_bytes().count(b"\n") if log.exists() else 0
            times += [time.monotonic()] * (lines - len(times))
            time.sleep(0.002)
        said = run.stderr.read()
    if run.returncode != 0:
        raise SystemExit(said)
    seconds = [b - a for a, b in zip(times[1:], times[2:])]
    return {"tokens": BATCH * LENGTH / statistics.median(seconds), "mib": int(re.search(r"peak (\d+)", said)[1]) / 1024}


def make_model(folder):
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
                         num_key_value_heads=4, max_position_embeddings=2048, tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((ROOT / "configs/demo" / name).read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rows", default="full:f32,full:bf16,lora:f32,lora:bf16,lora:int4")
    args = parser.parse_args()
    rows = [row.split(":") for row in args.rows.split(",")]
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        model = pathlib.Path(temporary) / "model"
        model.mkdir()
        make_model(model)
        text = ROOT / "configs/demo/heldout.txt"
        for n in range(args.rounds):
            for mode, dtype in rows:
                mine = ours(model, text, mode, dtype, args.threads, temporary)
                theirs = []
                for compiled in ("0", "1"):
                    made = subprocess.run(
                        [sys.executable, __file__, "peer", str(model), mode, "f32" if dtype == "f32" else "bf16", compiled,
                         str(args.threads)], capture_output=True, text=True, check=True)
                    theirs.append(json.loads(made.stdout.strip().splitlines()[-1]))
                best = max(theirs, key=lambda t: t["tokens"])
                results.setdefault((mode, dtype), []).append((mine, best))
                print(f"round {n + 1}: {mode} {dtype}: {mine['tokens']:.0f} tokens/s, {mine['mib']:.0f} MiB; "
                      f"PyTorch {best['tokens']:.0f}, {best['mib']:.0f}", file=sys.stderr, flush=True)
    print("| row | ours, tokens/s | PyTorch | ratio | ours, MiB | PyTorch, MiB | ratio |\n|---|---|---|---|---|---|---|")
    for (mode, dtype), pairs in results.items():
        def median(f):
            return statistics.median(f(*pair) for pair in pairs)
        print(f"| {mode} {dtype} | {median(lambda m, t: m['tokens']):.0f} | {median(lambda m, t: t['tokens']):.0f} | "
              f"{median(lambda m, t: m['tokens'] / t['tokens']):.2f} | {median(lambda m, t: m['mib']):.0f} | "
              f"{median(lambda m, t: t['mib']):.0f} | {median(lambda m, t: m['mib'] / t['mib']):.2f} |")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "peer":
        peer(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5] == "1", int(sys.argv[6]))
    else:
        main()
