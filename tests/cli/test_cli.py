#!/usr/bin/env python3
"""Drives the `oar` program as a user does: real processes, real files, the embedded model. Standard library only.

$OAR_BIN names the program, $OAR_SOURCE_DIR the tree, $OAR_TEST_DATA the folder of downloaded test data (tests that
need it skip without).
"""
import http.client
import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

SOURCE = pathlib.Path(os.environ.get("OAR_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
OAR = os.environ.get("OAR_BIN", str(SOURCE / "build/release/bin/oar"))
DATA = pathlib.Path(os.environ.get("OAR_TEST_DATA", SOURCE.parent / "shared/data"))
STORIES = DATA / "llm/stories260K"
TALES = SOURCE / "tests/data/tales"  # our own of that kind
TIMEOUT = 240  # seconds; a sanitizer build on a busy machine


def oar(*args, stdin="", env=None):
    """Runs to the end; stdout and stderr as text."""
    return subprocess.run([OAR, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=TIMEOUT,
                          env={**os.environ, **(env or {})})


def has_server():
    return "OAR_SERVER=OFF" not in oar("version").stdout


class Base(unittest.TestCase):
    def ok(self, *args, **kwargs):
        done = oar(*args, **kwargs)
        self.assertEqual(done.returncode, 0, f"{args}: {done.stderr}")
        return done

    def refused(self, code, *args, says):
        done = oar(*args)
        self.assertEqual(done.returncode, code, f"{args}: {done.stdout}{done.stderr}")
        self.assertEqual(done.stdout, "", "an error leaves standard output empty")
        for words in says:
            self.assertIn(words, done.stderr)
        return done


class Help(Base):
    def test_overview_names_every_command(self):  # test_help.py runs what they show
        text = self.ok("--help").stdout
        for command in ("serve", "run", "generate", "bench", "eval", "tune", "inspect", "check", "tokenize"):
            self.assertRegex(text, rf"(?m)^  {command} ")

    def test_version(self):
        self.assertRegex(self.ok("--version").stdout, r"^\d+\.\d+\.\d+\n$")
        self.assertIn("isa", self.ok("version").stdout)


class Errors(Base):
    def test_usage_is_2(self):
        self.refused(2, says=["subcommand"])
        self.refused(2, "generate", says=["MODEL", "oar generate --help"])
        self.refused(2, "generate", "demo", "--no-such-option", says=["--no-such-option"])
        self.refused(2, "generate", "demo", "--max-tokens", "-1", says=["--max-tokens: -1 must be 0 or more"])
        self.refused(2, "generate", "demo", "--temperature", "nan", says=["--temperature: nan must be in 0..100"])
        self.refused(2, "generate", "demo", "--weights", "int3", says=["--weights", "int8"])
        self.refused(2, "generate", "demo", "--memory", "4Q", says=["4Q", "4GiB"])
        self.refused(2, "generate", "demo", "--memory", "101%", says=["101%"])
        self.refused(2, "bench", says=["MODEL", "--shape"])

    def test_failure_is_1_and_says_what_to_do(self):
        self.refused(1, "generate", "/no/such/model", says=["/no/such/model", "demo"])
        self.refused(1, "generate", "demo", "--memory", "1MB", says=["memory", "raise"])
        self.refused(1, "generate", "demo", "--prompt-file", "/no/such/file", says=["/no/such/file"])
        self.refused(1, "generate", "demo", "--prompt", "a " * 5000, says=["context"])
        self.refused(1, "inspect", "demo", "--dump-pass", "no_such_pass", says=["no_such_pass"])
        self.refused(1, "eval", "demo", "--text", "/dev/null", says=["regular file"])

    def test_damaged_model(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            for name in ("config.json", "tokenizer.json"):
                (folder / name).write_bytes((SOURCE / "configs/demo" / name).read_bytes())
            whole = (SOURCE / "configs/demo/model.safetensors").read_bytes()
            (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
            self.refused(1, "generate", folder, says=["model.safetensors"])

    def test_broken_weights_end_the_program_not_with_text(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(SOURCE / "configs/demo", folder, dirs_exist_ok=True)
            path = pathlib.Path(folder) / "model.safetensors"
            data = bytearray(path.read_bytes())
            size = int.from_bytes(data[:8], "little")
            tensor = json.loads(data[8:8 + size])["model.layers.3.mlp.down_proj.weight"]
            self.assertEqual(tensor["dtype"], "BF16")
            at = 8 + size + tensor["data_offsets"][0]
            data[at:at + 2] = b"\xc0\x7f"  # one NaN
            path.write_bytes(data)
            self.refused(1, "generate", folder, says=["NaN"])
            if has_server():  # an engine that never gets ready
                done = oar("serve", folder, "--http", "127.0.0.1:0", "--grpc", "")
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("NaN", done.stderr)
                self.assertNotIn("ready", done.stdout)

    def test_downloaded_model_by_name(self):
        with tempfile.TemporaryDirectory() as cache:
            repository = pathlib.Path(cache) / "models--some--model"
            self.refused(1, "inspect", "some/model", "--cache-dir", cache, says=["models--some--model"])
            (repository / "refs").mkdir(parents=True)
            (repository / "snapshots").mkdir()
            (repository / "refs/main").write_text("abc123")
            self.refused(1, "inspect", "some/model", "--cache-dir", cache, says=["incomplete"])
            (repository / "snapshots/abc123").symlink_to(SOURCE / "configs/demo")
            self.ok("inspect", "some/model", "--cache-dir", cache)
            (repository / "refs/main").write_text("../../../etc")
            self.refused(1, "inspect", "some/model", "--cache-dir", cache, says=["refs/main"])


class EmbeddedModel(Base):
    """The program carries `demo`: a copy of the one file, elsewhere, needs nothing beside it."""

    DEMO = SOURCE / "configs/demo"
    ARGS = ("--prompt", "ROMEO:", "--max-tokens", "12", "--temperature", "0")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_a_copy_of_the_file_answers_as_the_folder_does(self):
        alone = shutil.copy(OAR, self.folder / "alone")
        done = subprocess.run([alone, "generate", "demo", *self.ARGS], capture_output=True, text=True, timeout=TIMEOUT, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, self.ok("generate", self.DEMO, *self.ARGS).stdout)
        told = json.loads(self.ok("inspect", "demo", "--json").stdout)
        self.assertEqual(told["path"], "embedded:demo")
        same = json.loads(self.ok("inspect", self.DEMO, "--json").stdout)
        self.assertEqual({**told, "path": ""}, {**same, "path": ""})

    @unittest.skipUnless(has_server(), "built without the server")
    def test_its_weights_are_the_programs_own_pages(self):
        with Server() as server:
            maps = pathlib.Path(f"/proc/{server.process.pid}/maps").read_text()
            opened = [os.readlink(f) for f in pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir() if f.exists()]
        self.assertNotIn("configs/demo", maps + " ".join(opened))
        self.assertIn("from embedded:demo", server.out)

    def test_a_folder_in_oar_demo_comes_first(self):
        told = json.loads(self.ok("inspect", "demo", "--json", env={"OAR_DEMO": str(self.DEMO)}).stdout)
        self.assertEqual(told["path"], str(self.DEMO))
        done = oar("inspect", "demo", env={"OAR_DEMO": "/no/such/folder"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("/no/such/folder", done.stderr)

    def test_what_is_written_from_it_is_whole(self):
        out = self.folder / "written"
        self.ok("quantize", "demo", "-o", out, "--weights", "q8_0", "--method", "rtn", "--quiet")
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            self.assertEqual(json.loads((out / name).read_text()), json.loads((self.DEMO / name).read_text()))
        self.assertGreater(len(self.ok("generate", out, *self.ARGS).stdout), 3)

    def test_nothing_is_written_beside_it(self):
        self.refused(2, "tune", "demo", "--beside", says=["embedded:demo", "--beside"])


class Generate(Base):
    def test_only_the_text_and_the_same_text(self):
        args = ("generate", "demo", "--prompt", "ROMEO:", "--max-tokens", "24")
        first = self.ok(*args)
        self.assertEqual(first.stderr, "")
        self.assertGreater(len(first.stdout), 20)
        self.assertEqual(self.ok(*args).stdout, first.stdout)
        self.assertEqual(self.ok(*args, "--threads", "1", "--deterministic").stdout,
                         self.ok(*args, "--threads", "3", "--deterministic").stdout)
        told = json.loads(self.ok(*args, "--json").stdout)
        self.assertEqual(told["text"], first.stdout)
        self.assertEqual(told["finish_reason"], "length")
        self.assertEqual(told["usage"]["completion_tokens"], 24)
        self.assertEqual(len(told["tokens"]), 24)
        self.assertGreater(told["timings"]["decode_tokens_per_second"], 0)

    def test_seed(self):
        args = ("generate", "demo", "--prompt", "JULIET:", "--max-tokens", "24", "--temperature", "1.2")
        seven = self.ok(*args, "--seed", "7").stdout
        self.assertEqual(self.ok(*args, "--seed", "7").stdout, seven)
        self.assertNotEqual(self.ok(*args, "--seed", "8").stdout, seven)

    def test_empty_prompt_is_bos_alone(self):
        told = json.loads(self.ok("generate", "demo", "--prompt", "", "--max-tokens", "3", "--json").stdout)
        self.assertEqual(told["usage"]["prompt_tokens"], 1)

    def test_prompt_from_a_file_and_from_standard_input(self):
        args = ("generate", "demo", "--max-tokens", "12")
        want = self.ok(*args, "--prompt", "HAMLET:\n").stdout
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("HAMLET:\n")
            file.flush()
            self.assertEqual(self.ok(*args, "--prompt-file", file.name).stdout, want)
        self.assertEqual(self.ok(*args, "--prompt-file", "-", stdin="HAMLET:\n").stdout, want)

    def test_stop_string_is_not_printed(self):
        args = ("generate", "demo", "--prompt", "ROMEO:", "--max-tokens", "60")
        text = self.ok(*args).stdout
        word = re.findall(r"[A-Za-z]{4,}", text)[3]
        told = json.loads(self.ok(*args, "--stop", word, "--json").stdout)
        self.assertEqual(told["text"], text[: text.index(word)])
        self.assertEqual((told["finish_reason"], told["stop"]), ("stop", word))

    def test_reference_kernels_and_no_mmap_agree(self):
        args = ("generate", "demo", "--prompt", "KING", "--max-tokens", "4", "--weights", "f32", "--kv", "f32")
        text = self.ok(*args, "--reference").stdout
        self.assertEqual(self.ok(*args).stdout, text)
        self.assertEqual(self.ok(*args, "--no-mmap").stdout, text)

    def test_closed_standard_output_is_an_error(self):
        with subprocess.Popen([OAR, "generate", "demo", "--prompt", "", "--max-tokens", "400", "--ignore-eos"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            process.stdout.read(1)
            process.stdout.close()
            self.assertIn(b"closed", process.stderr.read())
            self.assertEqual(process.wait(TIMEOUT), 1)

    def test_greedy_text_of_trained_models(self):
        want = json.loads((TALES / "expected.json").read_text())["greedy_text"]
        cases = [(TALES / name, "120", "256", want) for name in ("tales.bin", "tales.gguf")]
        if STORIES.exists():
            want = (STORIES / "expected_greedy_n200.txt").read_text()
            cases += [(STORIES / name, "200", "512", want) for name in ("stories260K.bin", "stories260K.gguf")]
        for model, tokens, context, want in cases:
            with self.subTest(model):
                done = self.ok("generate", model, "--max-tokens", tokens, "--max-context", context, "--ignore-eos")
                self.assertEqual(done.stdout.strip(), want.strip())


class Run(Base):
    def test_piped_conversation(self):
        text = "Good morrow!\n/help\n/reset\n/nonsense\nWho art thou?\n/exit\nnever read\n"
        args = ("run", "demo", "--seed", "1", "--max-tokens", "16")
        done = self.ok(*args, stdin=text)
        self.assertEqual(len([line for line in done.stdout.split("\n") if line]) >= 2, True, done.stdout)
        self.assertIn("/reset", done.stderr)
        self.assertIn("No such command", done.stderr)
        self.assertEqual(self.ok(*args, stdin=text).stdout, done.stdout)

    def test_history_counts(self):
        args = ("run", "demo", "--temperature", "0", "--max-tokens", "24")
        alone = self.ok(*args, stdin="What news?\n").stdout
        fresh = self.ok(*args, stdin="Good morrow, sir.\n/reset\nWhat news?\n").stdout
        self.assertTrue(fresh.endswith(alone), (fresh, alone))

    def test_interrupt_stops_the_answer_not_the_program(self):
        with subprocess.Popen([OAR, "run", "demo", "--max-tokens", "1900", "--seed", "3", "--temperature", "5"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdin.write(b"Speak!\n")
            process.stdin.flush()
            process.stdout.read(1)
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            process.stdin.write(b"/help\n")
            process.stdin.close()
            err = process.stderr.read()
            self.assertEqual(process.wait(TIMEOUT), 0)
            self.assertIn(b"forget the conversation", err)


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


class Inspect(Base):
    def test_convert(self):
        sys.path.insert(0, str(SOURCE / "tests/support"))
        from tiny_onnx import write_onnx
        with tempfile.TemporaryDirectory() as folder:
            model, copy = folder + "/add.onnx", folder + "/copy.onnx"
            write_onnx(model)
            self.assertIn("1 ops, from onnx", self.ok("convert", model, "-o", copy).stdout)
            self.assertIn("lower_precision", self.ok("inspect", model, "--precision", "int8", "--explain").stdout)
            self.refused(2, "inspect", model, "--precision", "int9", says=["--precision", "int8"])
            self.refused(2, "infer", model, "--precision", "int9", says=["--precision", "int8"])
            self.assertIn("z", self.ok("inspect", copy).stdout)
            for name in ("copy.pdmodel", "copy.json"):
                self.assertIn("1 ops", self.ok("convert", model, "-o", f"{folder}/{name}").stdout)
                self.assertIn("z", self.ok("inspect", f"{folder}/{name}").stdout)
            self.refused(1, "convert", model, "-o", folder + "/x.json", "--external-data", says=["pdiparams"])
            self.refused(1, "convert", model, "-o", folder + "/no/such/x.json", says=["cannot create"])
            self.refused(1, "convert", model, "-o", folder + "/x.pb", says=["x.pb", ".onnx", ".pdmodel", ".json"])
            self.refused(1, "convert", model, "-o", model, says=["the model itself"])
            self.refused(1, "convert", folder + "/absent.onnx", "-o", copy, says=["absent.onnx"])
            self.refused(1, "convert", model, "-o", folder + "/no/such/x.onnx", says=["cannot create"])
            self.refused(2, "convert", model, says=["--output"])

    def test_calibrate(self):
        sys.path.insert(0, str(SOURCE / "tests/support"))
        from tiny_onnx import write_npy, write_onnx, write_product
        with tempfile.TemporaryDirectory() as folder:
            model, samples, narrow = folder + "/product.onnx", folder + "/samples", folder + "/narrow.onnx"
            weights = write_product(model)
            int8 = ("--precision", "int8", "--calibrate", samples)
            convert = ("convert", model, "-o", narrow)
            infer = ("infer", model, "--input", f"x={folder}/x.npy")
            self.refused(1, *convert, *int8, says=["--calibrate", "no such folder"])
            os.mkdir(samples)
            pathlib.Path(samples, "notes.txt").write_text("no sample")
            self.refused(1, *convert, *int8, says=["--calibrate", "no samples", ".npy"])
            rows = [[((3 * k + 5 * r) % 17 - 8) / 8 for k in range(16)] for r in range(6)]
            write_npy(samples + "/a.npy", rows)
            write_npy(folder + "/x.npy", rows)
            self.refused(1, *convert, "--precision", "int8", says=["precision", "--calibrate"])
            self.refused(1, *convert, "--calibrate", samples, says=["calibrate", "--precision int8"])
            self.refused(1, *convert, "--precision", "bf16", says=["precision"])
            self.refused(1, *infer, "--calibrate", samples, says=["precision int8"])
            self.refused(2, *convert, *int8, "--calibrate-method", "entropy", says=["mse"])
            self.assertIn("1 of 1 layers in 8-bit integers, ranges of 1 values from 1 samples (mse)",
                          self.ok(*convert, *int8).stdout)
            self.assertIn("1 layers with fixed ranges", self.ok("inspect", narrow).stdout)
            self.refused(1, "convert", narrow, "-o", folder + "/twice.onnx", *int8, says=["quantized already"])

            def run(*command):
                self.ok(*command, "--output", folder + "/out")
                data = pathlib.Path(folder, "out/y.npy").read_bytes()[-6 * 8 * 4:]
                return struct.unpack("<48f", data)

            told = run(*infer, *int8, "--cache-dir", folder + "/cache")
            self.assertEqual(told, run(*infer, *int8, "--cache-dir", folder + "/cache"))
            self.assertEqual(told, run("infer", narrow, "--input", f"x={folder}/x.npy"))
            for r in range(6):
                for m in range(8):
                    want = sum(rows[r][k] * weights[k][m] for k in range(16))
                    # Half a step of x (2 / 255) and of w (15 / 16 / 127), times the other's sum of magnitudes.
                    self.assertLess(abs(told[8 * r + m] - want), 16 * (1 / 255 + 0.5 / 127))

            # What does not fit is named with its file.
            write_npy(samples + "/b.npy", [row[:15] for row in rows])
            self.refused(1, *convert, *int8, says=["b.npy", "'x'", "[6, 15]"])
            write_npy(samples + "/b.npy", rows, "<f8")
            self.refused(1, *convert, *int8, says=["b.npy", "'x'", "f64"])
            write_npy(samples + "/b.npy", [[float("nan")] * 16])
            self.refused(1, *infer, *int8, says=["b.npy", "'x'", "NaN"])
            pathlib.Path(samples, "b.npy").write_bytes(b"\x93NUMPY")
            self.refused(1, *infer, *int8, says=["b.npy", "not a .npy file"])
            os.remove(samples + "/b.npy")
            # A folder per sample, by name or as ONNX's tests lie.
            os.mkdir(samples + "/one")
            self.refused(1, *convert, *int8, says=["one", "x.npy"])
            write_npy(samples + "/one/x.npy", rows)
            self.assertIn("from 2 samples", self.ok(*convert, *int8).stdout)
            write_npy(samples + "/one/mask.npy", rows)
            self.refused(1, *convert, *int8, says=["one", "no input 'mask'", "x"])
            two = folder + "/two.onnx"
            write_product(two, add=True)
            self.refused(1, "convert", two, "-o", narrow, *int8, says=["a.npy", "2 inputs", "x, z"])
            os.remove(samples + "/a.npy")
            os.remove(samples + "/one/mask.npy")
            self.refused(1, "convert", two, "-o", narrow, *int8, says=["one", "z.npy"])
            write_npy(samples + "/one/z.npy", [row[:8] for row in rows])
            self.assertIn("1 of 1 layers", self.ok("convert", two, "-o", narrow, *int8).stdout)
            write_onnx(two)
            self.refused(1, "convert", two, "-o", narrow, *int8, says=["no convolution or product"])

    def test_files(self):
        told = json.loads(self.ok("inspect", "demo", "--tensors", "--json").stdout)
        self.assertEqual(told["kind"], "safetensors")
        self.assertEqual(told["config"]["hidden_size"], 256)
        self.assertEqual(sum(t["bytes"] for t in told["tensors"]), told["bytes"])
        self.assertIn("model.norm.weight", self.ok("inspect", "demo", "--tensors").stdout)

    def test_graph_plan_memory(self):
        graph = self.ok("inspect", "demo", "--graph").stdout
        self.assertIn("# graph", graph)
        passes = re.findall(r"(?m)^(\w+): [1-9]\d* rewrites", graph)
        self.assertTrue(passes, graph[:2000])
        without = self.ok("inspect", "demo", "--graph", "--disable-pass", passes[0]).stdout
        self.assertRegex(without, rf"(?m)^{passes[0]}: switched off")
        dump = self.ok("inspect", "demo", "--dump-pass", passes[0]).stdout
        self.assertIn(f"# before {passes[0]}", dump)
        self.assertIn(f"# after {passes[0]}", dump)
        plan = self.ok("inspect", "demo", "--plan").stdout
        self.assertIn("# plan", plan)
        # Sizes have no term that another one makes useless, and the layers are shown once.
        self.assertNotIn("max(max(", plan)
        self.assertLess(max(map(len, plan.splitlines())), 140)
        self.assertRegex(plan, r"(?m)^  \d+ to \d+: the same, [45] more times$")
        self.assertEqual(len(re.findall(r"(?m)^  \d+ +paged_attention ", plan)), 1)
        self.assertIn("KV cache per token", self.ok("inspect", "demo", "--memory").stdout)

    def test_tokenize(self):
        told = json.loads(self.ok("tokenize", "demo", "Good morrow", "--json").stdout)
        self.assertEqual(told["count"], len(told["tokens"]))
        bare = json.loads(self.ok("tokenize", "demo", "Good morrow", "--no-special", "--json").stdout)
        self.assertEqual(told["tokens"][-bare["count"]:], bare["tokens"])

    def test_tokenize_prints_text(self):
        with tempfile.TemporaryDirectory() as folder:  # characters are tokens of their own here
            vocab = {text: i for i, text in enumerate(["a", "é", "世", "🙂", "\n", "\t", "\x07", "\\"])}
            pathlib.Path(folder, "tokenizer.json").write_text(json.dumps({
                "model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": [], "decoder": {"type": "Fuse"}}))
            shutil.copy(SOURCE / "configs/demo/config.json", folder)
            shutil.copy(SOURCE / "configs/demo/model.safetensors", folder)
            lines = self.ok("tokenize", folder, "aé世🙂\n\t\x07\\").stdout.splitlines()
        self.assertEqual([line.split()[1] for line in lines], ["a", "é", "世", "🙂", "\\n", "\\t", "\\x07", "\\\\"])


class Check(Base):
    def test_check_passes(self):
        text = self.ok("check").stdout
        self.assertNotIn("FAIL", text)
        for words in ("matmul bf16", "attention bf16", "every number of", "tokenizer round trip", "Oar works here"):
            self.assertIn(words, text)

    def test_a_damaged_scale_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            damaged = pathlib.Path(folder) / "damaged"
            self.ok("quantize", "demo", "-o", str(damaged), "--weights", "q4_0", "--method", "rtn")
            weights = damaged / "model.safetensors"
            data = bytearray(weights.read_bytes())
            header = 8 + int.from_bytes(data[:8], "little")
            name = "model.layers.2.mlp.down_proj.weight"
            begin = header + json.loads(data[8:header])[name]["data_offsets"][0]
            data[begin + 18:begin + 20] = b"\x00\x7e"  # the scale of the row's second block: NaN
            weights.write_bytes(data)
            out = oar("check", str(damaged))
            self.assertEqual(out.returncode, 1)
            self.assertIn(f"{name} (q4_0): row 0, block 1 (columns 32 to 63)", out.stdout)
            out = oar("generate", str(damaged), "--prompt", "ROMEO:", "--max-tokens", "2")
            self.assertIn("oar check", out.stderr)


class Device(Base):
    """On the loopback device of tests/plugin, which lies beside the program in a build folder."""
    ARGS = ("generate", "demo", "--prompt", "ROMEO:", "--max-tokens", "8", "--temperature", "0", "--reference")

    def setUp(self):
        if not (pathlib.Path(OAR).parent / "liboar_loopback.so").exists():
            self.skipTest("no loopback plug-in beside the program")

    def test_the_same_text(self):
        want = self.ok(*self.ARGS).stdout
        self.assertEqual(self.ok(*self.ARGS, "--device", "loopback").stdout, want)
        path = pathlib.Path(OAR).parent / "liboar_loopback.so"
        self.assertEqual(self.ok(*self.ARGS, "--device", f"{path}:0").stdout, want)
        poor = self.ok(*self.ARGS, "--device", "loopback", env={"OAR_LOOPBACK": "missing=paged_attention+matmul"})
        self.assertEqual(poor.stdout, want)
        self.assertRegex(poor.stderr, r"no kernel for linear \(bf16\) on loopback:0.*: it runs on the processor "
                                      r"\(matmul.*, \d+ calls with up to .*iB of copies")
        self.assertIn("on loopback:0", self.ok("check", "--device", "loopback").stdout)

    def test_what_is_not_there(self):
        self.refused(1, *self.ARGS, "--device", "nothing", says=["liboar_nothing.so", "`cpu`"])
        self.refused(1, *self.ARGS, "--device", "loopback:7", says=["has 1 device"])
        self.refused(1, *self.ARGS, "--device", "loopback:x", says=["number of a device"])

    def test_a_device_that_fails_ends_the_program_with_an_error(self):
        for how in ("fail_launch=5", "fail_later=5", "fail_later=600"):
            done = oar(*self.ARGS, "--device", "loopback", env={"OAR_LOOPBACK": how})
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("was asked for", done.stderr)

    def test_a_server_drains_and_exits_with_an_error(self):
        if not has_server():
            self.skipTest("no server in this build")
        args = (OAR, "serve", "demo", "--http", "127.0.0.1:0", "--grpc", "", "--device", "loopback", "--kv", "bf16")
        process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env={**os.environ, "OAR_LOOPBACK": "fail_launch=5"})
        text, _ = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 1, text)
        self.assertIn("was asked for", text)


class Bench(Base):
    def test_random_weights_of_a_shape(self):
        # One stream: on a busy machine two of so few tokens need not meet.
        with tempfile.TemporaryDirectory() as folder:
            args = ("bench", "--shape", SOURCE / "configs/bench/tiny.json", "--cache-dir", folder, "--repeat", "1",
                    "--prompt-tokens", "32", "--gen-tokens", "96", "--streams", "1", "--json")
            told = json.loads(self.ok(*args).stdout)
            self.assertGreater(told["prefill_tokens_per_second"]["median"], 0)
            self.assertGreater(told["decode_tokens_per_second"]["median"], 0)
            self.assertGreater(told["read_bandwidth_gb_per_second"]["median"], 0)
            self.assertEqual(os.listdir(folder), [], "the weights are removed")
            self.ok(*args, "--keep")
            self.ok(*args, "--keep")
            one, two = [(pathlib.Path(folder) / d / "model.safetensors").read_bytes() for d in os.listdir(folder)]
            self.assertEqual(one, two, "the same weights each time")

    def test_streams_are_measured_once_all_decode(self):
        # Eight prompts one after the other: the first stream has its tokens before the last one begins.
        args = ("bench", "demo", "--repeat", "1", "--prompt-tokens", "64", "--max-batch-tokens", "64", "--gen-tokens", "2",
                "--streams", "8")
        self.assertGreater(json.loads(self.ok(*args, "--json").stdout)["decode_tokens_per_second"]["median"], 0)
        # In a context that has no room for more they never decode together, which is not a rate of zero.
        args += ("--max-context", "66")
        text = self.ok(*args).stdout
        self.assertIn("decode was not measured", text)
        self.assertIn("--gen-tokens", text)
        self.assertNotRegex(text, r"(?m)^decode +0\.00")
        self.assertIn("--gen-tokens", json.loads(self.ok(*args, "--json").stdout)["decode_missing"])

    def test_shapes_of_other_architectures(self):
        for name in ("tiny-qwen2", "tiny-qwen3", "tiny-mixtral", "tiny-qwen3-moe"):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                self.ok("bench", "--shape", SOURCE / f"configs/models/{name}.json", "--cache-dir", folder, "--repeat",
                        "1", "--prompt-tokens", "16", "--gen-tokens", "4")

    def test_impossible_shapes(self):
        config = json.loads((SOURCE / "configs/bench/tiny.json").read_text())
        for change, says in [({"model_type": "unheard-of"}, "model_type"), ({"hidden_size": "128"}, "hidden_size"),
                             ({"vocab_size": 2 ** 40}, "vocab_size"), ({"num_hidden_layers": -1}, "num_hidden_layers"),
                             ({"hidden_size": 2 ** 20, "intermediate_size": 2 ** 20}, "weights")]:
            with self.subTest(says), tempfile.TemporaryDirectory() as folder:
                shape = pathlib.Path(folder) / "shape.json"
                shape.write_text(json.dumps({**config, **change}))
                self.refused(1, "bench", "--shape", shape, "--cache-dir", folder, says=[says])
                self.assertEqual(os.listdir(folder), ["shape.json"], "nothing is left behind")


class Server:
    """`oar serve` on ports it picks itself."""

    def __init__(self, *args, model="demo", env=None):
        self.process = subprocess.Popen([OAR, "serve", model, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *args],
                                        env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.out = ""
        deadline = time.monotonic() + TIMEOUT
        while "\nready\n" not in self.out:
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.process.kill()
                raise AssertionError(f"not ready: {self.out}{self.process.stderr.read()}")
            if select.select([self.process.stdout], [], [], 1)[0]:
                self.out += os.read(self.process.stdout.fileno(), 4096).decode()
        self.http = int(re.search(r"http://127\.0\.0\.1:(\d+)", self.out)[1])
        self.grpc = int(re.search(r"(?m)^grpc +127\.0\.0\.1:(\d+)", self.out)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def url(self, path):
        return f"http://127.0.0.1:{self.http}{path}"

    def complete(self, max_tokens, **fields):
        body = {"model": "demo", "prompt": "ROMEO:", "max_tokens": max_tokens, "temperature": 0, **fields}
        return urllib.request.urlopen(urllib.request.Request(
            self.url("/v1/completions"), json.dumps(body).encode(), {"content-type": "application/json"}), timeout=TIMEOUT)


@unittest.skipUnless(has_server(), "built without the server")
class Serve(Base):
    def test_prints_facts_answers_and_stops(self):
        with Server() as server:
            for words in ("model    demo", "KV ", "context", "threads"):
                self.assertIn(words, server.out)
            self.assertNotIn(0, (server.http, server.grpc))
            answer = json.load(server.complete(16))
            self.assertEqual(answer["choices"][0]["text"],
                             self.ok("generate", "demo", "--prompt", "ROMEO:", "-n", "16", "--kv", "int8").stdout)
            socket.create_connection(("127.0.0.1", server.grpc), timeout=10).close()
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(TIMEOUT), 0)

    def test_interrupt_stops_as_well(self):
        with Server() as server:
            server.process.send_signal(signal.SIGINT)
            self.assertEqual(server.process.wait(TIMEOUT), 0)

    def test_what_cannot_be_served_is_told_before_a_model_is_loaded(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            in_use = f"127.0.0.1:{taken.getsockname()[1]}"
            for words, mention in ((["--http", in_use], in_use), (["--grpc", in_use], in_use), (["--http", "nonsense"], "nonsense"),
                                   (["--http", "127.0.0.1:9999999"], "9999999"),
                                   (["--tls-cert", "/nowhere/x.pem", "--tls-key", "/nowhere/y.pem"], "/nowhere/x.pem"),
                                   (["--api-key-file", "/nowhere/keys"], "/nowhere/keys"), (["--precision", "f12"], "f12")):
                with self.subTest(words):
                    ports = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
                    for option in ("--http", "--grpc"):
                        if option in words:
                            at = ports.index(option)
                            del ports[at:at + 2]
                    failed = oar("serve", "/nowhere/model", *ports, *words)
                    self.assertNotEqual(failed.returncode, 0)
                    self.assertIn(mention, failed.stderr)
                    self.assertNotIn("/nowhere/model", failed.stderr)
                    self.assertEqual(failed.stdout, "")

    def test_metrics_count_the_kv_blocks_that_the_start_told(self):
        # Beside quantized pages lie 16-bit ones of positions that are still computed: a pool of their own.
        for kv in ("int4", "int8"):
            with self.subTest(kv), Server("--kv", kv) as server:
                told = re.search(r": (\d+) blocks of", server.out)[1]
                metrics = urllib.request.urlopen(server.url("/metrics"), timeout=TIMEOUT).read().decode()
                self.assertRegex(metrics, r'oar_kv_blocks\{[^}]*state="total"[^}]*\} ' + told + r"\b")
                self.assertIn(f'num_gpu_blocks="{told}"', metrics)

    def test_words_of_the_environment_are_options(self):
        links = {"OAR_SERVICE_HOST": "10.0.0.1", "OAR_SERVICE_PORT_HTTP": "8000", "OAR_PORT": "tcp://10.0.0.1:8000",
                 "OAR_PORT_8000_TCP_ADDR": "10.0.0.1"}
        env = {**os.environ, **links, "OAR_THRAEDS": "4", "OAR_MAX_WAITING": "7", "OAR_NO_PREFIX_CACHE": "true"}
        with Server(env=env) as server:
            server.process.send_signal(signal.SIGTERM)
            out, err = server.process.communicate(timeout=TIMEOUT)
            self.assertEqual(server.process.returncode, 0)
            self.assertEqual((out + err).count("OAR_THRAEDS"), 1, err)
            for word in links:
                self.assertNotIn(word, out + err)
        bad = subprocess.run([OAR, "serve", "/nowhere/model"], env={**os.environ, "OAR_MAX_WAITING": "-3"}, capture_output=True, text=True)
        self.assertEqual(bad.returncode, 2)
        self.assertIn("OAR_MAX_WAITING", bad.stderr)
        # The command line wins; without it the word counts.
        taken = subprocess.run([OAR, "serve", "/nowhere/model"], env={**os.environ, "OAR_HTTP": "nonsense", "OAR_GRPC": "127.0.0.1:0"},
                               capture_output=True, text=True)
        self.assertIn("nonsense", taken.stderr)
        with Server(env={"OAR_HTTP": "nonsense"}):
            pass

    def test_a_request_in_flight_is_finished(self):
        with Server() as server:
            with server.complete(1500, stream=True, ignore_eos=True) as stream:
                stream.readline()  # under way
                server.process.send_signal(signal.SIGTERM)
                body = stream.read().decode()
            self.assertIn("[DONE]", body)
            self.assertIn('"finish_reason":"length"', body)
            self.assertEqual(server.process.wait(TIMEOUT), 0)

    def test_second_signal_ends_at_once(self):
        # Ending at once leaves threads running, which ThreadSanitizer would report as leaks.
        env = {"TSAN_OPTIONS": os.environ.get("TSAN_OPTIONS", "") + ":report_thread_leaks=0"}
        for number, code in ((signal.SIGTERM, 128 + 15), (signal.SIGINT, 128 + 2)):
            with self.subTest(number), Server(env=env) as server:
                with server.complete(1900, stream=True, ignore_eos=True) as stream:
                    stream.readline()
                    server.process.send_signal(number)
                    while b"stopping" not in server.process.stderr.buffer.readline():
                        pass
                    server.process.send_signal(number)
                    self.assertEqual(server.process.wait(TIMEOUT), code)

    def test_interrupt_while_loading(self):
        def pending():  # the signal is there when the program begins, so certainly before the model is
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            os.kill(os.getpid(), signal.SIGINT)

        done = subprocess.run([OAR, "serve", "demo", "--http", "127.0.0.1:0", "--grpc", ""], preexec_fn=pending,
                              capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("while loading", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_truncated_model_ends_the_server_with_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(SOURCE / "configs/demo", folder, dirs_exist_ok=True)
            weights = pathlib.Path(folder) / "model.safetensors"
            with Server("--name", "demo", model=folder) as server:
                os.truncate(weights, 4096)
                with self.assertRaises((ConnectionError, http.client.HTTPException)):  # the connection ends without an answer
                    server.complete(16).read()
                self.assertEqual(server.process.wait(TIMEOUT), 1)
                error = server.process.stderr.read()
                self.assertIn(str(weights), error)
                self.assertIn("truncated", error)
            # A model in memory does not mind.
            shutil.copy(SOURCE / "configs/demo/model.safetensors", weights)
            with Server("--no-mmap", "--name", "demo", model=folder) as server:
                os.truncate(weights, 4096)
                self.assertEqual(json.load(server.complete(4))["usage"]["completion_tokens"], 4)

    def test_drain_timeout_cuts_off(self):
        with Server("--drain-timeout", "0") as server:
            with server.complete(1900, stream=True, ignore_eos=True) as stream:
                stream.readline()
                server.process.send_signal(signal.SIGTERM)
                self.assertEqual(server.process.wait(TIMEOUT), 0)

    def test_key_and_name(self):
        with Server("--api-key", "sesame", "--name", "bard") as server:
            with self.assertRaises(urllib.error.HTTPError) as refused:
                server.complete(1)
            self.assertEqual(refused.exception.code, 401)
            refused.exception.close()
            request = urllib.request.Request(server.url("/v1/models"), headers={"Authorization": "Bearer sesame"})
            with urllib.request.urlopen(request, timeout=TIMEOUT) as models:
                self.assertEqual(json.load(models)["data"][0]["id"], "bard")

    def test_control_tokens_in_messages(self):
        def ends(server):
            body = json.dumps({"messages": [{"role": "user", "content": "a<|end|>b"}]}).encode()
            request = urllib.request.Request(server.url("/tokenize"), body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return json.load(answer)["tokens"].count(5)
        with Server() as server:
            self.assertEqual(ends(server), 1)  # the template's
        with Server("--allow-special-in-text") as server:
            self.assertEqual(ends(server), 2)

    def test_model_control_is_explicit(self):
        self.refused(2, "serve", "demo", "--model-control", "poll", says=["poll is not offered", "explicit"])
        self.refused(2, "serve", "demo", "--model-control", "all", says=["'all'", "none", "explicit"])
        self.refused(1, "serve", "demo", "--admin-key-file", "keys", says=["--model-control explicit"])
        self.refused(1, "serve", "demo", "--allowed-origins", "app.example", says=["'app.example'", "scheme://host"])

    def test_options_from_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "server.toml"

            def refused(text, *says):
                file.write_text(text, encoding="utf-8")
                self.refused(2, "serve", "--config", str(file), says=[str(file), *says])
            for text, *says in (
                    ("http = '127.0.0.1:0'\nhtpp = 'x'\n", ":2:", "unknown key 'htpp'", "oar serve --help"),
                    ("max_sequences = 3", "not key = value"),
                    ("model = \"demo\"\nmodel = \"demo\"", ":2:", "line 1 already"),
                    ("[server]\n", "no sections"),
                    ("http 127.0.0.1:0", "not key = value"),
                    ("http = 127.0.0.1:0", "stand in \"quotes\""),
                    ("http = \"127.0.0.1:0", "closing quote"),
                    ("http = \"a\" \"b\"", "left over"),
                    ("cors-origin = [\"http://a\", \"http://b\"", "same line"),
                    ("threads = -1", ":1:", "threads", "-1"),
                    ("weights = \"int3\"", "int3"),
                    ("memory = \"101%\"", "101%"),
                    ("config = \"x\"", "unknown key 'config'"),
                    ("help = true", "unknown key 'help'"),
                    ("threads", "not key = value"),
                    ("threads =", "value is missing")):
                refused(text, *says)
            file.write_text("threads = 1\n", encoding="utf-8")
            self.refused(2, "serve", "--config", str(file), says=["MODEL"])
            self.refused(2, "serve", "--config", folder + "/absent", says=["absent"])
            file.write_text("# comment\r\n\r\nmodel = 'demo'  # the embedded one\nname = \"bard \\\"one\\\"\"\nhttp = \"127.0.0.1:1\"\n"
                            "cors-origin = [\"http://a\", 'http://b']\nno-prefix-cache = true\nthreads = 2\nmax-context = 1_024\n", encoding="utf-8")
            with Server("--threads", "1", model="--config=" + str(file)) as server:  # the command line has another --http
                self.assertIn('model    bard "one"', server.out)
                self.assertIn("context 1024", server.out)
                self.assertRegex(server.out, r"\b1 threads?\b")
                for origin in ("http://a", "http://b"):
                    request = urllib.request.Request(server.url("/v1/models"), headers={"Origin": origin})
                    with urllib.request.urlopen(request, timeout=TIMEOUT) as models:
                        self.assertEqual(models.headers["Access-Control-Allow-Origin"], origin)
                        self.assertEqual(json.load(models)["data"][0]["id"], 'bard "one"')

    def test_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            done = oar("serve", "demo", "--http", f"127.0.0.1:{port}", "--grpc", "")
            self.assertEqual(done.returncode, 1)
            self.assertIn(str(port), done.stderr)

    def test_bad_address(self):
        done = oar("serve", "demo", "--http", "nonsense", "--grpc", "")
        self.assertEqual(done.returncode, 1)
        self.assertIn("nonsense", done.stderr)


@unittest.skipIf(has_server(), "built with the server")
class ServeAbsent(Base):
    def test_says_so(self):
        self.refused(2, "serve", "demo", says=["OAR_SERVER"])


if __name__ == "__main__":
    unittest.main(verbosity=1)
