#!/usr/bin/env python3
"""Ten times what a server can do, for two minutes: how much of its best does it still do, and how fast does it refuse?

    tests/bench/overload.py [--oar build/release/bin/oar] [--seconds 120] [--rounds 6] [--server-cpus 0] [--client-cpus 1]

The server and `oar loadtest` have processors of their own, so that what the client takes is not counted against the server: by
default the first half of this machine's and the rest. A closed loop with as many requests as the server has slots says what its best
is; then requests arrive at ten times that rate. Machines change their pace within seconds, so the two take turns, and a round's
goodput is compared with the closed loops before and after it. An idler keeps the client's processors busy throughout: a processor is
slower beside a busy neighbour of its core. Goodput is tokens of whole answers a second. Bounds: 97 % of the best (the rounds' median),
and refusals within 5 ms (their 99th percentile). Wants a quiet machine. Exits with 1 when a bound does not hold.
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


def loadtest(arguments, url, folder, name, *more):
    """The summary of a run and its requests."""
    summary, lines = folder / f"{name}.json", folder / f"{name}.jsonl"
    done = subprocess.run(["taskset", "-c", arguments.client_cpus, arguments.oar, "loadtest", url, "--prompt-words", "64",
                           "--output-tokens", str(TOKENS), "--length-spread", "0", "--json", str(summary), "--jsonl", str(lines),
                           "--threads", "1", "-q", *more], capture_output=True, text=True, timeout=3600)
    if not summary.exists():
        sys.exit(f"oar loadtest failed: {done.stderr}{done.stdout}")
    return (json.loads(summary.read_text(encoding="utf-8")),
            [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()])


def good_tokens(summary, requests):
    """Output tokens a second of requests that were answered whole."""
    whole = [r for r in requests if r["http_status"] == 200 and not r["error"] and not r["cancelled"]]
    return len(whole) * TOKENS / summary["duration"]


def idle_beside(cpus):
    """A process for each of these processors that takes what nobody else wants there."""
    code = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    return [subprocess.Popen(["taskset", "-c", cpu, sys.executable, "-c", code]) for cpu in cpus.split(",")]


def main():
    cpus = sorted(os.sched_getaffinity(0))
    half = max(1, len(cpus) // 2)
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--oar", default=str(ROOT / "build/release/bin/oar"))
    p.add_argument("--seconds", type=float, default=120, help="of overload, all rounds together")
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--server-cpus", default=",".join(map(str, cpus[:half])))
    p.add_argument("--client-cpus", default=",".join(map(str, cpus[half:] or cpus)))
    arguments = p.parse_args()
    server = subprocess.Popen(["taskset", "-c", arguments.server_cpus, arguments.oar, "serve", "demo", "--http", "127.0.0.1:0",
                               "--grpc", "", "--max-sequences", str(SLOTS), "--max-waiting", str(SLOTS)],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    idlers = idle_beside(arguments.client_cpus)
    try:
        url = next(m.group(0) for line in server.stdout if (m := re.search(r"http://[^ ]+:\d+", line)))
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            length = arguments.seconds / arguments.rounds
            closed = ("-c", str(SLOTS), "--duration", str(max(4.0, length / 2)))
            best = [good_tokens(*loadtest(arguments, url, folder, "best0", "--warmup", "32", *closed))]
            rate, over, requests = 10 * best[0] / TOKENS, [], []
            for k in range(arguments.rounds):
                summary, lines = loadtest(arguments, url, folder, f"over{k}", "-r", f"{rate:.1f}", "--max-in-flight", "10000",
                                          "--duration", str(length))
                over.append(good_tokens(summary, lines))
                requests += lines
                best.append(good_tokens(*loadtest(arguments, url, folder, f"best{k + 1}", *closed)))
    finally:
        for idler in idlers:
            idler.kill()
        server.terminate()
        server.wait(timeout=120)
    kept = statistics.median(2 * o / (before + after) for o, before, after in zip(over, best, best[1:]))
    refusals = sorted(r["end_ms"] - r["sent_ms"] for r in requests if r["http_status"] == 429)
    others = [r for r in requests if r["http_status"] not in (200, 429)]
    slow = refusals[int(len(refusals) * 0.99)] if refusals else float("nan")
    print(f"best {' '.join(f'{b:.0f}' for b in best)} tokens/s, overloaded {' '.join(f'{o:.0f}' for o in over)}")
    print(f"{len(requests)} requests at {rate:.0f}/s, {len(refusals)} refused, "
          f"{len(others)} neither answered nor refused")
    print(f"goodput {100 * kept:.1f} % of the best (bound {100 * GOODPUT:.0f}); refusals within {slow:.1f} ms (bound {REFUSAL_MS:g})")
    good = kept >= GOODPUT and slow <= REFUSAL_MS and not others
    print("held" if good else "NOT HELD")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
