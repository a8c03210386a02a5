#!/usr/bin/env python3
"""What --help says is true: every example of every command runs, with small stand-ins for the files it names, and a
misspelt word gets the nearest one. Servers are started, asked and stopped. Standard library only.

$OAR_BIN names the program, $OAR_SOURCE_DIR the tree.
"""
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

SOURCE = pathlib.Path(os.environ.get("OAR_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
OAR = pathlib.Path(os.environ.get("OAR_BIN", SOURCE / "build/release/bin/oar")).resolve()
TIMEOUT = 600  # seconds of one example; a sanitizer build on a busy machine
sys.path.insert(0, str(SOURCE / "tests/support"))
from tiny_adapter import write_adapter
from tiny_bert import write_bert  # noqa: E402
from tiny_gguf import write_gguf  # noqa: E402
from tiny_images import write_classes, write_lenet  # noqa: E402
from tiny_onnx import field, value, varint, write_model, write_onnx  # noqa: E402


def oar(*args):
    return subprocess.run([OAR, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT)


HAS_SERVER = "OAR_SERVER=OFF" not in oar("version").stdout


def commands(*above):
    """The names of `oar ABOVE... --help`."""
    lines = oar(*above, "--help").stdout.split("\nSubcommands:\n", 1)
    return re.findall(r"(?m)^  ([a-z]+) ", lines[1].split("\n\n", 1)[0]) if len(lines) > 1 else []


def examples(help_text):
    """The command lines under `Examples:`, each without what is said about it behind three spaces."""
    block = re.search(r"(?m)^Examples?:\n((?:  .*\n?)+)", help_text)
    lines = block[1].replace("\\\n", " ").splitlines() if block else []
    return [re.sub(r"(\S) {3,}\S.*$", r"\1", line.strip()) if not line.strip().startswith("curl") else line.strip()
            for line in lines]


# Stand-ins.

def ints(name, values):
    return field(5, field(1, name) + b"".join(varint(8, v) for v in values) + varint(20, 7))


def integer(name, v):
    return field(5, field(1, name) + varint(3, v) + varint(20, 2))


def node(op, inputs, output, *attributes):
    return field(1, b"".join(field(1, x) for x in inputs) + field(2, output) + field(4, op) + b"".join(attributes))


def write_chain(path, source, result, dims, nodes, weights=b""):
    image = value(source, ["n", 3, "h", "w"])
    write_model(path, b"".join(nodes) + field(2, b"g") + weights + field(11, image) + field(12, value(result, dims)))


def write_classifier(path, source=b"input"):
    """Ten classes from an image's mean colour."""
    data = struct.pack("<30f", *((k % 7 - 3) / 4 for k in range(30)))
    weights = field(5, varint(1, 3) + varint(1, 10) + varint(2, 1) + field(8, b"w") + field(9, data))
    write_chain(path, source, b"y", ["n", 10],
                [node(b"GlobalAveragePool", [source], b"p"), node(b"Flatten", [b"p"], b"f", integer(b"axis", 1)),
                 node(b"MatMul", [b"f", b"w"], b"y")], weights)


def write_detector(path):
    """Text is where the image is bright."""
    write_chain(path, b"x", b"y", ["n", 1, "h", "w"],
                [node(b"ReduceMean", [b"x"], b"m", ints(b"axes", [1]), integer(b"keepdims", 1)), node(b"Sigmoid", [b"m"], b"y")])


def write_recognizer(path):
    """The letter of a column is its strongest colour."""
    write_chain(path, b"x", b"y", ["n", "w", 3],
                [node(b"ReduceMean", [b"x"], b"m", ints(b"axes", [2]), integer(b"keepdims", 0)),
                 node(b"Transpose", [b"m"], b"t", ints(b"perm", [0, 2, 1])), node(b"Softmax", [b"t"], b"y", integer(b"axis", 2))])


def write_picture(path):
    """64 x 48 pixels, a bright bar on black, as PNG."""
    rows = b"".join(b"\0" + (b"\xff\xf0\xe0" if 16 <= y < 32 else b"\0\0\0") * 64 for y in range(48))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 48, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_image_tensor(path):
    """f32[1, 3, 8, 8], as NumPy writes it."""
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 8, 8), }"
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() +
                     struct.pack("<192f", *(k % 11 / 11 for k in range(192))))


def furnish(folder):
    """Everything that examples name, small."""
    demo = SOURCE / "configs/demo"
    for name in ("Llama-3.2-1B", "Llama-3.2-1B-Instruct", "int4-folder", "bf16-folder"):
        (folder / name).symlink_to(demo)
    write_gguf(folder / "model.gguf")
    (folder / "configs/bench").mkdir(parents=True)
    (folder / "configs/bench/llama-1b.json").symlink_to(SOURCE / "configs/bench/tiny.json")
    (folder / "configs/demo").mkdir()
    (folder / "llama.json").symlink_to(SOURCE / "configs/bench/tiny.json")
    heldout = (demo / "heldout.txt").read_text(encoding="utf-8")
    for name in ("text.txt", "mine.txt"):
        (folder / name).write_text(heldout[:20000], encoding="utf-8")
    for name in ("story.txt", "wiki.txt", "configs/demo/heldout.txt"):
        (folder / name).write_text(heldout[:2000], encoding="utf-8")
    (folder / "questions.jsonl").write_text(json.dumps({
        "custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
        "body": {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "Who art thou?"}]}}) + "\n",
        encoding="utf-8")
    turns = [{"role": "user", "content": "Who art thou?"}, {"role": "assistant", "content": "A friend, good sir."}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": turns}) + "\n", encoding="utf-8")
    (folder / "prompts.jsonl").write_text(json.dumps({"prompt": "ROMEO:", "completion": " Ay me!"}) + "\n", encoding="utf-8")
    (folder / "AzureLLMInferenceTrace_code.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 18:17:0{k}.9799600,{5 + k},{3 + k}\n" for k in range(4)), encoding="utf-8")
    write_classifier(folder / "resnet50.onnx")
    write_classifier(folder / "squeezenet.onnx", b"data_0")
    write_classifier(folder / "model.onnx")
    write_detector(folder / "det.onnx")
    write_recognizer(folder / "rec.onnx")
    for model, paddle in (("model.onnx", "inference.pdmodel"), ("det.onnx", "ppocr_det/inference.json"),
                          ("det.onnx", "ch_PP-OCRv3_det_infer/inference.pdmodel"),
                          ("rec.onnx", "en_PP-OCRv3_rec_infer/inference.pdmodel")):
        (folder / paddle).parent.mkdir(exist_ok=True)
        made = oar("convert", folder / model, "-o", folder / paddle)
        assert made.returncode == 0, made.stderr
    for old, new in (("inference.pdmodel", "__model__"), ("inference.pdiparams", "weights")):  # Paddle's names before 2.0
        (folder / new).write_bytes((folder / old).read_bytes())
    (folder / "old").mkdir()
    (folder / "person.json").write_text(json.dumps({"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}},
                                                    "required": ["age"], "additionalProperties": False}), encoding="utf-8")
    write_adapter(folder / "my-adapter")
    write_bert(folder / "bert-base")
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("text\tlabel\na good film\tgood\nthe bad film\tbad\n", encoding="utf-8")
    (folder / "en_dict.txt").write_text("a\nb\n", encoding="utf-8")
    (folder / "imagenet.txt").write_text("".join(f"class {k}\n" for k in range(10)), encoding="utf-8")
    for name in ("dog.jpg", "receipt.jpg"):
        write_picture(folder / name)
    write_lenet(folder / "lenet.onnx")
    write_classes(folder / "digits", ["one", "two"], 10, 28)
    (folder / "samples").mkdir()
    for name in ("samples/a.npy", "cat.npy", "kitten.npy"):
        write_image_tensor(folder / name)
    (folder / "configs/bench/llama-8b.json").symlink_to(SOURCE / "configs/bench/tiny.json")
    (folder / "chat-models").mkdir()
    for name in ("small", "large"):
        (folder / "chat-models" / name).symlink_to(demo)
    (folder / "models/add/1").mkdir(parents=True)
    write_onnx(folder / "models/add/1/model.onnx")
    (folder / "server.toml").write_text("model = \"demo\"\nthreads = 1\n", encoding="utf-8")
    case = folder / "onnx/backend/test/data/node/test_add"
    (case / "test_data_set_0").mkdir(parents=True)
    write_onnx(case / "model.onnx")
    tensor = varint(1, 1) + varint(1, 2) + varint(2, 1)
    for name, numbers in (("input_0", (1, 2)), ("input_1", (3, 5)), ("output_0", (4, 7))):
        label = field(8, b"xyz"[("input_0", "input_1", "output_0").index(name):][:1])
        (case / "test_data_set_0" / (name + ".pb")).write_bytes(tensor + label + field(9, struct.pack("<2f", *numbers)))


class Server:
    """A server from an example's words, on ports that it picks itself."""

    def __init__(self, command, folder, environment):
        for flag in ("--http", "--grpc"):
            if flag not in command:
                command += f" {flag} 127.0.0.1:0"
        command = re.sub(r"--http \S+", "--http 127.0.0.1:0", command)
        self.process = subprocess.Popen(["bash", "-c", "exec " + command], cwd=folder, env=environment, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        lines = []
        for line in iter(self.process.stdout.readline, ""):
            lines.append(line)
            if line == "ready\n":
                break
        else:
            raise AssertionError("".join(lines) + self.process.stderr.read())
        self.url = re.search(r"(?m)^http +(http://\S+)$", "".join(lines))[1]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, errors


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        furnish(cls.folder)
        cls.environment = {**os.environ, "PATH": f"{OAR.parent}:{os.environ['PATH']}", "KEY": "sesame", "HOME": str(cls.folder),
                           "XDG_CACHE_HOME": str(cls.folder / "cache")}
        cls.server = None

    def url(self):
        """Of the server that examples ask."""
        cls = type(self)
        if cls.server is None:
            cls.server = Server("oar serve demo", self.folder, self.environment)
            cls.addClassCleanup(cls.server.stop)
        return cls.server.url

    def here(self, command):
        """The example with this machine's names: a server of ours for another's, its folder, less time."""
        command = command.replace("/etc/oar/", "").replace("--duration 60", "--duration 1").replace("--duration 20", "--duration 1")
        command = command.replace("-n 200", "-n 20")
        if command.startswith("oar loadtest") and "http" not in command.split("--html")[0]:
            command = command.replace("oar loadtest", "oar loadtest http://127.0.0.1:8000")
        if command == "oar health":
            command += " --url http://127.0.0.1:8000"
        if re.match(r"oar (loadtest|batch|health)|curl", command):
            command = re.sub(r"https?://[a-z0-9.]+:8000|localhost:8000", lambda _: self.url(), command)
        return command

    def run_example(self, command):
        if "OAR_ISA=avx2" in command and platform.machine() != "x86_64":
            self.skipTest("no AVX2 here")
        if command.startswith("curl") and shutil.which("curl") is None:
            self.skipTest("no curl")
        command = self.here(command)
        if command.startswith("oar serve") and "--print-config" not in command:
            server = Server(command, self.folder, self.environment)
            try:
                done = oar("health", "--url", server.url)
            finally:
                code, errors = server.stop()
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(code, 0, errors)
            return
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=TIMEOUT)
        # What a load test finds on a busy machine may be that no rate is met, or that the client was late.
        measured = command.startswith("oar loadtest") and "req/s" in done.stdout
        self.assertIn(done.returncode, (0, 1) if measured else (0,), f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        if command.startswith("curl"):
            self.assertIn("data: [DONE]", done.stdout)


def add_tests():
    """One test of each command, so that a failure names it."""
    for words in [()] + [(c,) for c in commands()] + [("conformance", c) for c in commands("conformance")]:
        if words == ("serve",) and not HAS_SERVER:
            continue

        def test(self, words=words):
            found = examples(oar(*words, "--help").stdout)
            # A group of commands leaves the examples to its commands.
            self.assertTrue(found or commands(*words), "no examples")
            for command in found:
                if not HAS_SERVER and re.match("oar (serve|loadtest|health|batch)|curl", command):
                    continue
                with self.subTest(command):
                    self.run_example(command)
        setattr(Examples, "_".join(("test_oar",) + words), test)


class NearestWord(unittest.TestCase):
    def refused(self, *args, says):
        done = oar(*args)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn(says, done.stderr)

    def test_commands_and_options(self):
        self.refused("serv", says="no command 'serv'; did you mean serve?\nTry `oar --help`.")
        self.refused("genrate", "demo", says="did you mean generate?")
        self.refused("frobnicate", says="no command 'frobnicate'; the commands are serve, run, generate, ")
        self.refused("conformance", "onx", says="no command 'onx'; did you mean onnx?\nTry `oar conformance --help`.")
        self.refused("generate", "demo", "--weigths", "int4", says="no option --weigths; did you mean --weights?")
        self.refused("generate", "--weigths=int4", says="no option --weigths; did you mean --weights?")
        self.refused("generate", "demo", "--xyzzy", says="no option --xyzzy\nTry `oar generate --help`.")
        self.refused("generate", "demo", "prompt", says="prompt")


class Completions(unittest.TestCase):
    def proposed(self, *words):
        script = f'source <("{OAR}" completions bash); COMP_WORDS=({" ".join(words)} ""); COMP_CWORD={len(words) - 1}; _oar; ' \
                 'printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", script], cwd=SOURCE / "configs", capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_bash(self):
        self.assertEqual(self.proposed("oar", "gen"), ["generate"])
        self.assertEqual(self.proposed("oar", "generate", "--weig"), ["--weights"])
        self.assertEqual(self.proposed("oar", "conformance", "on"), ["onnx"])
        self.assertEqual(set(commands()) - set(self.proposed("oar", "''")), set())

    def test_other_shells_can_read_theirs(self):
        for shell in ("zsh", "fish"):
            script = oar("completions", shell).stdout
            self.assertIn("generate", script)
            self.assertRegex(script, "-l weights|--weights:")
            if shutil.which(shell):
                done = subprocess.run([shell, "-n", "/dev/stdin"], input=script, capture_output=True, text=True, timeout=TIMEOUT)
                self.assertEqual((done.returncode, done.stderr), (0, ""), shell)
        self.assertEqual(oar("completions", "tcsh").returncode, 2)


class Layout(unittest.TestCase):
    def test_help_fits_a_page(self):
        for words in [()] + [(c,) for c in commands()]:
            for line in oar(*words, "--help").stdout.split("\n"):
                with self.subTest(words):
                    self.assertLessEqual(len(line), 132, line)
            self.assertNotIn("\n\n\n", oar(*words, "--help").stdout)

    @unittest.skipUnless(HAS_SERVER, "built without the server")
    def test_serve_is_in_groups(self):
        text = oar("serve", "--help").stdout
        groups = dict(re.findall(r"(?m)^([A-Z][a-z ]+):\n((?:  .*\n)+)", text))
        for group, option in (("Model", "--weights"), ("Engine", "--threads"), ("Server", "--http"), ("Access", "--api-key"),
                              ("Ordinary models", "--max-batch")):
            self.assertIn(option + " ", groups[group])
        self.assertLessEqual(groups["Options"].count("\n  -"), 3)


add_tests()
if __name__ == "__main__":
    unittest.main(verbosity=1)
