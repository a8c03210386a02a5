#!/usr/bin/env python3
"""How fast Oar is on this machine's processors, beside what the machine can do and beside llama.cpp.

    ./dev bench cpu --quick
    ./dev bench cpu --parts machine,attention --rounds 9
    ./dev bench cpu --models 1b --weights int4,int8 --peer clang=/opt/llama.cpp/build/bin \\
        --peer-model 1b:int4=llama-1b-q4_0.gguf --peer-model 1b:int8=llama-1b-q8_0.gguf

Parts: `machine` (memory reads, peaks of arithmetic), `matmul` and `attention` (every kernel as percent of the nearer
roof), `models` (whole models of the shapes in configs/bench with random weights, or --model 1b=PATH). In each round of
`models` the machine is probed, then ours and every peer run the same scenario; a figure is the median over rounds, a
ratio the median of the rounds' ratios to the fastest peer (build and flash attention) of that round. A round whose probe
shows far less than the usual peak is set aside and counted. Writes results.json, results.md and results.svg to --out.

A peer is a folder with llama-bench, and llama-batched-bench for several streams; where it has llama-sweep-bench
(ik_llama.cpp) that is read too. The random weights of an 8B shape take 16 GB of disk (--work, default /var/tmp).
Standard library only.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_output as read  # noqa: E402
import bench_report  # noqa: E402
import bench_stats as stats  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# What whole models are asked for. `what`: which figures count. Peers' token generation starts behind nothing, as
# llama-bench does; ours behind the prompt. `asked`: takes minutes a round, so only where --scenario names it.
SCENARIOS = {
    "prompt of 512, 32 tokens": dict(prompt=512, gen=32, what=("prefill", "decode")),
    "prompt of 4096": dict(prompt=4096, gen=2, what=("prefill",)),
    "16 streams of 128 and 64": dict(prompt=128, gen=64, streams=16, what=("decode",)),
    "64 streams of 128 and 64": dict(prompt=128, gen=64, streams=64, what=("decode",)),
    "32 tokens behind 1024": dict(prompt=64, gen=32, context=1024, what=("decode",), asked=True),
    "32 tokens behind 16384": dict(prompt=64, gen=32, context=16384, what=("decode",)),
    "32 tokens behind 32768": dict(prompt=64, gen=32, context=32768, what=("decode",), asked=True),
}
QUICK = ("prompt of 512, 32 tokens",)


class Failure(Exception):
    pass


def run(command, seconds, stderr=False):
    """Standard output of a program, and its errors on request; Failure says what it was and how it ended."""
    name = os.path.basename(command[0])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except FileNotFoundError:
        raise Failure(f"{command[0]} is missing") from None
    except subprocess.TimeoutExpired:
        raise Failure(f"{name} took more than {seconds} s: {' '.join(command[1:])}") from None
    if done.returncode != 0:
        raise Failure(f"{name} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout + (done.stderr if stderr else "")


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return names[0] if names else "unknown processor"


class Ours:
    def __init__(self, folder, threads):
        self.folder, self.threads = folder, threads

    def program(self, name):
        return os.path.join(self.folder, name)

    def probe(self, rounds):
        out = read.last_json(run([self.program("oar"), "bench", "--probe", "--json", "--repeat", str(rounds),
                                  "--threads", str(self.threads)], 300))
        return {
            "cpu": processor(),
            "threads": out["threads"],
            "isa": out["isa"],
            "read": out["read_gb_per_second"] * 1e9,
            "read_one_thread": out["read_one_thread_gb_per_second"] * 1e9,
            "peaks": {name: peak * 1e9 for name, peak in out["peak_gop_per_second"].items()},
        }

    def kernels(self, program, rounds, arguments):
        threads = ["--threads", str(self.threads)] if self.threads else []
        out = run([self.program(program), "--json", "--rounds", str(rounds), *threads, *arguments], 3600)
        return [stats.kernel_row(case) for case in read.our_kernels(out)["cases"]]

    def model(self, model, weights, scenario, kv):
        s = scenario
        command = [self.program("oar"), "bench", model, "--json", "-q", "--repeat", "1", "--weights", weights,
                   "--threads", str(self.threads), "--prompt-tokens", str(s["prompt"]), "--gen-tokens", str(s["gen"]),
                   "--streams", str(s.get("streams", 1))]
        if s.get("context"):
            command += ["--context", str(s["context"])]
        if kv:
            command += ["--kv", kv]
        return read.our_bench(run(command, 1800))

    def make_model(self, shape, work):
        """A folder with random weights of a shape, written tensor by tensor."""
        out = run([self.program("oar"), "bench", "--shape", shape, "--keep", "--cache-dir", work, "--json", "-q",
                   "--repeat", "1", "--prompt-tokens", "16", "--gen-tokens", "2", "--threads", str(self.threads)], 3600)
        return read.our_bench(out)["folder"]


class Peer:
    """A build of llama.cpp or ik_llama.cpp."""

    def __init__(self, name, folder, threads):
        self.name, self.folder, self.threads = name, folder, threads

    def rates(self, model, scenario):
        """{label: {"prefill", "decode"}} of a scenario: flash attention off and on."""
        s, out = scenario, {}
        streams, context = s.get("streams", 1), s.get("context", 0)
        for flash in (0, 1):
            label = f"{self.name}, fa {flash}"
            if streams > 1:
                total = streams * (s["prompt"] + s["gen"])
                rows = read.llama_table(run(
                    [os.path.join(self.folder, "llama-batched-bench"), "-m", model, "-t", str(self.threads), "-c", str(total),
                     "-b", "2048", "-ub", "512", "-npp", str(s["prompt"]), "-ntg", str(s["gen"]), "-npl", str(streams),
                     "-fa", ("off", "on")[flash]], 1800, stderr=True))
                out[label] = {"prefill": rows[-1]["prefill"], "decode": rows[-1]["decode"]}
                continue
            rates = {}
            depth = ["-d", str(context)] if context else []  # an option that ik_llama.cpp does not know
            tests = [("prefill", s["prompt"], 0)] if "prefill" in s["what"] else []
            tests += [("decode", 0, s["gen"])] if "decode" in s["what"] else []
            for what, prompt, gen in tests:
                rates[what] = read.llama_bench(run(
                    [os.path.join(self.folder, "llama-bench"), "-m", model, "-t", str(self.threads), "-p", str(prompt),
                     "-n", str(gen), *depth, "-r", "1", "-fa", str(flash), "-o", "json"], 1800))[0]["rate"]
            out[label] = rates
        if streams == 1 and context == 0 and os.path.exists(os.path.join(self.folder, "llama-sweep-bench")):
            rows = read.llama_table(run(
                [os.path.join(self.folder, "llama-sweep-bench"), "-m", model, "-t", str(self.threads), "-c", str(s["prompt"]),
                 "-ub", str(s["prompt"]), "-fa", "on"], 1800, stderr=True))  # ik_llama.cpp's tables go there
            out[f"{self.name}, sweep"] = {what: rows[0][what] for what in s["what"]}
        return out


def limit_of(config, scenario, what, peak_name):
    """The least seconds per token of a round, from its probes."""
    def own(r):
        return max((v for k, v in r["machine"]["peaks"].items() if k.startswith(peak_name)), default=r["peak"])

    if what == "decode":
        streams = scenario.get("streams", 1)
        # Of many streams weights are read, with every stream's cache and states, and then multiplied.
        return lambda r: stats.step_seconds(r["ours"], own(r) if streams > 1 else None) / streams
    tokens = scenario["prompt"]
    attention = stats.attention_operations(config, tokens, 0)

    def least(r):
        peaks = r["machine"]["peaks"]
        bf16 = max((v for k, v in peaks.items() if k.startswith("bf16")), default=r["peak"])
        return (r["ours"]["prefill_operations"] / own(r) + attention / bf16) / tokens

    return least


def shape_file(name):
    """The config.json of a shape: "1b" is short for "llama-1b"."""
    folder = os.path.join(ROOT, "configs", "bench")
    plain = os.path.join(folder, f"{name}.json")
    return plain if os.path.exists(plain) else os.path.join(folder, f"llama-{name}.json")


def bench_models(options, ours, peers, failures):
    rows, raw = [], []
    peer_models = dict(item.split("=", 1) for item in options.peer_model)
    models = dict(item.split("=", 1) for item in options.model)
    for name in options.models.split(","):
        shape = shape_file(name)
        made = None
        try:
            if name not in models:
                print(f"random weights of {shape}", file=sys.stderr)
                made = models[name] = ours.make_model(shape, options.work)
            config = {}  # of a GGUF file: attention is left out of what a prompt takes
            if os.path.isdir(models[name]):
                with open(os.path.join(models[name], "config.json"), encoding="utf-8") as file:
                    config = json.load(file)
            for weights in options.weights.split(","):
                behind = {}  # rounds by tokens in front of a decode
                for label, scenario in SCENARIOS.items():
                    wanted = label in options.scenario if options.scenario else not scenario.get("asked")
                    if options.quick and label not in QUICK or not wanted:
                        continue
                    rounds = model_rounds(options, ours, peers, models[name], peer_models.get(f"{name}:{weights}"), weights,
                                          scenario, failures)
                    if not rounds:
                        continue
                    title = f"{name} {weights}, {label}"
                    raw.append({"name": title, "rounds": rounds})
                    behind[scenario.get("context", 0)] = rounds
                    for what in scenario["what"]:
                        peak = "bf16" if weights == "bf16" else "int8"
                        row = stats.model_row(title, rounds, what, limit_of(config, scenario, what, peak))
                        rows.append(dict(row, limit="read" if what == "decode" else peak))
                if 1024 in behind and 32768 in behind:
                    rows.append(stats.growth_row(f"{name} {weights}, behind 32768 to behind 1024", behind[1024], behind[32768]))
        except Failure as failure:
            failures.append(f"{name}: {failure}")
        finally:
            if made and not options.keep:
                shutil.rmtree(made, ignore_errors=True)
    return rows, raw


def model_rounds(options, ours, peers, model, peer_model, weights, scenario, failures):
    rounds = []
    for number in range(options.rounds):
        machine = ours.probe(3)
        try:
            result = {"machine": machine, "peak": max(machine["peaks"].values(), default=0),
                      "ours": ours.model(model, weights, scenario, options.kv), "peers": {}}
        except Failure as failure:
            failures.append(str(failure))
            break
        for peer in peers if peer_model else ():
            try:
                result["peers"].update(peer.rates(peer_model, scenario))
            except (Failure, ValueError) as failure:
                text = f"{peer.name}: {failure}"
                if text not in failures:
                    failures.append(text)
        rounds.append(result)
        print(f"round {number + 1} of {options.rounds}: prefill {result['ours']['prefill']:.0f}, decode "
              f"{result['ours']['decode']:.1f} tokens/s; peers {result['peers']}", file=sys.stderr)
    return rounds


def parse(arguments):
    about, _, more = __doc__.partition("\n\n")
    p = argparse.ArgumentParser(prog="./dev bench cpu", description=about, epilog=more,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="three rounds, few cases")
    p.add_argument("--rounds", type=int, help="default 9")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--parts", default="machine,matmul,attention,models")
    p.add_argument("--models", default="1b", help="shapes of configs/bench: 1b,8b,qwen3_5-4b")
    p.add_argument("--model", action="append", default=[], metavar="SHAPE=PATH",
                   help="a folder, or a GGUF file, instead of random weights")
    p.add_argument("--weights", default="int4,int8,bf16", help="formats of --models; auto: as files have them")
    p.add_argument("--kv", default="", help="cache of --models; default: as oar bench")
    p.add_argument("--scenario", action="append", choices=list(SCENARIOS),
                   help="of --models; default: all but those behind 1024 and 32768")
    p.add_argument("--matmul-formats", default="i4_s8_g32,q8_0,bf16")
    p.add_argument("--attention-kv", default="bf16,int8,k8v4,int4")
    p.add_argument("--peer", action="append", default=[], metavar="[NAME=]FOLDER", help="a build of llama.cpp")
    p.add_argument("--peer-model", action="append", default=[], metavar="SHAPE:WEIGHTS=FILE",
                   help="the file that a peer runs beside our SHAPE in WEIGHTS")
    p.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"), help="folder of our programs")
    p.add_argument("--work", default="/var/tmp", help="where random weights are written")
    p.add_argument("--keep", action="store_true", help="keep the random weights")
    p.add_argument("--out", default=os.path.join(ROOT, "build", "bench"))
    options = p.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 3 if options.quick else 9
    if options.rounds < 1:
        p.error("--rounds must be at least 1")
    for part in options.parts.split(","):
        if part not in ("machine", "matmul", "attention", "models"):
            p.error(f"--parts: unknown part '{part}'")
    for item in options.peer_model + options.model:
        if "=" not in item:
            p.error(f"'{item}' has no '='")
    return options


def main(arguments):
    options = parse(arguments)
    ours = Ours(options.bin, options.threads)
    peers = []
    for item in options.peer:
        name, _, folder = item.rpartition("=")
        peers.append(Peer(name or os.path.basename(os.path.dirname(os.path.abspath(folder))), folder, options.threads))
    parts, failures = options.parts.split(","), []
    results = {"machine": ours.probe(options.rounds), "kernels": [], "models": [], "rounds": [], "failures": failures}
    print(bench_report.machine_text(results), file=sys.stderr)
    try:
        if "matmul" in parts:
            cases = ["--tokens", "1,512", "--shape", "8192x2048"] if options.quick else ["--tokens", "1,4,16,64,512"]
            results["kernels"] += ours.kernels("matmul_bench", options.rounds, ["--format", options.matmul_formats, *cases])
        if "attention" in parts:
            cases = ["--dims", "64", "--decode", "4096", "--prefill", "0"] if options.quick else []
            results["kernels"] += ours.kernels("attention_bench", options.rounds, ["--kv", options.attention_kv, *cases])
    except Failure as failure:
        failures.append(str(failure))
    if "models" in parts:
        results["models"], results["rounds"] = bench_models(options, ours, peers, failures)
    os.makedirs(options.out, exist_ok=True)
    text = bench_report.markdown(results)
    for name, content in (("json", json.dumps(results, indent=1)), ("md", text), ("svg", bench_report.svg(results))):
        with open(os.path.join(options.out, f"results.{name}"), "w", encoding="utf-8") as file:
            file.write(content)
    print(text)
    print(f"written to {options.out}/results.json, .md, .svg", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
