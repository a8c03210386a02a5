#!/usr/bin/env python3
"""oar train --config as a user runs it: from text to a folder that generates, and what it refuses."""
import json
import pathlib
import subprocess
import tempfile
import time
import unittest

from program import OAR, Base

# About 1,300 numbers.
TINY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 266, "hidden_size": 4, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
RUN = ("--length", 16, "--tokens", 64, "--threads", 1)


class Train(Base):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.text = self.folder / "a.txt"
        self.text.write_text("the cat and the hat and the bat and the rat\n" * 12, encoding="utf-8")
        self.config = self.write(TINY)

    def write(self, config):
        path = self.folder / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    def command(self, *more, out="out"):
        return ("train", "--config", self.config, "--data", self.text, "-o", self.folder / out, *RUN, *more)

    def weights(self, name):
        return (self.folder / name / "model.safetensors").read_bytes()

    def test_a_model_is_trained_from_text_and_generates(self):
        log, chats = self.folder / "log.jsonl", self.folder / "chats.jsonl"
        chats.write_text(json.dumps({"messages": [{"role": "user", "content": "the cat"},
                                                  {"role": "assistant", "content": "and the hat"}]}) + "\n", encoding="utf-8")
        done = self.ok(*self.command("--data", chats, "--eval", self.text, "--steps", 300, "--rate", 0.05, "--log", log))
        self.assertRegex(done.stderr, r"a tokenizer of 266 entries from \d+ B of text")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        losses = [l["loss"] for l in lines if "loss" in l]
        self.assertLess(abs(losses[0] - 5.58), 0.1)  # ln 266: nothing is known yet
        self.assertLess(losses[-1], 1.5)
        made = json.loads((self.folder / "out/config.json").read_text())
        self.assertEqual((made["vocab_size"], made["bos_token_id"], made["eos_token_id"]), (266, 0, [1, 5]))
        self.assertEqual(made["torch_dtype"], "bfloat16")
        self.assertFalse((self.folder / "out.training").exists())
        said = self.ok("generate", self.folder / "out", "--prompt", "the cat", "--max-tokens", 8, "--temperature", 0).stdout
        self.assertRegex(said, r" the (cat|hat|bat|rat)| and")
        self.refused(1, *self.command("--steps", 1), says=["is there already"])

    def test_a_tokenizer_that_is_there_and_a_seed(self):
        words = self.folder / "words"
        self.ok("train", "--tokenizer", "--data", self.text, "--vocab", 266, "-o", words)
        for out, more in (("a", ("--words", words)), ("b", ()), ("c", ("--seed", 3))):
            self.ok(*self.command("--steps", 2, *more, out=out))
        self.assertEqual(self.weights("a"), self.weights("b"))
        self.assertNotEqual(self.weights("a"), self.weights("c"))

    def test_a_killed_run_goes_on_to_the_same_bits(self):
        steps = ("--steps", 60, "--checkpoint-every", 1)
        self.ok(*self.command(*steps, out="whole"))
        command = [OAR, *map(str, self.command(*steps, out="killed"))]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (self.folder / "killed.training/checkpoint.safetensors").exists():
            time.sleep(0.005)
        process.kill()
        process.wait()
        if not (self.folder / "killed").exists():
            self.refused(1, *self.command(*steps, "--seed", 1, out="killed"), says=["was made with another"])
            self.ok(*self.command(*steps, out="killed"))
        self.assertEqual(self.weights("whole"), self.weights("killed"))

    def test_a_run_is_stopped_by_what_it_holds_out(self):
        log = self.folder / "log.jsonl"
        text = "".join(f"the {a} and the {b}\n" for a in ("cat", "hat", "bat", "rat") for b in ("dog", "fog", "log")) * 8
        self.text.write_text(text, encoding="utf-8")
        done = self.ok(*self.command("--hold-out", 0.2, "--eval-every", 5, "--patience", 3, "--rate", 0.2, "--schedule", "constant",
                                     "--steps", 2000, "--log", log))
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        held_out = [(l["held_out"], l["step"]) for l in lines if "held_out" in l]
        self.assertEqual(held_out[-1][1], min(held_out)[1] + 15)
        self.assertIn(f"ended early: 3 held-out losses behind step {min(held_out)[1]} were not better", done.stderr)
        self.assertEqual(max(l["step"] for l in lines), held_out[-1][1])
        self.assertTrue(all(l["sample"]["prompt"] for l in lines if "held_out" in l))

    def test_what_is_wrong_is_named(self):
        self.refused(2, *self.command("--tokenizer"), says=["--tokenizer and --config exclude each other"])
        self.refused(2, "train", "--tokenizer", "--data", self.text, "--steps", 3, "-o", self.folder / "out",
                     says=["--steps says nothing of a tokenizer"])
        self.refused(2, *self.command("--words", self.folder, "--vocab", 300), says=["--vocab is of a tokenizer that is learned"])
        self.refused(1, *self.command("--words", self.folder), says=["has no tokenizer.json"])
        for change, says in (({"model_type": "gpt_9"}, "gpt_9"), ({"hidden_size": None}, "hidden_size"),
                             ({"torch_dtype": "float16"}, "bfloat16 or float32"), ({"text_config": {}}, "'text_config'"),
                             ({"initializer_range": 0}, "'initializer_range'"), ({"vocab_size": 100}, "--vocab 100")):
            self.write({k: v for k, v in {**TINY, **change}.items() if v is not None})
            self.refused(1, *self.command(), says=[says])
        # What could not be served is not trained, and nobody is told of adapters.
        self.write({**TINY, "head_dim": 4})
        self.refused(1, *self.command(), says=["could not be served", "head size 4 is not a multiple of 8"])
        self.write(TINY)
        said = self.refused(1, *self.command("--memory", "1KiB"), says=["training takes", "a smaller model takes less"])
        self.assertNotIn("--lora", said.stderr)
        self.config.write_text("[]", encoding="utf-8")
        self.refused(1, *self.command(), says=["holds no JSON object"])
        self.write(TINY)
        self.refused(1, "train", "--config", self.config, "--data", self.text, "-o", self.folder / "out", says=["context of 64"])
        self.text.write_text("", encoding="utf-8")
        self.refused(1, *self.command(), says=["a.txt"])
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["a.txt", "config.json"])


if __name__ == "__main__":
    unittest.main(verbosity=1)
