#!/usr/bin/env python3
"""The commands that quantize and measure what it costs: quantize, eval, tune, inspect --quant."""
import json
import pathlib
import re
import sys
import tempfile
import unittest

from program import DATA, SANITIZERS, SOURCE, STORIES, TALES, Base

sys.path.insert(0, str(SOURCE / "tests" / "bench"))
import k_quants  # noqa: E402


class InspectQuant(Base):
    def test_memory_by_room(self):
        with tempfile.TemporaryDirectory() as cache:
            args = ("inspect", "demo", "--quant", "--cache-dir", cache, "--weights", "int4", "--kv", "int4")
            told = json.loads(self.ok(*args, "--json").stdout)
            self.assertEqual([f["format"] for f in told["formats"]], ["i4_s8_g32", "q6_k"])
            self.assertEqual(sum(f["bytes"] for f in told["formats"]), told["linear_bytes"])
            self.assertLess(told["bits_per_weight_without_head"], 4.4)  # 4.25 and 32 bits a row of 256 or 768
            self.assertEqual((told["kv_bits"], told["kv_bytes_per_token"]), (4.5, 6 * 2 * 2 * 64 * 4.5 / 8))
            # 64 and 16 tokens in bf16
            self.assertEqual(told["kv_open_bytes_per_sequence"], 6 * 2 * 2 * 64 * 2 * (64 + 16))
            self.assertIn("4.50 bits per element", self.ok(*args).stdout)
        rotated = json.loads(self.ok("inspect", "demo", "--quant", "--rotate", "all", "--json").stdout)
        self.assertEqual(rotated["rotation"], "r1,r2,r3,r4")
        self.assertGreater(rotated["packed_bytes"], 0)
        self.refused(2, "inspect", "demo", "--quant", "--plan", says=["--plan"])


class Tune(Base):
    def test_a_decision_is_made_kept_and_used(self):
        with tempfile.TemporaryDirectory() as cache:
            args = ("tune", "demo", "--cache-dir", cache, "--max-kld", "0.01", "--tokens", "400", "--json")
            told = json.loads(self.ok(*args).stdout)
            self.assertEqual((told["kv"], told["within"], told["complete"]), ("k4v3", True, True))
            self.assertTrue(pathlib.Path(told["file"]).is_relative_to(cache))
            kept = json.loads(pathlib.Path(told["file"]).read_text())
            self.assertEqual((kept["kv"], kept["mean_kld"]), ("k4v3", told["mean_kld"]))
            used = self.ok("eval", "demo", "--cache-dir", cache, "--kv", "auto", "--text", told["file"], "--json")
            self.assertEqual(json.loads(used.stdout)["kv"], "k4v3")
            # `--kv auto` is that decision in every command, alone or in a list.
            rows = json.loads(self.ok("eval", "demo", "--cache-dir", cache, "--kv", "auto,int8", "--text", told["file"],
                                      "--json").stdout)["rows"]
            self.assertEqual([r["kv"] for r in rows], ["k4v3", "int8"])
            seen = self.ok("inspect", "demo", "--cache-dir", cache, "--quant", "--kv", "auto", "--json")
            self.assertEqual(json.loads(seen.stdout)["kv"], "k4v3")
            self.refused(1, "tune", "demo", "--cache-dir", cache, "--seconds", "0.000001", says=["--seconds"])
        self.refused(2, "tune", "demo", "--max-kld", "0", says=["max-kld"])

    def test_a_text_that_decides_nothing_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text"
            for content in ("Once more unto the breach, dear friends.\n<|endoftext|>\n" * 50, "a"):
                text.write_text(content)
                self.refused(1, "tune", "demo", "--cache-dir", folder, "--text", text,
                             says=["256", "position 64", "longer documents"])
            text.write_text("")
            self.refused(1, "tune", "demo", "--cache-dir", folder, "--text", text, says=["text"])
            self.refused(1, "tune", "demo", "--cache-dir", folder, "--text", "", says=["cannot open"])
            self.assertFalse((pathlib.Path(folder) / "kv").exists())


class Quantize(Base):
    def test_the_output_is_a_model(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out"
            self.ok("quantize", "demo", "-o", out, "--quiet")
            self.assertEqual(json.loads((out / "config.json").read_text())["quantization_config"]["method"], "rtn")
            self.assertEqual(sorted(p.name for p in out.iterdir()),
                             ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors",
                              "tokenizer.json", "tokenizer_config.json"])
            self.assertTrue(self.ok("generate", out, "--prompt", "ROMEO:", "--max-tokens", "4").stdout)

    def test_what_is_quantized_stays_as_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "d4"
            self.ok("quantize", "demo", "-o", out, "--weights", "int4", "--quiet")
            stored = self.ok("inspect", out, "--quant").stdout
            for weights in ("int8", "q4_0", "int4"):
                told = self.ok("inspect", out, "--quant", "--weights", weights)
                self.assertEqual(told.stdout, stored)
                self.assertIn(f"--weights {weights}: the model has no matrix in 16 or 32 bits that this could quantize", told.stderr)

    def test_an_int8_model_runs_in_little_more_memory_than_its_file(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "d8"
            self.ok("quantize", "demo", "-o", out, "--weights", "int8", "--quiet")
            small = ["--max-tokens", "3", "--max-sequences", "2", "--max-batch-tokens", "64"]
            self.assertLess((out / "model.safetensors").stat().st_size, 7 << 20)
            self.assertTrue(self.ok("generate", out, "-p", "R", *small, "--memory", "8MiB").stdout)
            self.refused(1, "generate", out, "-p", "R", *small, "--memory", "6MiB",
                         says=["memory budget of 6.0 MiB", "weights", "raise the memory"])

    def test_the_measured_table_supports_the_default(self):
        page = (SOURCE / "docs/quantization.md").read_text()
        table = re.search(r"(?s)<!-- quantization_tables.py: choice -->(.*?)<!-- end -->", page)[1]
        lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.strip().splitlines()]
        rows = [dict(zip(lines[0], line)) for line in lines[2:]]
        chosen = [r for r in rows if r["method"] == "rtn"]
        self.assertGreaterEqual(len(chosen), 2)
        for rounding in chosen:  # of what needs no text and has no more bits
            for other in rows:
                if (other["model"], other["calibration"]) == (rounding["model"], "none"):
                    if float(other["bits/w"]) <= float(rounding["bits/w"]):
                        self.assertLessEqual(float(rounding["mean KLD"]), float(other["mean KLD"]), other)

    def test_a_text_that_is_too_short_or_not_used_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            text, out = pathlib.Path(folder) / "text", pathlib.Path(folder) / "out"
            text.write_text("To be, or not to be: that is the question.")
            self.refused(1, "quantize", "demo", "-o", out, "--method", "gptq", "--calibration", text, "-q",
                         says=["at least 512 tokens", "longer text"])
            self.refused(1, "quantize", "demo", "-o", out, "--calibration", text, "-q", says=["gptq"])
            self.refused(2, "quantize", "demo", "-o", out, "--calibration-tokens", "100", says=["512"])
            self.assertEqual([p.name for p in pathlib.Path(folder).iterdir()], ["text"])

    def test_files_of_other_kinds(self):
        want = json.loads((TALES / "expected.json").read_text())
        cases = [(TALES / name, "i8_channel", TALES / "sample.txt", want["sample_context"], want["sample_tokens"],
                  want["sample_perplexity"]) for name in ("tales.bin", "tales.gguf")]
        if STORIES.exists():
            text = DATA / "tokenizers/bpe_training_golden/tinystories_sample.txt"
            cases += [(STORIES / name, "q8_0", text, 512, 1804, 3.5482) for name in ("stories260K.bin", "stories260K.gguf")]
        with tempfile.TemporaryDirectory() as folder:
            for model, weights, text, context, tokens, perplexity in cases:
                with self.subTest(model.name):
                    out = pathlib.Path(folder) / model.name
                    told = self.ok("quantize", model, "-o", out, "--weights", weights)
                    if weights == "q8_0":
                        self.assertIn("not quantized, as their width is no multiple of 32: "
                                      "model.layers.0.mlp.down_proj.weight (64 x 172, f32)", told.stdout)
                    got = json.loads(self.ok("eval", out, "--text", text, "--context", context, "--json").stdout)
                    self.assertEqual(got["tokens"], tokens)
                    self.assertAlmostEqual(got["perplexity"] / perplexity, 1, delta=0.01)

    def test_a_file_of_k_quants_as_benchmarks_write_it(self):
        config = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 4, "head_dim": 64,
                  "num_key_value_heads": 2, "vocab_size": 512, "rms_norm_eps": 1e-5, "rope_theta": 1e4}
        with tempfile.TemporaryDirectory() as folder:
            shape, file = pathlib.Path(folder) / "config.json", pathlib.Path(folder) / "tiny.Q4_K_M.gguf"
            shape.write_text(json.dumps(config))
            k_quants.write(str(shape), str(file))
            told = self.ok("bench", file, "--json", "-q", "--repeat", "1", "--prompt-tokens", "16", "--gen-tokens", "4")
            self.assertIn('"q4_k+q6_k"', told.stdout)

    def test_matrices_that_stay_wide_are_named(self):
        named = "model.layers.2.mlp.down_proj.weight (48 x 132, f32)"
        with tempfile.TemporaryDirectory() as folder:
            self.refused(1, "quantize", TALES / "tales.gguf", "-o", pathlib.Path(folder) / "out", "-q",
                         says=["nothing would be quantized", "no multiple of 32", named])
            for weights in ("int4", "int8"):
                args = ("--weights", weights, "--cache-dir", folder)
                self.assertIn(named, self.ok("generate", TALES / "tales.bin", "-n", "2", *args).stderr)
                self.assertIn(named, self.ok("inspect", TALES / "tales.bin", "--quant", *args).stdout)


class Eval(Base):
    @unittest.skipIf(SANITIZERS, "the whole held-out text takes minutes under sanitizers")
    def test_held_out_text_of_the_embedded_model(self):
        want = json.loads((SOURCE / "configs/demo/heldout.json").read_text())
        told = json.loads(self.ok("eval", "demo", "--text", SOURCE / "configs/demo/heldout.txt", "--json").stdout)
        self.assertEqual((told["tokens"], told["bytes"]), (want["tokens"], want["bytes"]))
        # The engine rounds activations and keys to bf16, 2^-9 each, which mostly averages out.
        self.assertAlmostEqual(told["perplexity"] / want["perplexity_f32"], 1, delta=2 ** -9)

    def test_bits_of_the_cache_as_used(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text"
            bits = {}
            for name, content in {"short": "Once more unto the breach, dear friends.\n<|endoftext|>\n" * 9,
                                  "long": (SOURCE / "configs/demo/heldout.txt").read_text()[:3000]}.items():
                text.write_text(content)
                args = ("eval", "demo", "--text", text, "--kv", "int4")
                bits[name] = json.loads(self.ok(*args, "--json").stdout)["kv_bits"]
                self.assertIn(f"int4: {bits[name]:.2f} bits per element", self.ok(*args).stdout)
                row = json.loads(self.ok(*args, "--weights", "auto,bf16", "--json").stdout)["rows"][0]
                self.assertEqual(row["kv_bits_of_quantized_pages"], 4.5)
                if name == "short":  # in one context of the model's length both commands cut alike
                    self.assertEqual(row["kv_bits"], bits[name])
            self.assertEqual(bits["short"], 16)  # nothing lies behind the sinks and the newest page
            self.assertGreater(bits["long"], 4.6)
            self.assertLess(bits["long"], 7)

    def test_documents_and_windows(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("  To be, or not to be.\n<|endoftext|>\n\n<|endoftext|> That is the question.\n")
            file.flush()
            whole = json.loads(self.ok("eval", "demo", "--text", file.name, "--json").stdout)
            self.assertEqual((whole["documents"], whole["windows"]), (2, 2))
            cut = json.loads(self.ok("eval", "demo", "--text", file.name, "--context", "4", "--json").stdout)
            self.assertEqual(cut["tokens"], whole["tokens"])
            self.assertGreater(cut["windows"], 2)
            self.assertGreater(cut["nll"], whole["nll"])  # less to go by
            self.refused(1, "eval", "demo", "--text", file.name, "--max-context", "64", "--context", "128",
                         says=["context 128", "64"])
            self.refused(1, "eval", "demo", "--text", file.name, "--context", "1", says=["context"])

    def test_perplexity_of_independent_runs(self):
        want = json.loads((TALES / "expected.json").read_text())
        cases = [(TALES / name, TALES / "sample.txt", want["sample_context"], want["sample_tokens"], want["sample_perplexity"])
                 for name in ("tales.bin", "tales.gguf")]
        if STORIES.exists():
            text = DATA / "tokenizers/bpe_training_golden/tinystories_sample.txt"
            cases += [(STORIES / name, text, 512, 1804, 3.5482) for name in ("stories260K.bin", "stories260K.gguf")]
        for model, text, context, tokens, perplexity in cases:
            with self.subTest(model):
                told = json.loads(self.ok("eval", model, "--text", text, "--context", context, "--json").stdout)
                self.assertEqual(told["tokens"], tokens)
                self.assertAlmostEqual(told["perplexity"], perplexity, delta=5e-5 * perplexity)


if __name__ == "__main__":
    unittest.main(verbosity=1)
