"""The `oar` program as a user runs it, for the tests of the command line: real processes, real files. Standard library only.

$OAR_BIN names the program, $OAR_SOURCE_DIR the tree, $OAR_TEST_DATA the folder of downloaded test data (tests that need it skip
without).
"""
import json
import os
import pathlib
import re
import select
import subprocess
import time
import unittest
import urllib.request

SOURCE = pathlib.Path(os.environ.get("OAR_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
OAR = os.environ.get("OAR_BIN", str(SOURCE / "build/release/bin/oar"))
DATA = pathlib.Path(os.environ.get("OAR_TEST_DATA", SOURCE.parent / "shared/data"))
STORIES = DATA / "llm/stories260K"
TALES = SOURCE / "tests/data/tales"  # our own of that kind
TIMEOUT = 240  # seconds; a sanitizer build on a busy machine
SANITIZERS = os.environ.get("SANITIZERS", "")  # those of this build


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
