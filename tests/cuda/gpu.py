#!/usr/bin/env python3
"""./dev gpu [--device cuda] [--bin build/cuda/bin] [--out build/gpu] [--only STEP,...] [--again]: all that wants a GPU, in steps.

Results are in OUT/results.json and, to look at, in OUT/report.html. A step that has passed for this commit and device is not
run again, so a session that was cut off goes on where it stopped; --again runs all. No step takes more than eight minutes.
--device cuda_emulated runs the same steps on the emulated device at sizes that it can do: what they say is numbers, not speed.

Exit status: 0 all passed or were skipped with a reason, 1 something failed.
"""
import argparse
import html
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 480  # seconds of a step


class Skipped(Exception):
    pass


class Day:
    def __init__(self, args):
        self.device, self.bin, self.out = args.device, pathlib.Path(args.bin).resolve(), pathlib.Path(args.out)
        self.emulated = "emulated" in args.device
        self.tests = self.bin / ("test_cuda_emulated" if self.emulated else "test_cuda")
        self.out.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + LIMIT

    def run(self, *command, **more):
        """The output of a command that must succeed within the step's time."""
        left = self.deadline - time.monotonic()
        done = subprocess.run([str(c) for c in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=max(left, 1), check=False, env={**os.environ, **more.pop("env", {})}, cwd=ROOT)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout[-3000:]}")
        return done.stdout

    def ran(self, *command, **more):
        """As run(), of tests that must not all have been skipped for want of a device."""
        said = self.run(*command, **more)
        if "no CUDA device" in said:
            raise Skipped("no CUDA device")
        return said.strip().splitlines()[-1]

    # ---- the steps; what each returns is its row of the report ----

    def describe(self):
        if self.emulated:
            return {"name": "emulated CUDA device"}
        if shutil.which("nvidia-smi") is None:
            raise Skipped("no nvidia-smi: no driver on this machine")
        fields = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,mig.mode.current,power.limit"
        line = self.run("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader").splitlines()[0]
        return dict(zip(fields.split(","), line.split(", ")))

    def copies(self):
        said = self.run(self.tests, "[.probe]")
        if "copy_gb_per_second" not in said:
            raise Skipped("no CUDA device")
        return {"copy_gb_per_second": float(said.split("copy_gb_per_second ")[1].split()[0])}

    def roundings(self):
        """Every result of 100 cases an instruction, beside those of the emulated device."""
        files = {}
        for side, program in (("device", self.tests), ("emulated", self.bin / "test_cuda_emulated")):
            files[side] = self.out / f"roundings-{side}.txt"
            self.ran(program, "[rounding]", env={"OAR_ROUNDINGS": str(files[side].resolve())})
        device, emulated = (files[s].read_text(encoding="utf-8").splitlines() for s in ("device", "emulated"))
        if len(device) != len(emulated):
            raise RuntimeError(f"{len(device)} cases on the device, {len(emulated)} on the emulated one")
        rows = {}
        for a, b in zip(device, emulated):
            name = " ".join(a.split()[:2])
            row = rows.setdefault(name, {"results": 0, "different": 0, "largest_distance": 0})
            for x, y in zip(a.split()[3:], b.split()[3:]):
                row["results"] += 1
                if x != y:
                    row["different"] += 1
                    row["largest_distance"] = max(row["largest_distance"], distance(x, y))
        return rows

    def kernels(self):
        return {"tests": self.ran(self.tests, "[cuda]~[models]~[rounding]")}

    def bits(self):
        return {"tests": self.ran(self.tests, "cuda: a batch equals*")}

    def models(self):
        return {"tests": self.ran(self.tests, "[models]")}

    def plug_in(self):
        return {"check": self.run(self.bin / "oar", "check", "demo", "--device", self.device).strip().splitlines()[-1]}

    def sanitizer(self):
        """compute-sanitizer over each test of kernels; those that have passed are kept in a file."""
        tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
        if self.emulated:
            raise Skipped("the traced build sees every access already")
        if tool is None:
            raise Skipped("no compute-sanitizer")
        memory = self.out / "sanitizer.json"
        passed = json.loads(memory.read_text(encoding="utf-8")) if memory.exists() else []
        names = self.run(self.tests, "[cuda]~[models]", "--list-test-names-only").splitlines()
        for check in ("memcheck", "racecheck"):
            for name in filter(None, map(str.strip, names)):
                if [check, name] in passed:
                    continue
                self.ran(tool, "--tool", check, "--error-exitcode", "9", self.tests, name.replace(",", "\\,"))
                passed.append([check, name])
                memory.write_text(json.dumps(passed), encoding="utf-8")
        return {"runs": len(passed)}

    def speed(self):
        """Decode and prefill of the 8B shape; a percentage is of the copy bandwidth measured in this session."""
        shape = "tiny.json" if self.emulated else "llama-8b.json"
        grid = [("bf16", 1)] if self.emulated else [(w, s) for w in ("bf16", "int8", "int4") for s in (1, 16, 64)]
        sizes = ["--prompt-tokens", "16", "--gen-tokens", "2", "--repeat", "1"] if self.emulated else ["--prompt-tokens", "2048", "--repeat", "3"]
        copy = None if self.emulated else self.copies()["copy_gb_per_second"]
        rows = {}
        for weights, streams in grid:
            said = json.loads(self.run(self.bin / "oar", "bench", "--shape", ROOT / "configs/bench" / shape, "--weights", weights, "--streams",
                                       streams, "--device", self.device, "--json", *sizes).splitlines()[-1])
            row = {"prefill_tokens_per_second": said["prefill_tokens_per_second"]["median"],
                   "decode_tokens_per_second": said["decode_tokens_per_second"]["median"], "load_seconds": said["load_seconds"]}
            # What the kernels' bytes and operations say, beside it.
            told = json.loads(self.run(self.bin / "oar", "inspect", ROOT / "configs/bench" / shape, "--device", self.device, "--times", "--json",
                                       "--weights", weights))
            step = next(s for s in told["steps"] if s["sequences"] == streams and s["rows"] == 1)
            row["computed_decode_tokens_per_second"] = streams / step["computed_seconds"]
            if copy:
                row["decode_percent_of_copy"] = 100 * said["decode_gb_per_second"]["median"] / copy
            rows[f"{weights}, {streams} streams"] = row
        return rows


STEPS = [("device", Day.describe), ("copies", Day.copies), ("roundings", Day.roundings), ("plug-in", Day.plug_in), ("kernels", Day.kernels),
         ("bits", Day.bits), ("models", Day.models), ("sanitizer", Day.sanitizer), ("speed", Day.speed)]


def distance(x, y):
    """Between two results in hexadecimal, in units in the last place."""
    a, b = (struct.unpack(">i", bytes.fromhex(word))[0] for word in (x, y))
    a, b = (w if w >= 0 else -(w & 0x7fffffff) for w in (a, b))
    return abs(a - b)


def page(results):
    rows = "".join(f"<tr><td>{html.escape(name)}<td>{html.escape(r['status'])}<td>{r['seconds']:.0f} s"
                   f"<td><pre>{html.escape(json.dumps(r.get('found') or r.get('why'), indent=1))}</pre>" for name, r in results["steps"].items())
    return (f"<!doctype html><meta charset=utf-8><title>Oar on {html.escape(results['device'])}</title>"
            "<style>body{font:15px system-ui;margin:2em}td{border-top:1px solid #ccc;padding:.4em;vertical-align:top}pre{margin:0}</style>"
            f"<h1>Oar on {html.escape(results['device'])}, commit {html.escape(results['commit'])}</h1><table>{rows}</table>\n")


def main():
    parser = argparse.ArgumentParser(prog="./dev gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cuda_emulated")
    parser.add_argument("--bin", default=ROOT / "build/cuda/bin", help="folder with oar, test_cuda and test_cuda_emulated")
    parser.add_argument("--out", default=ROOT / "build/gpu")
    parser.add_argument("--only", help="names of steps with commas between: " + ",".join(n for n, _ in STEPS))
    parser.add_argument("--again", action="store_true", help="also what has passed")
    args = parser.parse_args()
    only = args.only.split(",") if args.only else [n for n, _ in STEPS]
    if unknown := set(only) - {n for n, _ in STEPS}:
        parser.error(f"--only: no step '{sorted(unknown)[0]}'; there are {', '.join(n for n, _ in STEPS)}")
    day = Day(args)
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False).stdout.strip()
    kept = day.out / "results.json"
    results = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    if (results.get("commit"), results.get("device")) != (commit or "none", args.device):
        results = {"commit": commit or "none", "device": args.device, "steps": {}}
        (day.out / "sanitizer.json").unlink(missing_ok=True)
    failed = 0
    for name, step in STEPS:
        if name not in only or not args.again and results["steps"].get(name, {}).get("status") == "passed":
            continue
        print(f"{name:12}", end="", flush=True)
        began = time.monotonic()
        day.deadline = began + LIMIT
        try:
            row = {"status": "passed", "found": step(day)}
        except Skipped as why:
            row = {"status": "skipped", "why": str(why)}
        except (RuntimeError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as why:
            row = {"status": "failed", "why": str(why)}
            failed += 1
        row["seconds"] = time.monotonic() - began
        results["steps"][name] = row
        kept.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (day.out / "report.html").write_text(page(results), encoding="utf-8")
        print(f"{row['status']:8}{row['seconds']:6.0f} s  {row.get('why', '')}")
    print(f"results: {kept}; to look at: {day.out / 'report.html'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
