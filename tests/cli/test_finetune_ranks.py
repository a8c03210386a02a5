#!/usr/bin/env python3
"""oar finetune --ranks as a user runs it: the bits of one process, and ranks that are killed or stopped."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

from program import OAR, Base

CHATS = "".join(json.dumps({"messages": [{"role": "user", "content": f"What is {k} and {k}?"},
                                         {"role": "assistant", "content": f"It is {2 * k}, good sir."}]}) + "\n" for k in range(12))
RUN = ("--length", 64, "--tokens", 128, "--lora", "rank=4,targets=q_proj,v_proj", "--rate", "1e-3", "--threads", 1)
STEPS = 40
WITHIN = 10  # seconds


def children(process):
    return [int(p) for p in pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def alive(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class FinetuneRanks(Base):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "chats.jsonl").write_text(CHATS, encoding="utf-8")

    def command(self, out, *more, steps=STEPS):
        return [str(c) for c in (OAR, "finetune", "demo", "--data", "chats.jsonl", "--eval", "chats.jsonl", "--eval-every", 10, "--steps",
                                 steps, "--log", out + ".jsonl", "-o", out, *RUN, *more)]

    def run_to_end(self, *command, steps=STEPS):
        done = subprocess.run(self.command(*command, steps=steps), cwd=self.folder, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def weights(self, name):
        return (self.folder / name / "adapter_model.safetensors").read_bytes()

    def test_ranks_give_the_bits_of_one_process(self):
        alone = self.run_to_end("alone", "--accumulate", 4, steps=12)
        for name, ranks, accumulate in (("two", 2, 2), ("four", 4, 1)):
            done = self.run_to_end(name, "--ranks", ranks, "--accumulate", accumulate, steps=12)
            self.assertEqual(self.weights(name), self.weights("alone"))
            self.assertEqual((self.folder / f"{name}.jsonl").read_text(), (self.folder / "alone.jsonl").read_text())
            self.assertEqual(done.stdout.split(":")[1], alone.stdout.split(":")[1])
            self.assertRegex(done.stderr, rf"memory at the peak: [0-9.]+ MiB in each of {ranks} ranks \(.*a bucket of gradients [0-9.]+ KiB, ")
            self.assertEqual(len(re.findall(r"memory at the peak", done.stderr)), 1)
        self.assertNotIn("bucket", alone.stderr)

    def test_one_error_is_told_once(self):
        (self.folder / "chats.jsonl").write_text("{", encoding="utf-8")
        done = subprocess.run(self.command("out", "--ranks", 3), cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("line 1", done.stderr)
        self.refused(2, "finetune", "demo", "--data", "x", "--full", "-o", "y", "--ranks", 65, says=["--ranks"])

    def test_a_signal_stops_all_at_one_step(self):
        process = self.begun("long", steps=100000)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertEqual(errors.count("the same command goes on from there"), 1, errors)
        self.assertTrue((self.folder / "long.training/checkpoint.safetensors").exists())

    def begun(self, out, *more, steps=STEPS, ranks=2):
        """Behind its first steps."""
        process = subprocess.Popen(self.command(out, "--ranks", ranks, "--checkpoint-every", 7, *more, steps=steps), cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        log = self.folder / f"{out}.jsonl"
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_text().count("loss") >= 3):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)
        return process

    def ended(self, which, how, ranks=2):
        """A run whose rank `which` gets the signal `how`: all end in time, and the same command goes on to the same bits."""
        whole = f"whole-{which}-{how}"
        self.run_to_end(whole, "--accumulate", ranks)
        out = f"hurt-{which}-{how}"
        process = self.begun(out, steps=STEPS, ranks=ranks)
        processes = [process.pid, *children(process.pid)]
        self.assertEqual(len(processes), ranks)
        hurt = processes.pop(which)
        start = time.monotonic()
        os.kill(hurt, how)
        while any(alive(well) for well in processes):
            self.assertLess(time.monotonic() - start, WITHIN, "another rank goes on")
            time.sleep(0.02)
        if which > 0:
            _, errors = process.communicate(timeout=WITHIN)
            self.assertFalse(alive(hurt), "what is stopped is ended")
        else:
            # The one that is left tells; one that was stopped finds that it is too late.
            if how == signal.SIGSTOP: os.kill(hurt, signal.SIGCONT)
            _, errors = process.communicate(timeout=WITHIN)
        self.assertLess(time.monotonic() - start, WITHIN)
        self.assertNotEqual(process.returncode, 0)
        named = f"rank {which} (process {hurt}) gave no sign of life"
        self.assertIn(named, errors)
        written = re.search(re.escape(named) + r".*; a checkpoint of step (\d+) is written, the same command goes on", errors)
        self.assertIsNotNone(written, errors)
        done = self.run_to_end(out, "--ranks", ranks, "--checkpoint-every", 7)
        self.assertIn(f"goes on behind step {written[1]}\n", done.stderr)
        self.assertEqual(self.weights(out), self.weights(whole))
        self.assertEqual((self.folder / f"{out}.jsonl").read_text(), (self.folder / f"{whole}.jsonl").read_text())

    def lags(self, out, told, stopped, within, *more):
        """One that runs a part of the time gives signs of life, and is named all the same."""
        process = self.begun(out, *more, steps=100000)
        other, = children(process.pid)
        deadline = time.monotonic() + within
        while process.poll() is None:
            self.assertLess(time.monotonic(), deadline)
            try:
                for how, seconds in ((signal.SIGSTOP, stopped), (signal.SIGCONT, 0.02)):
                    os.kill(other, how)
                    time.sleep(seconds)
            except ProcessLookupError:
                break
        _, errors = process.communicate(timeout=WITHIN)
        self.assertEqual(process.returncode, 1)
        self.assertRegex(errors, rf"rank 1 \(process {other}\) is slow: {told}; "
                                 r"a checkpoint of step \d+ is written, the same command goes on from there")
        self.assertTrue((self.folder / f"{out}.training/checkpoint.safetensors").exists())

    def test_a_rank_lags(self):
        self.lags("slow", r"all others have waited for it for \d s", 1.5, 60, "--rank-wait", 0.5)

    def test_a_rank_loses_pace(self):
        self.lags("behind", "for [789] s it has done less than a fifth of what rank 0 does", 0.4, WITHIN)

    def test_a_rank_is_killed(self):
        self.ended(1, signal.SIGKILL)

    def test_the_last_of_three_ranks_is_killed(self):
        self.ended(2, signal.SIGKILL, ranks=3)

    def test_a_rank_is_stopped(self):
        self.ended(1, signal.SIGSTOP)

    def test_the_first_rank_is_killed(self):
        self.ended(0, signal.SIGKILL)

    def test_the_first_rank_is_stopped(self):
        self.ended(0, signal.SIGSTOP)


if __name__ == "__main__":
    unittest.main(verbosity=1)
