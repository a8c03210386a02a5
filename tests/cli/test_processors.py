#!/usr/bin/env python3
"""The program and the library on processors that this machine is not: emulated ones of several years, every level that
this one has, and valgrind's. Standard library only.

$OAR_BIN names the program, $OAR_EXAMPLE a C program that embeds liboar.so, $OAR_SOURCE_DIR the tree.
"""
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import urllib.request

SOURCE = pathlib.Path(os.environ.get("OAR_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
OAR = os.environ.get("OAR_BIN", str(SOURCE / "build/release/bin/oar"))
EXAMPLE = os.environ.get("OAR_EXAMPLE", str(SOURCE / "build/release/bin/example_tokens"))
QEMU = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
VALGRIND = shutil.which("valgrind")
TIMEOUT = 600  # seconds, against a hang: an emulated processor on a busy machine
sys.path.insert(0, str(SOURCE / "tests/support"))
import tiny_onnx  # noqa: E402

# qemu's names, and the level of kernels that must be chosen there: 2008 (no AVX), 2013, 2015 and 2017.
PROCESSORS = {"Nehalem": "generic", "Haswell": "avx2", "Skylake-Client": "avx2", "EPYC": "avx2"}
LEVELS = ["generic", "avx2", "avx512", "avx512vnni", "amx"]
MODEL = SOURCE / "configs/demo"


def run(*command, env=None):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=TIMEOUT,
                          env={**os.environ, **(env or {})})


def write_ones(path, rows, cols):
    """An .npy file of f32 (rows, cols), all 1."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}".ljust(117) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        f.write(struct.pack(f"<{rows * cols}f", *[1.0] * (rows * cols)))


def read_floats(path, count):
    """The last `count` f32 of a file."""
    return struct.unpack(f"<{count}f", pathlib.Path(path).read_bytes()[-4 * count:])


class Programs(unittest.TestCase):
    """What a user does on a processor; `prefix` starts a program on it."""

    def ok(self, *command, **kwargs):
        done = run(*command, **kwargs)
        self.assertEqual(done.returncode, 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def level(self, prefix, env=None):
        found = re.search(r"(?m)^isa +(\w+)$", self.ok(*prefix, OAR, "version", env=env))
        self.assertIsNotNone(found)
        return found[1]

    def generate(self, prefix, *options, env=None):
        text = self.ok(*prefix, OAR, "generate", "demo", "--prompt", "KING:", "--max-tokens", "2", "--seed", "1", *options,
                       env=env)
        self.assertTrue(text.strip(), "some text")

    def infer(self, prefix, env=None):
        with tempfile.TemporaryDirectory() as folder:
            rows = tiny_onnx.write_product(f"{folder}/m.onnx")
            write_ones(f"{folder}/x.npy", 3, 16)
            self.ok(*prefix, OAR, "infer", f"{folder}/m.onnx", "--input", f"x={folder}/x.npy", "--output", folder, env=env)
            y = read_floats(f"{folder}/y.npy", 24)
        for got, want in zip(y, [sum(column) for column in zip(*rows)] * 3):
            self.assertAlmostEqual(got, want, delta=1e-4)

    def serve(self, prefix, env=None):
        server = subprocess.Popen([*prefix, OAR, "serve", "demo", "--http", "127.0.0.1:0", "--grpc", ""],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**os.environ, **(env or {})})
        try:
            lines, port = [], None
            for line in server.stdout:
                lines.append(line)
                if port := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                    break
            self.assertIsNotNone(port, "".join(lines))
            request = urllib.request.Request(
                f"http://127.0.0.1:{port[1]}/v1/completions",
                json.dumps({"model": "demo", "prompt": "KING:", "max_tokens": 2}).encode(),
                {"content-type": "application/json"})
            answer = json.load(urllib.request.urlopen(request, timeout=TIMEOUT))
            self.assertEqual(answer["usage"]["completion_tokens"], 2)
        finally:
            server.send_signal(signal.SIGTERM)
            rest = server.communicate(timeout=TIMEOUT)[0]
        self.assertEqual(server.returncode, 0, rest)


@unittest.skipUnless(platform.machine() == "x86_64", "x86-64 alone")
class Emulated(Programs):
    def setUp(self):
        if QEMU is None:
            self.skipTest("no qemu-x86_64 (Debian: qemu-user)")

    def on(self, cpu):
        prefix = [QEMU, "-cpu", cpu]
        self.assertEqual(self.level(prefix), PROCESSORS[cpu])
        self.generate(prefix)
        self.infer(prefix)
        self.serve(prefix)
        self.assertIn("Oar works here", self.ok(*prefix, OAR, "check"))
        if os.path.exists(EXAMPLE):
            self.ok(*prefix, EXAMPLE, MODEL, "KING:")

    def test_nehalem(self):
        self.on("Nehalem")

    def test_haswell(self):
        self.on("Haswell")

    def test_skylake_client(self):
        self.on("Skylake-Client")

    def test_epyc(self):
        self.on("EPYC")


class Native(Programs):
    """Levels of this processor, whole models on each."""

    def test_every_level(self):
        best = self.level([])
        if best not in LEVELS:
            self.skipTest(f"one level on this processor: {best}")
        for level in LEVELS[: LEVELS.index(best) + 1]:
            env = {"OAR_ISA": level}
            with self.subTest(level):
                self.assertEqual(self.level([], env), level)
                for options in ([], ["--weights", "int8", "--kv", "int8"], ["--weights", "int4", "--kv", "int4"]):
                    self.generate([], *options, env=env)
                self.infer([], env)
                self.serve([], env)


class Valgrind(Programs):
    def test_generate_is_clean(self):
        if VALGRIND is None:
            self.skipTest("no valgrind")
        self.generate([VALGRIND, "-q", "--error-exitcode=9", "--leak-check=no"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
