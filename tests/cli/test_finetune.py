#!/usr/bin/env python3
"""oar finetune and oar merge as a user runs them: what they print, write and refuse, and runs that are killed."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

from program import Base, OAR, SANITIZERS

CHATS = "".join(json.dumps({"messages": [{"role": "user", "content": f"What is {k} and {k}?"},
                                         {"role": "assistant", "content": f"It is {2 * k}, good sir."}]}) + "\n" for k in range(6))
PLAIN = ("--length", 64, "--tokens", 128, "--rate", "1e-3", "--threads", 1)
ADAPTER = ("--lora", "rank=4,targets=q_proj,v_proj")
RUN = PLAIN + ADAPTER


class Finetune(Base):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.data = self.folder / "chats.jsonl"
        self.data.write_text(CHATS, encoding="utf-8")

    def weights(self, name):
        file, = (self.folder / name).glob("*model.safetensors")
        return file.read_bytes()

    def checkpoint(self, out):
        """What tells one checkpoint of a run from the next, or None without one."""
        try:
            return os.stat(self.folder / f"{out}.training" / "checkpoint.safetensors").st_mtime_ns
        except FileNotFoundError:
            return None

    def logged(self, out):
        """The last step that a run's log has whole, or 0."""
        log = self.folder / f"{out}.jsonl"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        return max([json.loads(line)["step"] for line in lines if line.endswith("\n")], default=0)

    def test_an_adapter_is_trained_and_serves(self):
        out, log, plot = self.folder / "polite", self.folder / "log.jsonl", self.folder / "loss.svg"
        done = self.ok("finetune", "demo", "--data", self.data, "--eval", self.data, "--eval-every", 2, "--steps", 6, "--log", log,
                       "--plot", plot, "-o", out, *RUN)
        self.assertIn("memory at the peak: ", done.stderr)
        self.assertRegex(done.stderr, r"step 6/6  loss \d+\.\d+  \d+ tokens/s")
        self.assertIn("held-out loss ", done.stdout)
        self.assertEqual(len(re.findall(r'(?m)^  "What is 0 and 0\?" goes on ".+"$', done.stderr)), 3, done.stderr)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertEqual([l["step"] for l in lines if "loss" in l], [1, 2, 3, 4, 5, 6])
        self.assertEqual([l["step"] for l in lines if "held_out" in l], [2, 4, 6])
        self.assertLess(lines[-1]["held_out"], lines[0]["loss"])
        self.assertIn("<svg", plot.read_text())
        self.assertFalse((self.folder / "polite.training").exists())
        config = json.loads((out / "adapter_config.json").read_text())
        self.assertEqual((config["r"], config["lora_alpha"], config["target_modules"]), (4, 8.0, ["q_proj", "v_proj"]))
        prompt = ("--prompt", "ROMEO:", "--max-tokens", 8, "--temperature", 0)
        self.ok("generate", "demo", "--lora", out, *prompt)
        merged = self.folder / "merged"
        self.ok("merge", "demo", "--lora", out, "-o", merged)
        self.ok("generate", merged, *prompt)
        self.refused(1, "merge", "demo", "--lora", out, "-o", merged, says=["is there already"])

    def test_a_dry_run_says_what_it_takes(self):
        done = self.ok("finetune", "demo", "--data", self.data, "-o", self.folder / "none", "--dry-run", *RUN)
        self.assertIn("memory at the peak: ", done.stderr)
        self.assertEqual(list(self.folder.iterdir()), [self.data])

    @unittest.skipIf(SANITIZERS, "sanitizers keep what was freed")
    def test_a_run_takes_what_it_says(self):
        """Of two runs that differ in a step alone, the difference: what a program has beside is not said."""
        def run(tokens, *more):
            command = [str(c) for c in (OAR, "finetune", "demo", "--data", self.data, "--steps", 1, "--length", 64, "--tokens", tokens,
                                        "--threads", 1, "-o", self.folder / f"out{tokens}", *more)]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
                said = process.stderr.read()
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0, said)
            subprocess.run(["rm", "-rf", str(self.folder / f"out{tokens}")], check=True)
            return float(re.search(r"memory at the peak: ([0-9.]+) MiB", said)[1]), used.ru_maxrss / 1024
        for more in (("--full",), ("--full", "--precision", "O2"), ("--lora", "rank=4,targets=all", "--weights", "int8")):
            with self.subTest(more=more):
                (few, least), (many, most) = run(64, *more), run(2048, *more)
                self.assertGreater(many - few, 60)
                self.assertLess(most - least, 1.05 * (many - few) + 4)
                self.assertGreater(most - least, 0.6 * (many - few))

    def test_recomputation_takes_less_and_says_so(self):
        def step(*more):
            done = self.ok("finetune", "demo", "--data", self.data, "-o", self.folder / "none", "--dry-run", *RUN, *more)
            told = re.search(r"a step with its gradients ([0-9.]+) MiB(, whose layers are computed again)?\)", done.stderr)
            return float(told[1]), told[2] is not None
        (none, no), (layers, yes) = step(), step("--recompute", "layers")
        self.assertLess(layers, none)
        self.assertEqual((no, yes), (False, True))
        told = self.ok("inspect", "demo", "--train", "rank=4,targets=q_proj,v_proj", "--tokens", 64).stdout
        self.assertEqual(len(re.findall(r"^--recompute (?:none|layers|full) +a step [0-9.]+ MiB \(a block of logits", told, re.M)), 3)
        self.refused(2, "inspect", "demo", "--train", "full", "--kv", "int8", says=["--kv", "training"])
        self.refused(2, "inspect", "demo", "--graph", "--train", "full", says=["--graph", "training"])
        for part in ("weights that stay", "parameters", "moments"):
            self.assertRegex(told, rf"(?m)^{part} +[0-9.]+ [KM]iB$")
        self.assertRegex(told, r"(?m)^gradients +within a step$")
        told = self.ok("inspect", "demo", "--train", "full", "--tokens", 64, "--accumulate", 2).stdout
        self.assertRegex(told, r"(?m)^gradients +[0-9.]+ MiB$")
        self.refused(2, "inspect", "demo", "--tokens", 64, says=["--train"])

    def killed(self, out, way, steps, every, waits):
        """A run that is killed behind one of its checkpoints, again and again, loses at most `every` steps, and no bit."""
        command = [str(c) for c in (OAR, "finetune", "demo", "--data", self.data, "--steps", steps, *PLAIN, *way)]
        subprocess.run([*command, "-o", f"{out}-whole"], cwd=self.folder, check=True, capture_output=True)
        command += ["--checkpoint-every", str(every), "--log", f"{out}.jsonl", "-o", out]

        def goes_on(reached, errors):
            behind = int((re.search(r"(?m)^goes on behind step (\d+)$", errors) or [0, 0])[1])
            self.assertEqual(behind % every, 0)
            self.assertLessEqual(behind, reached)
            self.assertLessEqual(reached - behind, every, errors)
            return behind

        for n, wait in enumerate(waits):
            reached, before = self.logged(out), self.checkpoint(out)
            process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            while self.checkpoint(out) == before and process.poll() is None:
                time.sleep(0.0005)
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
            _, errors = process.communicate()
            self.assertEqual(process.returncode, -signal.SIGKILL, errors)
            self.assertGreaterEqual(goes_on(reached, errors), every * n)
        reached = self.logged(out)
        done = subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True)
        self.assertGreaterEqual(goes_on(reached, done.stderr), every * len(waits))
        self.assertEqual(self.weights(f"{out}-whole"), self.weights(out))
        self.assertEqual(self.logged(out), steps)

    def test_a_killed_run_goes_on_to_the_same_bits(self):
        # Behind a checkpoint, in a step, and while the next one is written.
        self.killed("adapter", ADAPTER, 60, 3, (0, 0.002, 0.01, 0.03))
        self.killed("full", ("--full",), 12, 2, (0, 0.03))

    def test_a_signal_writes_a_checkpoint(self):
        command = [str(c) for c in (OAR, "finetune", "demo", "--data", self.data, "--steps", "5000", "-o", "long", *RUN)]
        process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if line.startswith("step "):
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1)
        self.assertIn("the same command goes on from there", errors)
        self.assertTrue((self.folder / "long.training/checkpoint.safetensors").exists())
        self.refused(1, "finetune", "demo", "--data", self.data, "--steps", 4000, "-o", self.folder / "long", *RUN,
                     says=["made with another 'steps'", "--restart"])

    def test_what_is_wrong_is_named(self):
        out = ("-o", self.folder / "out")
        some = ("--data", self.data)
        self.refused(2, "finetune", "demo", *some, *out, says=["either --full or --lora"])
        self.refused(2, "finetune", "demo", *some, *out, "--full", "--lora", "rank=4", says=["exclude each other"])
        self.refused(1, "finetune", "demo", *some, *out, "--lora", "rang=4", says=["'rang=4' is not known"])
        self.refused(1, "finetune", "demo", *some, *out, "--lora", "targets=qkv", says=["no layer of the model is called 'qkv'"])
        self.refused(2, "finetune", "demo", *some, *out, "--lora", "rank=4", "--freeze", "x", says=["--freeze is for --full"])
        self.data.write_text(CHATS + "{\"messages\":", encoding="utf-8")
        self.refused(1, "finetune", "demo", *some, *out, "--lora", "rank=4", says=[str(self.data), "line 7"])
        self.refused(1, "finetune", "nowhere", *some, *out, "--full", says=["nowhere"])
        self.assertFalse((self.folder / "out").exists())


if __name__ == "__main__":
    unittest.main(verbosity=1)
