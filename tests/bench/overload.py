#!/usr/bin/env python3
"""Ten times what a server can do, for two minutes: how much of its best does it still do, and how fast does it refuse?

    tests/bench/overload.py [--oar build/release/bin/oar] [--model demo] [--seconds 120] [--rounds 6]
                            [--server-cpus 0] [--client-cpus 1]

A closed loop with as many requests as the server has slots says what its best is; then requests arrive at ten times that rate.
Machines change their pace within seconds, so the two take turns, and a round's goodput is compared with the closed loops before
and after it. Bounds: 97 % of the best (the rounds' median), and refusals within 5 ms (their 99th percentile). Wants a quiet
machine. Exits with 1 when a bound does not hold.

What is compared has to be the same work:
- Every run has prompts of its own (`--seed`): with the same ones it finds those of the run before in the prefix cache, as far
  as that reaches back. On a slow machine that was 58 % of the prompts' tokens.
- Goodput is tokens of whole answers a second, over the time in which the load is steady: from the first answer's end to the
  last arrival. An answer's tokens are spread over the time from its request to its end, so what straddles a border counts in
  part. Answers of a large model take seconds, and a run's ends, where slots are empty, are not what an overload is about.

What the client takes is not counted against the server. They have processors of their own, by default the first half of this
machine's and the rest; and the client never sleeps (`--spin`), because a thread that sleeps is woken at the expense of whoever
sends to it. It also keeps its processors busy throughout: one is slower beside a busy neighbour of its core.
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOODPUT, REFUSAL_MS, SLOTS, TOKENS = 0.97, 5.0, 16, 32


def loadtest(arguments, url, folder, *more):
    """The requests of a run, each with prompts that no other has."""
    arguments.runs += 1
    lines = folder / f"{arguments.runs}.jsonl"
    done = subprocess.run(["taskset", "-c", arguments.client_cpus, arguments.oar, "loadtest", url, "--prompt-words", "64",
                           "--output-tokens", str(TOKENS), "--length-spread", "0", "--seed", str(arguments.runs), "--spin",
                           "--jsonl", str(lines), "--threads", "1", "-q", *more], capture_output=True, text=True, timeout=3600)
    if not lines.exists():
        sys.exit(f"oar loadtest failed: {done.stderr}{done.stdout}")
    return [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]


def good_tokens(requests):
    """Output tokens a second of requests that were answered whole, while the load is steady."""
    whole = [(r["sent_ms"], r["end_ms"]) for r in requests
             if r["http_status"] == 200 and not r["error"] and not r["cancelled"]]
    begin, end = min(e for _, e in whole), max(r["sent_ms"] for r in requests)
    if end - begin < 2 * statistics.median(e - s for s, e in whole):
        sys.exit("the rounds are too short for this model's answers; give more --seconds or fewer --rounds")
    inside = sum((min(e, end) - max(s, begin)) / (e - s) for s, e in whole if e > begin and s < end)
    return 1000 * TOKENS * inside / (end - begin)


def main():
    cpus = sorted(os.sched_getaffinity(0))
    half = max(1, len(cpus) // 2)
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--oar", default=str(ROOT / "build/release/bin/oar"))
    p.add_argument("--model", default="demo", help="what `oar serve` takes")
    p.add_argument("--seconds", type=float, default=120, help="of overload, all rounds together")
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--server-cpus", default=",".join(map(str, cpus[:half])))
    p.add_argument("--client-cpus", default=",".join(map(str, cpus[half:] or cpus)))
    arguments = p.parse_args()
    arguments.runs = 0
    server = subprocess.Popen(["taskset", "-c", arguments.server_cpus, arguments.oar, "serve", arguments.model,
                               "--http", "127.0.0.1:0", "--grpc", "", "--max-sequences", str(SLOTS), "--max-waiting", str(SLOTS)],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = next(m.group(0) for line in server.stdout if (m := re.search(r"http://[^ ]+:\d+", line)))
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            length = arguments.seconds / arguments.rounds
            closed = ("-c", str(SLOTS), "--duration", str(max(4.0, length / 2)))
            best = [good_tokens(loadtest(arguments, url, folder, "--warmup", "32", *closed))]
            over, requests = [], []
            for _ in range(arguments.rounds):
                rate = 10 * best[-1] / TOKENS
                lines = loadtest(arguments, url, folder, "-r", f"{rate:.1f}", "--max-in-flight", "10000",
                                 "--duration", str(length))
                over.append(good_tokens(lines))
                requests += lines
                best.append(good_tokens(loadtest(arguments, url, folder, *closed)))
    finally:
        server.terminate()
        server.wait(timeout=120)
    kept = statistics.median(2 * o / (before + after) for o, before, after in zip(over, best, best[1:]))
    refusals = sorted(r["end_ms"] - r["sent_ms"] for r in requests if r["http_status"] == 429)
    others = [r for r in requests if r["http_status"] not in (200, 429)]
    slow = refusals[int(len(refusals) * 0.99)] if refusals else float("nan")
    print(f"best {' '.join(f'{b:.0f}' for b in best)} tokens/s, overloaded {' '.join(f'{o:.0f}' for o in over)}")
    print(f"{len(requests)} requests at {len(requests) / arguments.seconds:.0f}/s, {len(refusals)} refused, "
          f"{len(others)} neither answered nor refused")
    print(f"goodput {100 * kept:.1f} % of the best (bound {100 * GOODPUT:.0f}); "
          f"refusals within {slow:.1f} ms (bound {REFUSAL_MS:g})")
    good = kept >= GOODPUT and slow <= REFUSAL_MS and not others
    print("held" if good else "NOT HELD")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
