#!/usr/bin/env python3
"""The `oar` program as a user drives it: help, errors, generating, inspecting, devices, benchmarks."""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from program import SOURCE, OAR, STORIES, TALES, TIMEOUT, oar, has_server, Base, Server


class Help(Base):
    def test_overview_names_every_command(self):  # test_help.py runs what they show
        text = self.ok("--help").stdout
        for command in ("serve", "run", "generate", "bench", "eval", "tune", "inspect", "check", "tokenize"):
            self.assertRegex(text, rf"(?m)^  {command} ")

    def test_version(self):
        self.assertRegex(self.ok("--version").stdout, r"^\d+\.\d+\.\d+\n$")
        self.assertIn("isa", self.ok("version").stdout)


class Models(Base):
    def test_every_type_with_its_graph_and_the_shapes_of_released_models(self):
        told = json.loads(self.ok("models", "--json").stdout)
        types = {one["model_type"]: one for one in told["types"]}
        self.assertEqual(sorted(types), sorted(told["model_types"]))
        self.assertIn("gated_linear", types["llama"]["ops"])
        self.assertEqual(types["mistral"]["pages"], "windows")
        self.assertRegex(types["mamba2"]["states"], r"rows of \d+ \(convolution\)")
        for one in types.values():
            self.assertTrue("transformers" in one["compared"] or "another name" in one["ops"], one)
        self.assertEqual(sorted(one["shape"] for one in told["released"]),
                         sorted(path.stem for path in (SOURCE / "configs/shapes").glob("*.json")))
        # 24 layers, half in windows of 128: 8 heads of 64, keys and values of 2 bytes.
        twenty = next(one for one in told["released"] if one["shape"] == "gpt-oss-20b")
        self.assertEqual(twenty["kv_bytes_4k"], 12 * (4096 + 128 + 64) * 2 * 8 * 64 * 2)
        # So has every type a released model. Of 48 layers of Qwen3-Next 12 attend: 2 heads of 256; the others keep a matrix of 128 by
        # 128 for each of 32 heads and three rows of 8192, in f32.
        self.assertEqual({one["model_type"] for one in told["released"]}, set(types))
        hybrid = next(one for one in told["released"] if one["shape"] == "qwen3-next-80b-a3b")
        self.assertEqual(hybrid["kv_bytes_4k"], 12 * 4096 * 2 * 2 * 256 * 2)
        self.assertEqual(hybrid["state_bytes"], 36 * 4 * (32 * 128 * 128 + 3 * 8192))
        self.assertEqual(next(one for one in told["released"] if one["shape"] == "mamba-codestral-7b")["kv_bytes_32k"], 0)
        text = self.ok("models").stdout
        self.assertIn("released  openai/gpt-oss-20b: KV", text)
        self.assertRegex(text, r"(?m)^  compared  llama-bias, ")


class Size(Base):
    @unittest.skipIf(os.environ.get("SANITIZERS") or not shutil.which("strip"), "of the release program")
    def test_is_small_without_its_model(self):
        embedded = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
        with tempfile.TemporaryDirectory() as folder:
            stripped = f"{folder}/oar"
            subprocess.run(["strip", "-o", stripped, OAR], check=True)
            size = os.path.getsize(stripped) - sum((SOURCE / "configs/demo" / name).stat().st_size for name in embedded)
        print(f"oar stripped, without the model in it: {size / 1e6:.2f} MB")
        self.assertLess(size, 19e6)


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
        self.refused(2, "generate", "demo", "--lora", "a", "--lora", "b", says=["--lora", "2 adapters"])
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


@unittest.skipIf(os.environ.get("OAR_DEMO_BESIDE") == "1", "skipped: a bundle has the default model beside the program")
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

    def test_generate_keeps_constraints(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        schema = os.path.join(folder.name, "person.json")
        with open(schema, "w") as f:
            json.dump({"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 8},
                                                        "age": {"type": "integer", "minimum": 0, "maximum": 120}},
                       "required": ["name", "age"], "additionalProperties": False}, f)
        args = ("generate", "demo", "--prompt", "ROMEO:", "--max-tokens", "300", "--temperature", "1", "--seed")
        for seed in "12":
            person = json.loads(self.ok(*args, seed, "--json-schema", schema).stdout)
            self.assertEqual(list(person), ["name", "age"])
            self.assertTrue(1 <= len(person["name"]) <= 8 and 0 <= person["age"] <= 120, person)
        self.assertRegex(self.ok(*args, "3", "--regex", "[a-z]{3}-[0-9]{2}").stdout, r"\A[a-z]{3}-[0-9]{2}\n?\Z")
        self.assertIn(self.ok(*args, "4", "--choice", "yes", "--choice", "no").stdout.strip(), ("yes", "no"))
        for name, text, whole in (("--grammar", 'root ::= "<" [a-z]{1,5} ">"', r"\A<[a-z]{1,5}>\n?\Z"),
                                  ("--structural-tag", '{"format": {"type": "regex", "pattern": "so[a-c]{3}"}}',
                                   r"\Aso[a-c]{3}\n?\Z")):
            path = os.path.join(folder.name, name[2:])
            with open(path, "w") as f:
                f.write(text)
            self.assertRegex(self.ok(*args, "5", name, path).stdout, whole)
            with open(path, "w") as f:
                f.write("{")
            self.refused(1, *args, "5", name, path, says=[name])
        self.assertRegex(self.ok(*args, "5", "--json-object").stdout, r'\A\{\s*("|\})')
        with open(schema, "w") as f:
            f.write('{"properties": {"a": {"not": {}}}}')
        self.refused(1, *args, "5", "--json-schema", schema, says=["--json-schema", "$.properties.a.not is not supported"])
        self.refused(2, *args, "6", "--regex", "a", "--choice", "b", says=["--"])

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


class Inspect(Base):
    def test_convert(self):
        sys.path.insert(0, str(SOURCE / "tests/support"))
        from tiny_onnx import write_onnx
        with tempfile.TemporaryDirectory() as folder:
            model, copy = folder + "/add.onnx", folder + "/copy.onnx"
            write_onnx(model)
            self.assertIn("1 ops, from onnx", self.ok("convert", model, "-o", copy).stdout)
            self.assertIn("lower_precision", self.ok("inspect", model, "--precision", "int8", "--explain").stdout)
            explained = self.ok("inspect", model, "--explain", "--input", "x=1x2", "--input", "y=1x2").stdout
            self.assertRegex(explained, r"steps .*\n  add +1 .* processor ")
            self.refused(2, "inspect", model, "--precision", "int9", says=["--precision", "int8"])
            self.refused(2, "infer", model, "--precision", "int9", says=["--precision", "int8"])
            self.assertIn("z", self.ok("inspect", copy).stdout)
            # Of options of other models none is passed over.
            for flag in (["--weights", "int8"], ["--kv", "int8"], ["--rotate", "all"], ["--max-context", "64"], ["--tensors"],
                         ["--json"], ["--quant"], ["--cache-dir", folder]):
                self.refused(2, "inspect", model, *flag, says=[flag[0], "ONNX or Paddle model"])
            self.refused(2, "inspect", model, "--input", "x=1x2", says=["--input", "--plan", "--explain"])
            self.assertIn("threads  1\n", self.ok("inspect", model, "--threads", "1", "--reference", "--no-mmap", "-q").stdout)
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

    def test_infer_on_a_device(self):
        """The loopback device, a plug-in beside the program: the processor's reference kernels behind a fence."""
        sys.path.insert(0, str(SOURCE / "tests/support"))
        from tiny_onnx import write_npy, write_product
        with tempfile.TemporaryDirectory() as folder:
            model = folder + "/product.onnx"
            write_product(model)
            write_npy(folder + "/x.npy", [[0.1 * k - 0.03 * r * r for k in range(16)] for r in range(5)])
            infer = ("infer", model, "--reference", "--input", f"x={folder}/x.npy")
            self.refused(1, *infer, "--input", f"x={folder}/x.npy", says=["--input x is there twice"])
            self.ok(*infer, "--output", folder + "/cpu")
            told = self.ok(*infer, "--output", folder + "/device", "--device", "loopback", "--profile").stdout
            self.assertIn("loopback.conv.f32", told)
            self.assertEqual(pathlib.Path(folder, "cpu/y.npy").read_bytes(), pathlib.Path(folder, "device/y.npy").read_bytes())
            told = self.ok(*infer, "--device", "loopback", "--profile", env={"OAR_LOOPBACK": "missing=conv"}).stdout
            self.assertNotIn("loopback.", told)
            self.refused(1, *infer, "--device", "nowhere", says=["nowhere"])
            self.refused(1, *infer, "--device", "loopback", "--precision", "int8", says=["precision", "loopback"])

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

    def test_inspect_takes_no_option_that_it_passes_over(self):
        ordinary = (["--explain"], ["--precision", "f32"], ["--params", "p"], ["--input", "x=1"])
        for beside in ([], ["--graph"], ["--quant"]):
            for flag in ordinary:
                self.refused(2, "inspect", "demo", *beside, *flag, says=[flag[0], "ONNX and Paddle models alone"])
        for flag in (["--weights", "bf16"], ["--kv", "int8"], ["--rotate", "kv"], ["--device", "cpu"], ["--reference"]):
            self.refused(2, "inspect", "demo", *flag, says=[flag[0], "what a model's files say", "--quant"])
            self.ok("inspect", "demo", "--plan", *flag)
        with tempfile.TemporaryDirectory() as cache:  # what is quantized at load is in the plan
            told = self.ok("inspect", "demo", "--plan", "--weights", "int4", "--cache-dir", cache).stdout
            self.assertIn("matmul.i4_s8_g32", told)
        for flag in (["--num-speculative-tokens", "2"], ["--no-prefix-cache"], ["--snapshot-tokens", "64"]):
            self.refused(2, "inspect", "demo", "--plan", *flag, says=[flag[0], "changes nothing"])
        self.refused(2, "inspect", "demo", "--quant", "--tensors", says=["--tensors", "--quant"])
        self.refused(2, "inspect", "demo", "--times", "--explain", says=["--explain"])

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
        self.assertRegex(poor.stderr, r"no kernel for linear \(bf16\) on loopback:0.*: it runs on the CPU "
                                      r"\(matmul.*, \d+ calls with up to .*iB of copies")
        self.assertIn("on loopback:0", self.ok("check", "--device", "loopback").stdout)

    def test_check_compares_each_kernel_of_the_device(self):
        report = json.loads(self.ok("check", "--device", "loopback", "--json").stdout)
        self.assertEqual(report["failures"], 0)
        kernels = {c["kernel"]: c for c in report["checks"] if "kernel" in c}
        for name in ("matmul bf16", "grouped matmul q4_0", "append and attention bf16", "rms_norm", "conv", "pool, average"):
            self.assertLessEqual(kernels[name]["error"], kernels[name]["bound"])
        self.assertGreater(kernels["matmul q8_0"]["bytes"], kernels["matmul q4_0"]["bytes"])
        self.assertGreater(kernels["conv"]["microseconds"], 0)
        self.assertEqual([b["family"] for b in kernels["append and attention bf16"]["before"]], ["kv_append"])
        self.assertGreater(kernels["append and attention bf16"]["before"][0]["microseconds"], 0)
        self.assertLess({"matmul q4_k", "matmul iq2_s, many rows", "append and attention f32, most rows"}, set(kernels))
        some = self.ok("check", "--device", "loopback", "--kernels", "norm").stdout
        self.assertIn("rms_norm on loopback", some)
        self.assertNotRegex(some, "matmul|loaded")
        none = oar("check", "--device", "loopback", "--kernels", "norms")
        self.assertEqual(none.returncode, 1)
        self.assertIn('[FAIL] --kernels "norms": no kernel', none.stdout)
        self.refused(2, "check", "--kernels", "norm", says=["add --device"])
        poor = self.ok("check", "--device", "loopback", env={"OAR_LOOPBACK": "missing=rope"})
        self.assertIn("rope: no kernel on loopback:0", poor.stdout)
        broken = oar("check", "--device", "loopback", env={"OAR_LOOPBACK": "fail_launch=5"})
        self.assertEqual(broken.returncode, 1)
        self.assertIn("[FAIL]", broken.stdout)

    def test_what_is_not_there(self):
        self.refused(1, *self.ARGS, "--device", "nothing", says=["liboar_nothing.so", "`cpu`"])
        self.refused(1, *self.ARGS, "--device", "loopback:7", says=["has 1 device"])
        self.refused(1, *self.ARGS, "--device", "loopback:x", says=["number of a device"])

    def test_a_device_that_fails_ends_the_program_with_an_error(self):
        for how in ("fail_launch=5", "fail_later=5", "fail_later=400"):
            done = oar(*self.ARGS, "--device", "loopback", env={"OAR_LOOPBACK": how})
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("was asked for", done.stderr)

    def test_a_server_keeps_its_cache_as_the_device_can(self):
        if not has_server():
            self.skipTest("no server in this build")
        small = ("--device", "loopback", "--max-context", "128", "--max-sequences", "2", "--max-batch-tokens", "64")
        for missing, tier in (("", "int8"), ("missing=quant_paged_attention", "(f32|bf16|f16)")):
            with Server(*small, env={"OAR_LOOPBACK": missing}) as server:
                self.assertRegex(server.out, rf"(?m)^KV .* as {tier}: ")
                self.assertEqual(len(json.load(server.complete(2))["choices"]), 1)
                server.process.send_signal(signal.SIGTERM)
                said = server.process.communicate(timeout=TIMEOUT)[1]
                self.assertNotIn("paged_attention", said)  # that it has no kernel for it

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
        told = json.loads(self.ok(*args, "--json").stdout)
        self.assertGreater(told["decode_tokens_per_second"]["median"], 0)
        # Each of eight multiplies all weights and makes a row of logits; a prompt's 64 tokens make one.
        head = 2 * 2048 * json.loads((SOURCE / "configs/demo/config.json").read_text())["hidden_size"]
        self.assertAlmostEqual((told["decode_operations_per_step"] - 8 * head) / 8, (told["prefill_operations"] - head) / 64)
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


if __name__ == "__main__":
    unittest.main(verbosity=1)
