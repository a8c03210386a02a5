#!/usr/bin/env python3
"""`oar loadtest` as a user runs it, against the tests' own server of known times. Python 3, standard library only."""
import csv
import html.parser
import io
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

OAR = os.environ["OAR_BIN"]
SERVER = os.environ["OAR_SSE_SERVER"]


class Server:
    """sse_server THREADS FIRST_MS GAP_MS CHUNKS"""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([SERVER, "0", *map(str, arguments)], stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()

    def __enter__(self):
        return self.url

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def oar(*arguments, timeout=60):
    return subprocess.run([OAR, "loadtest", *arguments], capture_output=True, text=True, timeout=timeout)


class Loadtest(unittest.TestCase):
    def test_every_output(self):
        with Server(1, 20, 5, 4) as url, tempfile.TemporaryDirectory() as folder:
            def path(name):
                return os.path.join(folder, name)
            done = oar(url, "-n", "10", "-c", "2", "--json", path("a.json"), "--detailed", "--jsonl", path("a.jsonl"),
                       "--csv", path("a.csv"), "--html", path("a.html"))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("10 completed", done.stdout)
            with open(path("a.json"), encoding="utf-8") as f:
                summary = json.load(f)
            self.assertEqual(summary["completed"], 10)
            self.assertEqual(summary["total_output_tokens"], 40)
            self.assertGreaterEqual(summary["median_ttft_ms"], 20)
            self.assertEqual(len(summary["itls"]), 10)
            self.assertEqual(summary["generated_texts"][0], "w0 w1 w2 w3 ")
            with open(path("a.jsonl"), encoding="utf-8") as f:
                records = [json.loads(line) for line in f]
            self.assertEqual([r["index"] for r in records], list(range(10)))
            self.assertEqual(len(records[0]["gaps_ms"]), 3)
            with open(path("a.csv"), encoding="utf-8", newline="") as f:
                rows = list(csv.DictReader(f))
            self.assertEqual(len(rows), 10)
            self.assertEqual(rows[0]["output_tokens"], "4")
            with open(path("a.html"), encoding="utf-8") as f:
                page = f.read()
            html.parser.HTMLParser().feed(page)
            self.assertIn("<svg", page)
            for outside in ("http://www", "https://", "src=", "<script", "@import", "url("):
                self.assertNotIn(outside, page)

    def test_json_to_stdout_alone(self):
        with Server(1, 1, 0, 2) as url:
            done = oar(url, "-n", "3", "--json", "-")
            self.assertEqual(json.load(io.StringIO(done.stdout))["completed"], 3)

    def test_open_loop_search_against_and_check(self):
        with Server(1, 10, 1, 3) as url:
            done = oar(url, "--rate", "20", "--find-rate", "--goodput", "ttft:500", "-n", "10", "--threads", "1")
            self.assertIn("highest rate", done.stdout, done.stderr)
            done = oar(url, "--against", url, "-n", "8", "-c", "2", "--rounds", "3")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"TTFT p50 +\d\.\d+ +\[")
            done = oar(url, "-n", "6", "-c", "3", "--check")
            self.assertIn("6 answers compared with the same request alone, 0 differ", done.stdout)

    def test_wrong_command_lines(self):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as trace:
            trace.write("TIMESTAMP,ContextTokens\n1,2\n")
            trace.flush()
            for arguments, message in (
                    (["http://127.0.0.1:1", "--model", "m", "--arrival", "sometimes"], "sometimes"),
                    (["http://127.0.0.1:1", "--model", "m", "--arrival", "trace"], "--trace"),
                    (["http://127.0.0.1:1", "--model", "m", "--trace", trace.name], "no column for output tokens"),
                    (["http://127.0.0.1:1", "--model", "m", "--goodput", "fast"], "goodput"),
                    (["http://127.0.0.1:1", "--model", "m", "--find-rate"], "--goodput"),
                    (["http://127.0.0.1:1", "--model", "m", "--extra-body", "[1]"], "JSON object"),
                    (["http://127.0.0.1:1", "--endpoint", "infer", "--model", "m"], "--body"),
                    (["http://127.0.0.1:1", "--endpoint", "smtp"], "smtp"),
                    (["http://127.0.0.1:1", "-n", "1"], "cannot")):
                done = oar(*arguments)
                self.assertNotEqual(done.returncode, 0, arguments)
                if message != "cannot":
                    self.assertIn(message, done.stderr, arguments)

    def test_interrupt_reports_what_there_is(self):
        with Server(1, 5, 500, 100) as url:
            process = subprocess.Popen([OAR, "loadtest", url, "-n", "50", "-c", "2"], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 130)
            self.assertIn("interrupted", out)


if __name__ == "__main__":
    unittest.main()
