#!/usr/bin/env python3
"""server_test.py OAR [DEVICE] [--all]: a server on the emulated device answers 16 streams at once, of which clients leave some, from a
pool of pages that has room for a few: streams are preempted, as its metrics say, and texts are those that they are alone, some of them
or with --all every one."""
import concurrent.futures
import http.client
import json
import pathlib
import re
import subprocess
import sys
import time
import unittest

ALL = "--all" in sys.argv
OAR, DEVICE = ([arg for arg in sys.argv[1:] if arg != "--all"] + ["cuda_emulated"])[:2]
MODEL = pathlib.Path(__file__).resolve().parents[1] / "data/tales/tales.gguf"  # one that the emulated device computes in seconds
STREAMS, TOKENS, WORDS = 16, 80, 34


class Server(unittest.TestCase):
    def setUp(self):
        # Room for a few pages. Those of prompts are not kept, so that what a stream computes alone is not found by the others.
        self.process = subprocess.Popen([OAR, "serve", MODEL, "--http", "127.0.0.1:0", "--grpc", "", "--device", DEVICE, "--memory",
                                         "860KiB", "--max-context", "192", "--max-batch-tokens", "128", "--max-sequences", "16",
                                         "--no-prefix-cache", "--kv", "bf16"],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                return
        self.fail("the server has not begun")

    def tearDown(self):
        self.process.terminate()
        self.assertEqual(self.process.wait(60), 0)
        self.process.stdout.close()

    def text(self, number, leave=False):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=900)
        # An answer ends on its third page of 64 tokens, and a stream is let in where there is room for two.
        prompt = f"Once upon a time {number} times, there was " + " ".join(["O"] * (WORDS + number % 4))
        connection.request("POST", "/v1/completions", json.dumps({"model": MODEL.name, "prompt": prompt, "stream": True,
                           "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200)
        text = ""
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            text += json.loads(line[6:])["choices"][0]["text"]
            if leave and len(text) > 3:
                break
        connection.close()
        return text

    def metric(self, name, label=""):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{") and label in line)

    def test_of_streams(self):
        leaving = [n for n in range(STREAMS) if n % 4 == 3]
        alone = {n: self.text(n) for n in range(STREAMS) if n not in leaving and (ALL or n % 5 == 0)}
        self.assertEqual(self.metric("vllm:num_preemptions_total"), 0)
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            texts = list(pool.map(lambda n: self.text(n, leave=n in leaving), range(STREAMS)))
        preempted, pages = self.metric("vllm:num_preemptions_total"), self.metric("oar_kv_blocks", 'state="total"')
        print(f"{preempted:.0f} preemptions with {pages:.0f} pages")
        self.assertGreater(preempted, 0)
        for n, text in alone.items():
            self.assertEqual(texts[n], text, f"stream {n}")
        # Those whose clients left have ended, or will as soon as that is seen, and nobody holds a page.
        ends = time.monotonic() + 120
        while self.metric("oar_kv_blocks", 'state="used"') > 0 and time.monotonic() < ends:
            time.sleep(0.2)
        self.assertEqual(self.metric("oar_kv_blocks", 'state="used"'), 0)
        self.assertEqual(self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting"), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
