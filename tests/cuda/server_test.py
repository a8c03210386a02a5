#!/usr/bin/env python3
"""server_test.py OAR [DEVICE]: a server on the emulated device answers 16 streams at once, of which clients leave some, from a pool of
pages that has room for a few: each text is the one that it is alone."""
import concurrent.futures
import http.client
import json
import re
import subprocess
import sys
import unittest

OAR, DEVICE = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cuda_emulated"
STREAMS, TOKENS = 16, 12


class Server(unittest.TestCase):
    def setUp(self):
        self.process = subprocess.Popen([OAR, "serve", "demo", "--http", "127.0.0.1:0", "--grpc", "", "--device", DEVICE, "--memory", "16MiB",
                                         "--max-context", "128"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
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
        connection.request("POST", "/v1/completions", json.dumps({"model": "demo", "prompt": f"Number {number} says: O", "stream": True,
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

    def test_of_streams(self):
        alone = {n: self.text(n) for n in range(0, STREAMS, 5)}
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            texts = list(pool.map(lambda n: self.text(n, leave=n % 4 == 3), range(STREAMS)))
        for n, text in alone.items():
            if n % 4 != 3:
                self.assertEqual(texts[n], text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
