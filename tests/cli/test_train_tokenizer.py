#!/usr/bin/env python3
"""oar train --tokenizer as a user runs it; with the downloaded texts the default model's own tokenizer, and how that model is made."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from program import DATA, OAR, SOURCE, Base


class TrainTokenizer(Base):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.text = self.folder / "a.txt"
        self.text.write_text("the cat, the hat, the bat\n" * 3, encoding="utf-8")

    def test_a_tokenizer_is_learned(self):
        out = self.folder / "out"
        command = ("train", "--tokenizer", "--data", self.text, "--vocab", 300, "-o", out)
        done = self.ok(*command)
        self.assertRegex(done.stdout, r"out: \d+ entries from 78 B of text")
        self.assertIn("entries, not 300: no pair is left", done.stderr)
        made = json.loads((out / "tokenizer.json").read_text())
        self.assertEqual(made["model"]["merges"][0], ["a", "t"])
        self.assertEqual(json.loads((out / "tokenizer_config.json").read_text())["bos_token"], "<|bos|>")
        self.refused(1, *command, says=["is there already"])
        self.ok("train", "--tokenizer", "--data", self.text, "--special", "<s>,</s>", "--vocab", 258, "-o", self.folder / "bytes")
        self.assertNotIn("chat_template", (self.folder / "bytes/tokenizer_config.json").read_text())

    def test_what_is_wrong_is_named(self):
        out = ("-o", self.folder / "out")
        self.refused(2, "train", "--data", self.text, *out, says=["--tokenizer"])
        self.refused(1, "train", "--tokenizer", "--data", self.folder / "none.txt", *out, says=["none.txt"])
        self.refused(1, "train", "--tokenizer", "--data", self.text, "--vocab", 261, *out, says=["--vocab 261"])
        self.text.write_bytes(b"\xff\xfe")
        self.refused(1, "train", "--tokenizer", "--data", self.text, *out, says=["not UTF-8"])
        self.assertFalse((self.folder / "out").exists())

    def test_the_default_models_tokenizer(self):
        if not (DATA / "text/botchan.txt").is_file():
            self.skipTest("skipped: text/botchan.txt of the test data is not here")
        sys.path.insert(0, str(SOURCE / "train/demo"))
        from corpus import read_corpus
        corpus = read_corpus(DATA / "text")
        (self.folder / "plays").write_text(corpus.plays, encoding="utf-8")
        (self.folder / "novel").write_text(corpus.novel, encoding="utf-8")
        out = self.folder / "out"
        self.ok("train", "--tokenizer", "--data", self.folder / "plays", self.folder / "novel", "--vocab", 2048, "-o", out)
        self.assertEqual(json.loads((out / "tokenizer.json").read_text()), json.loads((SOURCE / "configs/demo/tokenizer.json").read_text()))

    def test_the_default_model_is_made(self):
        """A much smaller one, for a few steps; the second call finds all that the first left."""
        if not (DATA / "text/botchan.txt").is_file():
            self.skipTest("skipped: text/botchan.txt of the test data is not here")
        config = json.loads((SOURCE / "configs/demo/config.json").read_text())
        config |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
                   "head_dim": 16}
        (self.folder / "config.json").write_text(json.dumps(config))
        out = self.folder / "model"
        command = [sys.executable, str(SOURCE / "train/demo/make.py"), "--text", str(DATA / "text"), "--out", str(out), "--oar", OAR, "--config",
                   str(self.folder / "config.json"), "--steps", "4", "--conversations", "30"]
        made = [subprocess.run(command, capture_output=True, text=True, timeout=300) for _ in range(2)]
        for run in made: self.assertEqual(run.returncode, 0, run.stderr)
        told = [json.loads(run.stdout.splitlines()[-1]) for run in made]
        self.assertEqual((told[0]["tokens"], told[0]["nll"]), (23738, told[1]["nll"]))
        self.assertNotIn(" train ", made[1].stdout)
        for name in ("tokenizer.json", "generation_config.json"):
            self.assertEqual(json.loads((out / name).read_text()), json.loads((SOURCE / "configs/demo" / name).read_text()))
        self.assertEqual((out / "heldout.txt").read_bytes(), (SOURCE / "configs/demo/heldout.txt").read_bytes())
        # None of what is held out, or stops the run, is learned.
        data = self.folder / "model.making/data"
        learned = (data / "plays.txt").read_text() + (data / "novel.txt").read_text()
        for kept in ("heldout.txt", "stopping.txt"):
            lines = [line for line in (data / kept).read_text().splitlines() if len(line) > 40]
            self.assertGreater(len(lines), 100)
            self.assertLess(sum(line in learned for line in lines), 3)
        turns = [m["content"] for line in (data / "chats.jsonl").read_text().splitlines() for m in json.loads(line)["messages"] if m["role"] == "assistant"]
        self.assertTrue(all(turn in learned for turn in turns))


if __name__ == "__main__":
    unittest.main(verbosity=1)
