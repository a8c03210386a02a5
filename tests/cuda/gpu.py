#!/usr/bin/env python3
"""./dev gpu [--device cuda] [--minutes 25] [--only STEP,...] [--again]: all that wants a GPU, in steps, the most telling first.

Results are in OUT/results.json and, to look at, in OUT/report.html: each number of the table beside its bound, then what each
step found. A number below its bound is listed, and fails nothing. A step has at most eight minutes, all together 25. What has
passed, and what a step has measured, is not done again for this commit and device: a session that was cut off goes on where it
stopped.
--device cuda_emulated runs the same steps on the emulated device at sizes that it can do: what they say is numbers, not speed.

Exit status: 0 all passed or were skipped with a reason, 1 something failed, 3 the time was over: the same command goes on.

Examples:
  ./dev gpu                                    all of it
  ./dev gpu --minutes 9                        as far as nine minutes go; again, and it goes on
  ./dev gpu --only rates,decode,attention      three steps and nothing else
  ./dev gpu --only decode --again              once more, though it has passed
  ./dev gpu --device cuda:1 --out /tmp/second  another device, results elsewhere
  ./dev gpu --device cuda_emulated --bin build/release/bin --only rates,roundings
"""
import argparse
import html
import json
import shutil
import signal
import subprocess
import sys
import time
from typing import Callable, NamedTuple

import gpu_steps as steps
import gpu_table as table
from gpu_day import FAULTS, ROOT, Day, Skipped, TimeIsUp

MOST_SECONDS, MOST_SECONDS_OF_ALL = 480, 25 * 60
LEAST_SECONDS = 10  # with less there is no point in beginning a step


class Step(NamedTuple):
    name: str
    seconds: int  # that it may take
    run: Callable


# By worth: what a session of a few minutes should have comes first.
STEPS = (
    Step("device", 10, steps.describe),
    Step("rates", 40, table.rates),
    Step("roundings", 40, steps.roundings),
    Step("bits", 120, steps.bits),
    Step("attention", 40, table.attention),
    Step("products", 60, table.products),
    Step("decode", 300, table.decode),
    Step("start", 10, table.start),
    Step("prefill", 120, table.prefill),
    Step("cudnn", 10, steps.cudnn),
    Step("plug-in", 30, steps.plug_in),
    Step("interface", 30, steps.interface),
    Step("kernels", 130, steps.kernels),
    Step("models", 120, steps.models),
    Step("saturated", 180, table.saturated),
    Step("networks", 90, table.networks),
    Step("sanitizer", 140, steps.sanitizer),
    Step("bundle", 30, steps.bundle),
)


def run_step(day, step, row, seconds):
    """Does the step in so many seconds; `row` has what it measured before, and what came of it."""
    began = time.monotonic()
    day.begin(row, seconds)
    for word in ("found", "why"):
        row.pop(word, None)
    try:
        row.update(status="passed", found=step.run(day))
    except Skipped as why:
        row.update(status="skipped", why=str(why))
    except TimeIsUp as what:
        if seconds < step.seconds:
            row.update(status="unfinished", why=f"the time was over in {what}")
        else:
            row.update(status="failed", why=f"took longer than {step.seconds} s in {what}")
    except FAULTS as why:
        row.update(status="failed", why=str(why) or type(why).__name__)
    row["seconds"] = row.get("seconds", 0) + time.monotonic() - began


def page(results):
    """One page: the numbers with their bounds, then each step."""
    words = {True: "met", False: "not met", None: "not judged"}
    numbers = "".join(f"<tr class={'no' if n['met'] is False else 'yes'}><td>{html.escape(n['what'])}<td>{value_of(n)}<td>"
                      f"{html.escape(n['bound'])}<td>{words[n['met']] if n['bound'] else ''}"
                      for row in results["steps"].values() for n in row.get("numbers", []))
    rows = "".join(f"<tr><td>{html.escape(name)}<td>{html.escape(row['status'])}<td>{row['seconds']:.0f} s<td><pre>"
                   f"{html.escape(json.dumps(row.get('found') or row.get('why'), indent=1))}</pre>"
                   for name, row in results["steps"].items())
    title = html.escape(f"Oar on {results['device']}, commit {results['commit']}")
    return (f"<!doctype html><meta charset=utf-8><title>{title}</title><style>body{{font:15px system-ui;margin:2em}}"
            "td{border-top:1px solid #ccc;padding:.4em;vertical-align:top}pre{margin:0}.no{background:#fdd}</style>"
            f"<h1>{title}</h1><h2>Numbers and bounds</h2><table>{numbers}</table><h2>Steps</h2><table>{rows}</table>\n")


def value_of(number):
    if number["value"] is None:
        return html.escape(f"none: {number['why']}")
    return html.escape(f"{number['value']:.4g} {number['unit']}")


class Results:
    """In a folder, of one commit and device; those of another are forgotten."""

    def __init__(self, day, commit):
        self.day, self.file = day, day.out / "results.json"
        self.all = json.loads(self.file.read_text(encoding="utf-8")) if self.file.exists() else {}
        if (self.all.get("commit"), self.all.get("device")) != (commit, day.name):
            self.all = {"commit": commit, "device": day.name, "steps": {}}
            shutil.rmtree(day.out / "weights", ignore_errors=True)
        day.steps, day.keep = self.all["steps"], self.keep

    def keep(self):
        self.file.write_text(json.dumps(self.all, indent=1) + "\n", encoding="utf-8")

    def report(self):
        self.keep()
        (self.day.out / "report.html").write_text(page(self.all), encoding="utf-8")


def options():
    parser = argparse.ArgumentParser(prog="./dev gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 (as nvidia-smi counts them) or cuda_emulated")
    parser.add_argument("--bin", default=ROOT / "build/cuda/bin",
                        help="folder with oar, predictor_bench, test_cuda and test_cuda_emulated (build/cuda/bin)")
    parser.add_argument("--out", default=ROOT / "build/gpu",
                        help="folder of the results, and of random weights until all is done (build/gpu)")
    parser.add_argument("--models", help="folder with resnet50.onnx and bert_base.onnx; without, OUT/models, where they are made")
    parser.add_argument("--minutes", type=float, default=MOST_SECONDS_OF_ALL / 60, help="that this call may take (%(default)s)")
    parser.add_argument("--only", help="names of steps with commas between: " + ",".join(s.name for s in STEPS))
    parser.add_argument("--again", action="store_true", help="also what has passed")
    args = parser.parse_args()
    names = [s.name for s in STEPS]
    args.only = args.only.split(",") if args.only else names
    if unknown := sorted(set(args.only) - set(names)):
        parser.error(f"--only: no step '{unknown[0]}'; there are {', '.join(names)}")
    if not 0 < args.minutes <= MOST_SECONDS_OF_ALL / 60:
        parser.error(f"--minutes: more than 0, at most {MOST_SECONDS_OF_ALL // 60}")
    return args


def run_all(day, results, args):
    """The names of steps that failed, and of those that had no time, or not enough."""
    end = time.monotonic() + 60 * args.minutes
    failed, left_over = [], []
    for step in STEPS:
        row = results.all["steps"].get(step.name, {})
        if step.name not in args.only or not args.again and row.get("status") == "passed":
            continue
        most = MOST_SECONDS if day.emulated else step.seconds  # what a processor takes for it is no measure
        seconds = min(most, end - time.monotonic())
        if seconds < min(LEAST_SECONDS, step.seconds):
            left_over.append(step.name)
            continue
        if args.again:
            row = {}
        results.all["steps"][step.name] = row
        print(f"{step.name:12}", end="", flush=True)
        row["status"] = "unfinished"
        run_step(day, step, row, seconds)
        results.report()
        print(f"{row['status']:11}{row['seconds']:6.0f} s  {row.get('why', '')}")
        for number in row["numbers"]:
            if number["met"] is False:
                print(f"{'':12}below its bound: {number['what']}: {number['value']:.4g} {number['unit']}, not {number['bound']}")
        {"failed": failed, "unfinished": left_over}.get(row["status"], []).append(step.name)
    return failed, left_over


def main():
    args = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and what a step runs ends with it
    day = Day(args.device, args.bin, args.out, args.models)
    said = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    results = Results(day, said.stdout.strip() or "none")
    failed, left_over = run_all(day, results, args)
    results.report()
    if all(results.all["steps"].get(s.name, {}).get("status") in ("passed", "skipped") for s in STEPS):
        shutil.rmtree(day.out / "weights", ignore_errors=True)
    minutes = sum(row["seconds"] for row in results.all["steps"].values()) / 60
    print(f"results: {results.file}; to look at: {day.out / 'report.html'}; {minutes:.1f} minutes in all sessions")
    if left_over:
        print(f"no time was left for {', '.join(left_over)}: the same command goes on there")
    return 1 if failed else 3 if left_over else 0


if __name__ == "__main__":
    sys.exit(main())
