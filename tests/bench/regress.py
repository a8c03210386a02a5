#!/usr/bin/env python3
"""Is this program as fast as an older one? Both run in turns; every row has a ratio and a bound.

    ./dev bench regress HEAD~20                       # builds that revision beside this one
    ./dev bench regress build/old/bin --rows 'llm/*'  # or a folder with its programs
    ./dev bench regress v0.1.0 --onnx FOLDER          # ordinary models: tests/bench/make_models.py FOLDER writes them

Rows: `llm/...` (the 1B shape of configs/bench with random weights: prompts, one stream, 16 streams, loading), `onnx/...`
(the usual ordinary models, those that FOLDER has) and `server/...` (64 clients of the default model). A ratio is new over old,
above 1 where the new program is faster. A row holds when the lower 95 % bound of the median of its ratios is at least 0.97.
Where noise makes that bound lower although the median is not, the instructions of a run decide: at most 1.02 of the old ones
(`perf stat`; where there is no counter the row is undecided). The geometric mean of all medians must be at least 0.99.
Prints a table, and exits with 1 when a bound does not hold, 3 when a row is undecided or missing. Standard library only.
"""
import argparse
import fnmatch
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_output as read  # noqa: E402
import bench_stats as stats  # noqa: E402
import k_quants  # noqa: E402
from bench_cpu import ROOT, Failure, run  # noqa: E402
from peers_onnx import TABLE  # noqa: E402

ROW_BOUND, INSTRUCTIONS_BOUND, MEAN_BOUND = 0.97, 1.02, 0.99
SHAPE = os.path.join(ROOT, "configs", "bench", "llama-1b.json")


class Side:
    """One of the two programs: a folder of programs, and a cache of quantized weights of its own."""

    def __init__(self, name, folder, work):
        self.name, self.folder = name, os.path.abspath(folder)
        self.cache = os.path.join(work, f"cache-{name}")
        if not os.path.exists(self.program("oar")):
            raise Failure(f"{folder} has no program `oar`")

    def program(self, name):
        return os.path.join(self.folder, name)


def revision(name, work):
    """The folder of the programs of a git revision, built once."""
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--verify", f"{name}^{{commit}}"], capture_output=True, text=True)
    if commit.returncode != 0:
        raise Failure(f"'{name}' is neither a folder with programs nor a revision of this repository")
    tree = os.path.join(work, commit.stdout.strip()[:12])
    programs = os.path.join(tree, "build", "release", "bin")
    if not os.path.exists(os.path.join(programs, "predictor_bench")):
        print(f"building {name} in {tree}", file=sys.stderr)
        if not os.path.exists(tree):
            run(["git", "-C", ROOT, "worktree", "add", "--detach", tree, commit.stdout.strip()], 300)
        run([os.path.join(tree, "dev"), "build", "release", "oar", "predictor_bench"], 7200)
    return programs


class LanguageModel:
    """Rows of one weight format: a run of `oar bench` gives all of them. `stem` names the rows."""

    def __init__(self, stem, model, weights, streams, threads):
        self.streams, self.command = streams, [
            "bench", model, "--json", "-q", "--repeat", "1", "--weights", weights, "--threads", str(threads),
            *(["--prompt-tokens", "128", "--gen-tokens", "64", "--streams", str(streams)] if streams > 1 else
              ["--prompt-tokens", "512", "--gen-tokens", "32"])]
        self.names = [f"{stem}, {streams} streams"] if streams > 1 else [
            f"{stem}, prompt of 512", f"{stem}, one stream", f"{stem}, load"]

    def full(self, side):
        return [side.program("oar"), *self.command, "--cache-dir", side.cache]

    def start(self, side):
        run(self.full(side), 3600)  # quantizes and keeps the weights

    def measure(self, side):
        values = read.last_json(run(self.full(side), 1800))
        decode = values["decode_tokens_per_second"]["median"]
        if self.streams > 1:
            return [decode]
        return [values["prefill_tokens_per_second"]["median"], decode, 1 / values["load_seconds"]]

    def stop(self):
        pass


class OrdinaryModel:
    """predictor_bench of both sides stays open, so that a turn is runs alone."""

    def __init__(self, path, specs, threads, precision="f32"):
        shape = specs.split()[0].split("=")[1]
        self.names = [f"onnx/{os.path.basename(path)[:-5]} {shape}" + ("" if precision == "f32" else f" {precision}")]
        self.command = [path, "--threads", str(threads), "--precision", precision, "--serve"]
        for spec in specs.split():
            self.command += ["--input", spec]
        self.open, self.runs = {}, {}

    def full(self, side):
        return [side.program("predictor_bench"), *self.command]

    def start(self, side):
        process = subprocess.Popen(self.full(side), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first = process.stdout.readline().split()
        if len(first) < 2:
            raise Failure(f"predictor_bench of {side.name} does not run {self.names[0]}")
        self.open[side.name] = process
        self.runs[side.name] = max(3, min(30, round(200 / max(float(first[1]), 0.1))))

    def measure(self, side):
        process = self.open[side.name]
        process.stdin.write(f"{max(self.runs.values()) + 1}\n")
        process.stdin.flush()
        times = [float(t) for t in process.stdout.readline().split()][1:]
        return [1 / statistics.median(times)]

    def stop(self):
        for process in self.open.values():
            process.stdin.close()
            process.wait()


class Server:
    """The default model behind HTTP: requests are short, so that the server is what is measured."""

    names = ["server/64 clients of demo, output tokens per second"]

    def __init__(self, new, threads, work):
        self.client, self.threads, self.work, self.open = new, threads, work, {}

    def full(self, side):
        return [side.program("oar"), "serve", "demo", "--http", "127.0.0.1:0", "--grpc", "", "--threads", str(self.threads)]

    def start(self, side):
        command = self.full(side)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in process.stdout:
            port = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if port:
                self.open[side.name] = (process, port[1])
                return
        raise Failure(f"the server of {side.name} did not start")

    def measure(self, side):
        report = os.path.join(self.work, "loadtest.json")
        run([self.client.program("oar"), "loadtest", f"http://127.0.0.1:{self.open[side.name][1]}", "-c", "64", "-n", "512",
             "--prompt-words", "32", "--output-tokens", "32", "--json", report], 600)
        with open(report, encoding="utf-8") as file:
            return [json.load(file)["output_throughput"]]

    def stop(self):
        for process, _ in self.open.values():
            process.terminate()
            process.communicate()


def instructions(case, side):
    """User instructions of a run, or None where there is no counter, or no end of the run."""
    if shutil.which("perf") is None or isinstance(case, Server):
        return None
    command = case.full(side)
    done = subprocess.run(["perf", "stat", "-x", ",", "-e", "instructions:u", *command], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=1800)
    found = re.search(r"^(\d+),[^,]*,instructions", done.stderr, re.M)
    return int(found[1]) if done.returncode == 0 and found else None


def verdict(ratios, counts):
    """(median, lower bound, "holds" | "slower" | "undecided"); `counts` gives (old, new) instructions, or None."""
    median, low = statistics.median(ratios), stats.lower_bound_of_median(ratios)
    if low is not None and low >= ROW_BOUND:
        return median, low, "holds"
    if median < ROW_BOUND:
        return median, low, "slower"
    old_new = counts()
    if old_new is None or None in old_new:
        return median, low, "undecided"
    return median, low, "holds" if old_new[1] <= INSTRUCTIONS_BOUND * old_new[0] else "slower"


def cases(options, new, work):
    """All cases, and the rows that cannot be made here with the reason."""
    made, missing = [], []
    wanted = lambda names: any(fnmatch.fnmatch(n, options.rows) for n in names)  # noqa: E731
    language = [(w, s) for w in ("bf16", "int8", "int4") for s in (1, 16) if s == 1 or w == "int4"]
    if wanted(["llm/1b"]) or options.rows.startswith("llm"):
        print(f"random weights of {SHAPE}", file=sys.stderr)
        out = run([new.program("oar"), "bench", "--shape", SHAPE, "--keep", "--cache-dir", work, "--json", "-q", "--repeat", "1",
                   "--prompt-tokens", "16", "--gen-tokens", "2"], 3600)
        folder = read.our_bench(out)["folder"]
        made += [LanguageModel(f"llm/1b {w}", folder, w, s, options.threads) for w, s in language]
        file = os.path.join(work, "llama-1b.Q4_K_M.gguf")
        if not os.path.exists(file):
            k_quants.write(SHAPE, file)
        made.append(LanguageModel("llm/1b Q4_K_M", file, "auto", 1, options.threads))
    table = [(name, specs, "f32") for name, specs in TABLE] + [("resnet50.onnx", "x=1x3x224x224", "bf16")]
    for name, specs, precision in table:
        path = os.path.join(options.onnx or "", name)
        case = OrdinaryModel(path, specs, options.threads, precision)
        if not wanted(case.names):
            continue
        if options.onnx and os.path.exists(path):
            made.append(case)
        else:
            missing.append((case.names[0], f"no {path}" if options.onnx else "no --onnx"))
    made.append(Server(new, options.threads, work))
    return [case for case in made if wanted(case.names)], missing


def rows_of(case, old, new, rounds):
    """[(name, ratios)] of a case whose two sides take turns; who begins alternates."""
    ratios = [[] for _ in case.names]
    try:
        for side in (old, new):
            case.start(side)
        for number in range(rounds):
            order = (old, new) if number % 2 == 0 else (new, old)
            values = {side.name: case.measure(side) for side in order}
            for k, per_row in enumerate(ratios):
                per_row.append(values[new.name][k] / values[old.name][k])
    finally:
        case.stop()
    return list(zip(case.names, ratios))


def main(arguments):
    about, _, more = __doc__.partition("\n\n")
    p = argparse.ArgumentParser(prog="./dev bench regress", description=about, epilog=more,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("old", metavar="OLD", help="a git revision, or a folder with its programs")
    p.add_argument("--rows", default="*", help="a pattern of names, such as 'llm/*int4*'")
    p.add_argument("--rounds", type=int, default=8)
    p.add_argument("--minutes", type=float, default=40, help="no case is begun after this")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--onnx", metavar="FOLDER", help="ordinary models (tests/bench/make_models.py)")
    p.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"), help="folder of the new programs")
    p.add_argument("--work", default=os.path.join(ROOT, "build", "regress"))
    options = p.parse_args(arguments)
    if options.rounds < 5:
        p.error("--rounds: fewer than 5 give no lower bound")
    work = os.path.abspath(options.work)
    os.makedirs(work, exist_ok=True)
    try:
        new = Side("new", options.bin, work)
        old = Side("old", options.old if os.path.isdir(options.old) else revision(options.old, work), work)
        todo, undone = cases(options, new, work)
    except Failure as failure:
        p.error(str(failure))
    began, medians, results = time.monotonic(), [], []
    for case in todo:
        if time.monotonic() - began > 60 * options.minutes:
            undone += [(name, f"not begun within {options.minutes:g} minutes") for name in case.names]
            continue
        try:
            rows = rows_of(case, old, new, options.rounds)
        except (Failure, KeyError, ValueError, OSError) as failure:
            undone += [(name, str(failure)) for name in case.names]
            continue
        for name, ratios in rows:
            median, low, state = verdict(ratios, lambda case=case: (instructions(case, old), instructions(case, new)))
            medians.append(median)
            results.append({"name": name, "median": median, "lower": low, "state": state, "ratios": ratios})
            print(f"{name:58s} {median:6.3f}  at least {low:6.3f}  {state}", flush=True)
    for name, why in undone:
        print(f"{name:58s} missing: {why}")
    mean = math.exp(statistics.fmean(map(math.log, medians))) if medians else float("nan")
    print(f"geometric mean of {len(medians)} rows: {mean:.3f} (bound {MEAN_BOUND})")
    with open(os.path.join(work, "regress.json"), "w", encoding="utf-8") as file:
        json.dump({"rows": results, "missing": undone, "mean": mean}, file, indent=1)
    states = {row["state"] for row in results}
    if "slower" in states or (medians and mean < MEAN_BOUND):
        return 1
    return 3 if undone or "undecided" in states or not medians else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
