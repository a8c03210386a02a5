#!/usr/bin/env python3
"""Ten times what a server can do, for two minutes: how much of its best does it still do, and how fast does it refuse?

    tests/bench/overload.py [--oar build/release/bin/oar] [--seconds 120] [--server-cpus 0] [--client-cpus 1]

The server and `oar loadtest` have processors of their own, so that what the client takes is not counted against the server: by
default the first half of this machine's and the rest. First a closed loop with as many requests as the server has slots says what
its best is, before and after; then requests arrive at ten times that rate. Goodput is tokens of whole answers a second. Bounds: 97 %
of the best, and refusals within 5 ms (their 99th percentile). Wants a quiet machine. Exits with 1 when a bound does not hold.
"""
import argparse
import json
import os
import pathlib
import re
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


def main():
    cpus = sorted(os.sched_getaffinity(0))
    half = max(1, len(cpus) // 2)
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--oar", default=str(ROOT / "build/release/bin/oar"))
    p.add_argument("--seconds", type=float, default=120)
    p.add_argument("--server-cpus", default=",".join(map(str, cpus[:half])))
    p.add_argument("--client-cpus", default=",".join(map(str, cpus[half:] or cpus)))
    arguments = p.parse_args()
    server = subprocess.Popen(["taskset", "-c", arguments.server_cpus, arguments.oar, "serve", "demo", "--http", "127.0.0.1:0",
                               "--grpc", "", "--max-sequences", str(SLOTS), "--max-waiting", str(SLOTS)],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = next(m.group(0) for line in server.stdout if (m := re.search(r"http://[^ ]+:\d+", line)))
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            closed = ("-c", str(SLOTS), "--duration", str(min(20.0, arguments.seconds)))
            best = [good_tokens(*loadtest(arguments, url, folder, "before", "--warmup", "32", *closed))]
            rate = 10 * best[0] / TOKENS
            summary, requests = loadtest(arguments, url, folder, "over", "-r", f"{rate:.1f}", "--max-in-flight", "10000",
                                         "--duration", str(arguments.seconds))
            best.append(good_tokens(*loadtest(arguments, url, folder, "after", *closed)))
    finally:
        server.terminate()
        server.wait(timeout=120)
    kept = good_tokens(summary, requests) / max(best)
    refusals = sorted(r["end_ms"] - r["sent_ms"] for r in requests if r["http_status"] == 429)
    others = [r for r in requests if r["http_status"] not in (200, 429)]
    slow = refusals[int(len(refusals) * 0.99)] if refusals else float("nan")
    print(f"best {best[0]:.0f} and {best[1]:.0f} tokens/s; {len(requests)} requests at {rate:.0f}/s, {len(refusals)} refused, "
          f"{len(others)} neither answered nor refused")
    print(f"goodput {100 * kept:.1f} % of the best (bound {100 * GOODPUT:.0f}); refusals within {slow:.1f} ms (bound {REFUSAL_MS:g})")
    good = kept >= GOODPUT and slow <= REFUSAL_MS and not others
    print("held" if good else "NOT HELD")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
