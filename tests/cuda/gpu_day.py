"""What the steps of ./dev gpu share: commands within a step's time, measures that are kept, numbers beside their bounds."""
import os
import pathlib
import re
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Skipped(Exception):
    """Why a step, or a number, cannot be had here."""


class TimeIsUp(Exception):
    """The step's time is over; what it has measured is kept."""


# What a command or its output may raise.
FAULTS = (RuntimeError, OSError, ValueError, KeyError, StopIteration)


class Day:
    def __init__(self, device, binaries, out, models=None):
        self.name, self.bin, self.out = device, pathlib.Path(binaries).resolve(), pathlib.Path(out).resolve()
        # One of several is the only one that programs see, as all tests take the first.
        self.device, _, self.index = device.partition(":")
        self.env = {"CUDA_VISIBLE_DEVICES": self.index, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if self.index else {}
        self.models = pathlib.Path(models).resolve() if models else self.out / "models"
        self.emulated = "emulated" in device
        self.tests = self.bin / ("test_cuda_emulated" if self.emulated else "test_cuda")
        self.out.mkdir(parents=True, exist_ok=True)
        self.steps = {}  # results of each, by name
        self.keep = lambda: None
        self.begin({}, 480)

    def begin(self, row, seconds):
        """The step whose results are `row` has so many seconds from now on."""
        self.deadline = time.monotonic() + seconds
        self.row = row
        self.row.setdefault("parts", {})
        self.row["numbers"] = []

    # ---- commands

    def run(self, *command, env=None):
        """The output of a command that must succeed within the step's time."""
        words = [str(c) for c in command]
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeIsUp(words[0])
        done = subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT,
                                start_new_session=True, env={**os.environ, **self.env, **(env or {})})
        try:
            said, _ = done.communicate(timeout=left)
        except BaseException as why:
            os.killpg(done.pid, signal.SIGKILL)  # a tool and the program under it
            done.communicate()
            if isinstance(why, subprocess.TimeoutExpired):
                raise TimeIsUp(" ".join(words)) from why
            raise
        if done.returncode != 0 and "finds no device on this machine" in said:
            raise Skipped("no CUDA device")
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: exit status {done.returncode}\n{said[-3000:]}")
        return said

    def ran(self, *command, env=None):
        """The last line of tests, of which some must have run."""
        said = self.run(*command, env=env)
        if "no CUDA device" in said:
            raise Skipped("no CUDA device")
        if re.search(r"^No test", said, re.M):
            raise RuntimeError(f"{' '.join(map(str, command))}: no such tests")
        return said.strip().splitlines()[-1]

    def probe(self, tag):
        """Numbers by name, as the hidden tests of probe_test.cc print them; and why one was skipped, if one was."""
        said = self.run(self.tests, f"[{tag}]")
        if "no CUDA device" in said:
            raise Skipped("no CUDA device")
        numbers = {name: float(value) for name, value in re.findall(r"^([a-z]\w+) ([-+.e\d]+)$", said, re.M)}
        if not numbers:
            raise RuntimeError(f"no number in the output of [{tag}]:\n{said[-3000:]}")
        why = re.search(r"skipped: (.*)", said)
        return {**numbers, **({"skipped": why[1].strip()} if why else {})}

    # ---- what is kept

    def part(self, name, measure):
        """What measure() gives, kept: a session that goes on does not ask again."""
        if name not in self.row["parts"]:
            self.row["parts"][name] = measure()
            self.keep()
        return self.row["parts"][name]

    def part_of(self, step, name):
        """A measure of a step that came before."""
        kept = self.steps.get(step, {}).get("parts", {})
        if name not in kept:
            raise Skipped(f"step {step} has not measured it")
        return kept[name]

    def number(self, what, value, unit, at_least=None, at_most=None):
        """Beside its bound; what the emulated device takes is not judged."""
        bound = at_least if at_most is None else at_most
        met = None
        if bound is not None and not self.emulated:
            met = value >= bound if at_most is None else value <= bound
        relation = "" if bound is None else f"{'>=' if at_most is None else '<='} {bound:g}"
        self.row["numbers"].append({"what": what, "value": value, "unit": unit, "bound": relation, "met": met})

    def absent(self, what, why):
        """A number of the table that cannot be had here."""
        self.row["numbers"].append({"what": what, "value": None, "unit": "", "bound": "", "met": None, "why": str(why)})

    def each(self, rows):
        """Functions by what they measure: one that fails or cannot be had stops no other. Without any number it is skipped."""
        faults, reasons = [], []
        for what, measure in rows:
            try:
                measure()
            except Skipped as why:
                self.absent(what, why)
                reasons.append(str(why))
            except FAULTS as why:
                faults.append(f"{what}: {why}")
        if faults:
            raise RuntimeError("\n".join(faults))
        if reasons and all(n["value"] is None for n in self.row["numbers"]):
            raise Skipped(reasons[0])
