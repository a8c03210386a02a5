#!/usr/bin/env python3
"""Every flag of oar finetune, oar train and oar merge: it changes what comes out, is seen, or is refused by name. What oar inspect --train
says is what a run says. Checkpoints on a full disk and in a folder that cannot be written."""
import hashlib
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from program import OAR, SOURCE, TIMEOUT, Base, Server, has_server, oar

sys.path.insert(0, str(SOURCE / "tests/support"))
import tiny_bert  # noqa: E402
import tiny_llama  # noqa: E402

LORA = ("--lora", "rank=2,targets=q_proj,v_proj")
NOBODY = 65534


def flags_of(command):
    """Long names of a command's options, as --help lists them."""
    return set(re.findall(r"(?m)^  (?:-\w,)?(--[a-z][a-z0-9-]*)", oar(command, "--help").stdout)) - {"--help"}


class Flags(Base):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.model = tiny_llama.write(self.folder / "model")
        self.data = tiny_llama.write_texts(self.folder / "data.jsonl", 8)
        self.other = tiny_llama.write_texts(self.folder / "other.jsonl", 4, seed=2)
        self.runs = 0
        self.seen = {"--data", "--out", "--log", "--rate"}  # of every run below

    def command(self, *flags):
        self.runs += 1
        out = self.folder / f"out{self.runs}"
        self.seen |= {f for f in map(str, flags) if f.startswith("--")}
        given = ["finetune", self.model, "--log", f"{out}.jsonl", "-o", out, *flags]
        for name, value in (("--data", self.data), ("--rate", "1e-2"), ("--threads", 1), ("--length", 16)):
            if name not in flags:
                given += [name, value]
        return out, given

    def trained(self, *flags):
        """What a run leaves: its log, a hash of its weights, what it shows, and where it is."""
        out, command = self.command(*flags)
        done = self.ok(*command)
        weights = out / ("model.safetensors" if "--full" in flags else "adapter_model.safetensors")
        return pathlib.Path(f"{out}.jsonl").read_text(), hashlib.sha256(weights.read_bytes()).hexdigest(), done.stderr, out

    def no(self, code, *flags, says):
        out, command = self.command(*flags)
        self.refused(code, *command, says=says)
        self.assertFalse(out.exists())

    def test_finetune(self):
        steps = (*LORA, "--steps", 3)
        whole, sgd, narrow = (*steps[2:], "--full"), (*steps, "--optimizer", "sgd"), (*steps, "--precision", "O1")
        epoch = (*LORA, "--steps", 8)
        for base, changes in (
                (steps, (("--lora", "rank=4,targets=q_proj,v_proj", "--steps", 3), ("--lora", "rank=2,targets=q_proj", "--steps", 3),
                         ("--lora", "rank=2,alpha=9,targets=q_proj,v_proj", "--steps", 3),
                         ("--lora", "rank=2,dropout=0.5,targets=q_proj,v_proj", "--steps", 3), whole, sgd, narrow, (*steps, "--weights", "int8"),
                         (*steps, "--length", 4), (*steps, "--tokens", 32), (*steps, "--accumulate", 2), (*LORA, "--steps", 4),
                         (*LORA, "--epochs", 2), (*steps, "--rate", "1e-3"), (*steps, "--rate-of", "*lora_B*=3"), (*steps, "--schedule", "constant"),
                         (*steps, "--schedule", "linear"), (*steps, "--warmup", 2), (*steps, "--least-rate", 0.5), (*steps, "--decay", 0.5),
                         (*steps, "--beta1", 0.5), (*steps, "--beta2", 0.5), (*steps, "--epsilon", 0.1), (*steps, "--seed", 3),
                         (*steps, "--average", 0.5), (*steps, "--length", 8, "--cuts", "drawn"))),
                (epoch, ((*epoch, "--data", f"{self.data}:2"), (*epoch, "--data", self.data, self.other))),
                (sgd, ((*sgd, "--momentum", 0), (*sgd, "--clip", 1e-3))),
                (narrow, ((*narrow, "--white", "rms_norm"), (*narrow, "--black", "linear"))),
                (whole, ((*whole, "--freeze", "*norm*"), (*whole, "--dropout", 0.2)))):
            weights = self.trained(*base)[1]
            for flags in changes:
                with self.subTest(flags=flags):
                    self.assertNotEqual(weights, self.trained(*flags)[1])
        log, weights, shown, _ = self.trained(*steps)
        self.assertEqual([json.loads(l)["step"] for l in log.splitlines()], [1, 2, 3])
        self.assertIn("step 3/3", shown)
        for flags in ((*steps, "--threads", 2), (*steps, "--recompute", "full"), (*steps, "--checkpoint-every", 1), (*steps, "--memory", "1GiB"),
                      (*steps, "--plot", self.folder / "plot.svg"), (*steps, "--quiet"), (*steps, "--too-long", "refuse")):
            with self.subTest(flags=flags):
                other_log, other_weights, shown, _ = self.trained(*flags)
                self.assertEqual((log, weights), (other_log, other_weights))
                self.assertEqual(shown == "", "--quiet" in flags, shown)
        self.assertIn("<svg", (self.folder / "plot.svg").read_text())
        self.assertEqual(self.trained(*steps, "--accumulate", 2)[:2], self.trained(*steps, "--ranks", 2, "--rank-wait", 60)[:2])
        told = [json.loads(l) for l in self.trained(*steps, "--eval", self.other, "--eval-every", 2)[0].splitlines()]
        self.assertEqual([l["step"] for l in told if "held_out" in l], [2, 3])
        self.assertEqual([len(l["sample"]["continuation"].split()) for l in told if "held_out" in l], [11, 11])  # behind a prompt of 5, up to 16 rows
        # A sample is seen and changes nothing else; what is held out is not learned.
        held = (*steps, "--eval", self.other)
        log, weights, _, _ = self.trained(*held, "--sample-tokens", 3)
        last = json.loads(log.splitlines()[-1])
        self.assertEqual(len(last["sample"]["continuation"].split()), 3)
        log, other_weights, shown, _ = self.trained(*held, "--sample-tokens", 0)
        self.assertEqual((json.loads(log.splitlines()[-1])["held_out"], other_weights), (last["held_out"], weights))
        self.assertNotIn("sample", log.splitlines()[-1])
        for held_out, learned in ((2, 6), (0.25, 6), (5, 3)):
            log, _, shown, _ = self.trained(*steps, "--hold-out", held_out)
            self.assertIn(f"{learned} samples, 3 steps", shown)
            self.assertIn("held_out", json.loads(log.splitlines()[-1]))
        # A rate that leads nowhere ends by itself.
        away = (*LORA, "--steps", 50, "--rate", 30, "--schedule", "constant", "--hold-out", 2, "--eval-every", 1)
        told = [json.loads(l) for l in self.trained(*away, "--patience", 3)[0].splitlines()]
        best = min((l for l in told if "held_out" in l), key=lambda l: l["held_out"])["step"]
        self.assertEqual(told[-1]["step"], best + 3)
        self.assertLess(best + 3, 50)
        out, command = self.command(*steps, "--dry-run")
        self.assertIn("memory at the peak: ", self.ok(*command).stderr)
        self.assertFalse(out.exists())
        # What lies where a checkpoint would.
        out, command = self.command(*steps)
        pathlib.Path(f"{out}.training").mkdir()
        pathlib.Path(f"{out}.training/checkpoint.safetensors").write_bytes(b"none")
        self.refused(1, *command, says=["checkpoint.safetensors"])
        self.ok(*command, "--restart")
        self.seen.add("--restart")
        # What --lora names goes into the adapter.
        for lora, want in (("rank=4", (4, 8, 0, ["q_proj", "v_proj"])),
                           ("rank=4,alpha=3,dropout=0.1,targets=q_proj,o_proj", (4, 3, 0.1, ["q_proj", "o_proj"]))):
            config = json.loads((self.trained("--lora", lora, "--steps", 1)[3] / "adapter_config.json").read_text())
            self.assertEqual((config["r"], config["lora_alpha"], config["lora_dropout"], config["target_modules"]), want)
        for lora in ("rank=0", "rank=1.5", "alpha=0", "rang=4", "rank", "targets=", "targets=q_proj,rank=4", "dropout=1", "dropout=-0.1", "dropout=x"):
            self.no(1, "--lora", lora, says=["--lora: '", "expected rank=16,alpha=32,targets=q_proj,v_proj"])
        # Refused by name.
        self.no(2, *steps, "--momentum", 0.5, says=["--momentum is of --optimizer sgd"])
        for flag in ("--beta1", "--beta2", "--epsilon"):
            self.no(2, *sgd, flag, 0.5, says=[flag, "is of --optimizer adamw"])
        for flag in ("--eval-every", "--patience", "--sample-tokens"):
            self.no(2, *steps, flag, 2, says=[f"{flag} needs held-out data"])
        self.no(2, *steps, "--hold-out", 2, "--eval", self.other, says=["--hold-out and --eval exclude each other"])
        for held_out in (8, 0.01):
            self.no(1, *steps, "--hold-out", held_out, says=[f"--hold-out {held_out} of 8 samples leaves none"])
        self.no(2, *steps, "--rank-wait", 2, says=["--rank-wait is for several processes"])
        self.no(2, *steps, "--schedule", "constant", "--least-rate", 0.5, says=["--least-rate", "--schedule constant"])
        self.no(2, *steps, "--epochs", 2, says=["--epochs and --steps exclude each other"])
        self.no(2, *steps, "--freeze", "*", says=["--freeze is for --full"])
        self.no(2, *steps, "--dropout", 0.1, says=["--dropout is for --full: adapters have their own, --lora dropout=0.1"])
        self.no(1, *steps, "--cuts", "drawn", "--hold-out", 2, says=["--hold-out takes samples, and --cuts drawn leaves documents whole"])
        self.no(2, *steps, "--cuts", "any", says=["--cuts"])
        self.no(2, *steps, "--average", 1, says=["--average"])
        self.no(2, *steps, "--white", "linear", says=["white"])
        self.no(2, *narrow, "--black", "no_such_op", says=["no_such_op"])
        self.no(1, *steps, "--rate-of", "nothing=2", says=["--rate-of nothing=2 matches no parameter"])
        for rate in ("nothing", "*=", "*=0.5x"):
            self.no(2, *steps, "--rate-of", rate, says=[f"--rate-of {rate}: expected PATTERN=FACTOR"])
        self.no(1, *steps, "--eval", f"{self.other}:2", says=[f"--eval {self.other}:2", "a weight is for --data"])
        self.no(1, *steps, "--labels", "a,b", says=["--labels names the classes of an encoder's head"])
        self.no(1, *steps, "--length", 4, "--too-long", "refuse", "--data", self.prompts(), says=["line 1", "above --length 4"])
        self.no(1, *steps, "--length", 999, says=["--length 999 is above the model's context of 128"])
        self.no(1, *steps, "--tokens", 4, says=["--tokens 4 is less than the longest sample's"])
        self.no(1, *whole, "--weights", "int8", says=["all parameters of a quantized model cannot be trained"])
        self.no(1, *whole, "--weights", "int8", "--freeze", "*_proj*", "--freeze", "lm_head*", says=["which a Hugging Face folder cannot hold"])
        self.no(1, *steps, "--data", f"{self.data}:0", says=["a weight is above 0"])
        self.no(1, *steps, "--memory", "1KiB", says=["training takes", "1.0 KiB may be taken", "fit"])
        self.no(2, *steps, "--memory", "much", says=["memory budget", "much"])
        for flag, value in (("--steps", 0), ("--epochs", 0), ("--schedule", "square"), ("--optimizer", "lion"), ("--recompute", "some"),
                            ("--precision", "int8"), ("--ranks", 0), ("--beta1", 1), ("--clip", -1), ("--warmup", -1), ("--accumulate", 0)):
            self.no(2, *LORA, flag, value, says=[flag])
        images = {"--batch", "--size", "--mean", "--std", "--bgr", "--stretch"}  # test_finetune_images.py
        self.assertEqual(flags_of("finetune"), self.seen | images)

    def prompts(self):
        path = self.folder / "prompts.jsonl"
        path.write_text(json.dumps({"prompt": "1 2 3", "completion": "4 5 6"}) + "\n")
        return path

    def test_merge_and_train(self):
        self.assertEqual(flags_of("merge"), {"--lora", "--out"})
        _, _, _, adapter = self.trained(*LORA, "--steps", 2)
        merged = self.folder / "merged"
        done = self.ok("merge", self.model, "--lora", adapter, "-o", merged)
        self.assertEqual(done.stdout, f"{merged}\n")
        # Small steps are lost in int4: what is lost is more than the change itself.
        lost = re.search(r"as int4 the merged layers would be off by ([0-9.e+]+) times the adapter's change", done.stderr)
        self.assertGreater(float(lost[1]), 1)
        base = (self.model / "model.safetensors").read_bytes()
        self.assertNotEqual((merged / "model.safetensors").read_bytes()[-len(base) // 2:], base[-len(base) // 2:])
        fresh = ("-o", self.folder / "fresh")
        self.refused(1, "merge", self.model, "--lora", self.folder / "none", *fresh, says=["adapter_config.json", "is not there"])
        self.refused(1, "merge", self.folder / "none", "--lora", adapter, *fresh, says=["none"])
        self.refused(1, "merge", "demo", "--lora", adapter, *fresh, says=["the adapter is of another base model"])
        self.refused(1, "merge", self.model, "--lora", adapter, "-o", merged, says=["is there already"])
        self.assertFalse((self.folder / "fresh").exists())
        # Those of `finetune` are the same options (above); --config and --words are test_train.py's.
        of_a_given_model = {"--model", "--full", "--lora", "--weights", "--labels", "--batch", "--size", "--mean", "--std",
                            "--bgr", "--stretch"}
        own = {"--config", "--words", "--tokenizer", "--vocab", "--special", "--least-count"}
        self.assertEqual(flags_of("train"), own | (flags_of("finetune") - of_a_given_model))
        text = self.folder / "text.txt"
        text.write_text("ab ab ab cd cd ef\n")
        sizes = []
        for count in (2, 3):
            out = self.folder / f"words{count}"
            self.ok("train", "--tokenizer", "--data", text, "--least-count", count, "-o", out)
            sizes.append(len(json.loads((out / "tokenizer.json").read_text())["model"]["merges"]))
        self.assertGreater(sizes[0], sizes[1])
        for flag, value in (("--vocab", 257), ("--least-count", 0)):
            self.refused(2, "train", "--tokenizer", "--data", text, flag, value, *fresh, says=[flag])

    def test_places_to_write_are_tried_before_the_first_step(self):
        nowhere = self.folder / "none" / "file"
        run = ("finetune", self.model, "--data", self.data, *LORA, "--steps", 1, "--length", 16)
        for flag in ("--log", "--plot"):
            done = self.refused(1, *run, "-o", self.folder / "none-yet", flag, nowhere, says=[f"{flag}: cannot create {nowhere}"])
            self.assertNotIn("step 1/1", done.stderr)
        # A slash behind the name of a folder changes nothing; what has no name is none.
        for command, made in (((*run, "--plot", self.folder / "plot.svg"), "adapter"),
                              (("merge", self.model, "--lora", self.folder / "adapter"), "sum"),
                              (("quantize", self.model, "--weights", "int8", "--quiet"), "narrow"),
                              (("train", "--tokenizer", "--data", self.data, "--vocab", 300), "words")):
            with self.subTest(command=command[0]):
                self.ok(*command, "-o", f"{self.folder / made}//")
                self.assertTrue(any((self.folder / made).glob("*.json")))
                self.assertFalse([p for p in (self.folder / made).iterdir() if p.is_dir()])
                for path in (".", self.folder / "..", "/"):
                    self.refused(2, *command, "-o", path, says=["--out", "names no new folder"])

    def test_conversations_without_a_chat_template(self):
        """The one that takes its place is told, and comes with a whole model."""
        self.data.write_text(json.dumps({"messages": [{"role": "user", "content": "1 2"}, {"role": "assistant", "content": "3"}]}) + "\n")
        for kind, says in ((LORA, "ChatML, as when it serves"), (("--full",), "ChatML, which what comes out has")):
            _, _, shown, out = self.trained(*kind, "--steps", 1, "--length", 64)
            self.assertIn(f"the model has no chat template: conversations are rendered as {says}", shown)
            self.assertEqual((out / "chat_template.jinja").exists(), kind == ("--full",))
        _, _, shown, out = self.trained("--full", "--steps", 1, "--data", self.other)
        self.assertNotIn("chat template", shown)
        self.assertFalse((out / "chat_template.jinja").exists())

    def test_classifiers(self):
        tiny_bert.write_bert(self.folder / "bert")
        self.data = self.folder / "pairs.tsv"
        long = " ".join(["good"] * 40)
        self.data.write_text(f"text\ttext_pair\tlabel\ngood\tbad film\tyes\n{long}\t{long}\tno\n")
        self.model = self.folder / "bert"
        _, _, shown, _ = self.trained("--full", "--steps", 1)
        self.assertIn("pairs.tsv: 1 of 2 samples were cut at 16 tokens", shown)
        self.no(1, "--full", "--too-long", "refuse", says=["pairs.tsv, line 3", "the text has 83 tokens, above --length 16"])
        self.no(1, "--full", "--labels", "yes", says=["--labels names one label"])
        self.no(2, "--full", "--eval", self.data, "--sample-tokens", 3, says=["--sample-tokens is of language models"])
        self.data.write_text("text\tlabel\ngood film\tpraise\nbad film\tblame\nthe film\tneither\n")
        self.trained("--full", "--steps", 60, "--rate", "3e-2")
        out = self.folder / f"out{self.runs}"
        if not has_server():
            return
        with Server(model=str(out)) as server:
            body = {"model": out.name, "input": ["good film", "bad film", "the film"]}
            request = urllib.request.Request(server.url("/classify"), json.dumps(body).encode(), {"content-type": "application/json"})
            told = json.load(urllib.request.urlopen(request, timeout=TIMEOUT))["data"]
        self.assertEqual([one["label"] for one in told], ["praise", "blame", "neither"])
        for one in told:
            self.assertEqual((one["num_classes"], len(one["probs"])), (3, 3))
            self.assertAlmostEqual(sum(one["probs"]), 1, places=5)
            self.assertGreater(max(one["probs"]), 0.5)

    def test_inspect_says_what_finetune_says(self):
        adapter, sgd = ("rank=2,targets=q_proj,v_proj", *LORA), ("--optimizer", "sgd")
        peaks = {}
        for what, *rest in (
                (adapter,), (adapter, "--recompute", "layers"), (adapter, "--recompute", "full"), (adapter, "--precision", "O1"),
                (adapter, "--precision", "O2", "--black", "attention"), (adapter, "--precision", "O1", "--white", "rms_norm"),
                (adapter, "--tokens", 64), (adapter, "--length", 32), (adapter, "--weights", "int8"), (adapter, "--ranks", 2),
                (adapter, "--eval", self.other), (adapter, "--eval", self.other, "--sample-tokens", 0), (adapter, "--hold-out", 2),
                (adapter, "--accumulate", 2), (("full", "--full"), "--clip", 0), (adapter, *sgd), (("rank=4,targets=all", "--lora", "rank=4,targets=all"),),
                (("full", "--full"),), (("full", "--full"), *sgd), (("full", "--full"), "--freeze", "*proj*"),
                (("full", "--full"), "--ranks", 3, "--recompute", "layers", "--precision", "O1")):
            with self.subTest(what=what[0], rest=rest):
                _, command = self.command(*what[1:], *rest, "--dry-run", *(() if "--length" in rest else ("--length", 16)))
                run = re.search(r"(?m)^memory at the peak: .*$", self.ok(*command).stderr)[0]
                one = () if "--recompute" in rest else ("--recompute", "activations")
                length = () if "--length" in rest else ("--length", 16)
                told = self.ok("inspect", self.model, "--train", what[0], *rest, *one, *length, "--threads", 1).stdout
                self.assertEqual(re.search(r"(?m)^memory at the peak: .*$", told)[0], run)
                total = re.search(r", ([0-9.]+ \w+) in all$", told, re.M)[1]
                self.assertIn(f"peak: {total} ", run)
                peaks[(what[0], *map(str, rest))] = run
        # Each of these changes it, but for two layers' full recomputation here; --hold-out is as --eval. So is a sample of so few rows: an
        # adapter's goes through what the held-out loss does.
        self.assertEqual(len(set(peaks.values())), len(peaks) - 3, peaks)
        self.refused(2, "inspect", self.model, "--train", "full", "--precision", "int8", says=["--precision int8", "O1"])
        self.refused(2, "inspect", self.model, "--precision", "O1", says=["--precision", "--train"])
        self.refused(2, "inspect", self.model, "--train", "rank=2", "--freeze", "x", says=["--freeze is for --full"])
        self.refused(2, "inspect", self.model, "--train", "rank=2", "--batch", 4, says=["--batch", "networks over images"])
        self.refused(2, "inspect", self.model, "--ranks", 2, says=["--ranks", "--train"])

    def test_a_loss_that_is_no_number(self):
        """Of whichever rank it is, one message names the step, the sample and the op."""
        tiny_llama.spoil(self.model, 63)
        self.data.write_text('{"text":"1 2 3 4 5 6 7 8"}\n{"text":"1 2 63 4 5 6 7 8"}\n')
        for ranks in ((), ("--accumulate", 2), ("--ranks", 2)):
            for seed in range(3):
                with self.subTest(ranks=ranks, seed=seed):
                    out, command = self.command(*LORA, "--steps", 2, "--seed", seed, *ranks, "--length", 8)
                    done = self.refused(1, *command, says=["the loss or a gradient is no number any more", f"Samples: {self.data} 2.",
                                                           "the first op whose result has such is table_rows of 'model.embed_tokens.weight'"])
                    self.assertEqual(done.stderr.count("is no number any more"), 1, done.stderr)
                    self.assertRegex(done.stderr, r"step [12]: " if not ranks else "step 1: ")
                    self.assertFalse(out.exists())
        self.no(1, *LORA, "--steps", 1, "--length", 8, "--eval", self.data, "--data", self.other, says=["no number any more", f"{self.data} 2."])

    def hurt(self, before):
        """A run that goes on behind a checkpoint and cannot write the next one: the old one stays, and serves once all is well again."""
        flags = ("--lora", "rank=16,targets=q_proj,v_proj", "--steps", 60, "--checkpoint-every", 2)
        whole = self.trained(*flags)[1]
        out, command = self.command(*flags)
        process = subprocess.Popen([OAR, *map(str, command)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        checkpoint = pathlib.Path(f"{out}.training/checkpoint.safetensors")
        while not checkpoint.exists() and process.poll() is None:
            pass
        process.kill()
        process.communicate()
        self.assertTrue(checkpoint.exists(), "the run was over before it was killed")
        kept = checkpoint.read_bytes()
        step = json.loads(json.loads(kept[8:8 + int.from_bytes(kept[:8], "little")])["__metadata__"]["oar.training"])["step"]
        done = subprocess.run([OAR, *map(str, command)], capture_output=True, text=True, timeout=TIMEOUT, preexec_fn=before(out))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(checkpoint.read_bytes(), kept)
        self.assertIn(f"the checkpoint of step {step} stays, the same command goes on from there", done.stderr)
        checkpoint.parent.chmod(0o755)
        self.ok(*command)
        self.assertEqual(hashlib.sha256((out / "adapter_model.safetensors").read_bytes()).hexdigest(), whole)
        return done.stderr

    def test_matrices_in_another_basis(self):
        rewritten = self.folder / "rewritten"
        self.ok("quantize", "demo", "-o", rewritten, "--weights", "int4", "--rotate", "all")
        self.refused(1, "finetune", rewritten, "--data", self.data, *LORA, "-o", self.folder / "none", says=["rotated or scaled", "--weights int4"])

    def test_a_full_disk(self):
        def before(_):
            def limit():
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))  # less than half a checkpoint
            return limit
        self.assertIn("checkpoint", self.hurt(before))

    def test_a_folder_that_cannot_be_written(self):
        root = os.geteuid() == 0  # who can write everywhere, so the run is nobody's
        if root and not all(p.stat().st_mode & 1 for p in pathlib.Path(OAR).resolve().parents):
            self.skipTest("skipped: the program is in a folder of root alone")
        self.folder.chmod(0o777)

        def before(out):
            pathlib.Path(f"{out}.training").chmod(0o555)

            def nobody():
                if root:
                    os.setgroups([])
                    os.setgid(NOBODY)
                    os.setuid(NOBODY)
            return nobody
        self.assertIn("cannot create", self.hurt(before))


if __name__ == "__main__":
    unittest.main(verbosity=1)
