#!/usr/bin/env python3
"""`oar loadtest` as a user runs it, against the tests' own server of known times. Python 3, standard library only."""
import csv
import glob
import html.parser
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from tiny_onnx import write_onnx  # noqa: E402

OAR = os.environ["OAR_BIN"]
SERVER = os.environ["OAR_SSE_SERVER"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


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


def oar(*arguments, timeout=240):
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
            if "client was late" in done.stderr:  # this machine was busy: said, instead of searching on
                self.assertEqual(done.returncode, 1)
            else:
                self.assertIn("highest rate", done.stdout, done.stderr)
            done = oar(url, "--against", url, "-n", "8", "-c", "2", "--rounds", "3")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"TTFT p50 +\d\.\d+ +\[")
            with tempfile.TemporaryDirectory() as folder:
                page = os.path.join(folder, "a.html")
                done = oar(url, "--against", url, "-n", "6", "-c", "2", "--rounds", "2", "--seed", "7", "--html", page,
                           "--api-key", "sesame", "--header", "X-Tenant: blue", "--header=X-Tenant: red")
                self.assertEqual(done.returncode, 0, done.stderr)
                with open(page, encoding="utf-8") as f:
                    text = f.read()
            for words in ("B / A, 2 rounds", "server A", "server B", "oar loadtest http", "--seed 7 ", "<th>seed</th><td>7</td>"):
                self.assertIn(words, text)
            self.assertRegex(text, r"<td class=\"n\">\d\.\d{3} to \d+\.\d{3}</td>")
            self.assertRegex(text, r"<th>client</th><td>oar \d+\.\d+\.\d+, ")
            for secret in ("sesame", "blue", "red<", "red&"):
                self.assertNotIn(secret, text)
            self.assertIn("X-Tenant:...", text)
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

    @unittest.skipIf(CHROMIUM is None, "skipped: chromium is not installed")
    def test_the_page_in_a_browser(self):
        """Rendered by headless Chromium: plots are there, and a hostile model name is text."""
        hostile = "<img src=x onerror=document.title='caught'><script>document.title='caught'</script>"
        with Server(1, 5, 2, 4) as url, tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "a.html")
            done = oar(url, "-n", "12", "-c", "2", "--model", hostile, "--html", page)
            self.assertEqual(done.returncode, 0, done.stderr)
            dom = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir=" + folder + "/profile",
                                  "--virtual-time-budget=2000", "--dump-dom", "file://" + page],
                                 capture_output=True, text=True, timeout=240).stdout
            self.assertNotIn("<title>caught", dom)
            self.assertNotIn("<img", dom)
            self.assertNotIn("<script", dom)
            self.assertIn("&lt;img src=x onerror", dom)
            self.assertGreaterEqual(dom.count("<svg"), 2)
            self.assertGreater(dom.count("<circle") + dom.count("<polyline") + dom.count("<path") + dom.count("<rect"), 3)

    def test_every_kind_of_trace(self):
        """Ours and the public ones that the collection holds, a few requests of each, as fast as the client can."""
        source = os.environ["OAR_SOURCE_DIR"]
        folders = [os.path.join(source, "tests/data"), os.environ.get("OAR_TEST_DATA", os.path.join(source, "../shared/data"))]
        files = [f for folder in folders for kind in ("csv", "jsonl") for f in sorted(glob.glob(f"{folder}/traces/*.{kind}"))]
        self.assertGreaterEqual(len(files), 2)
        with Server(1, 1, 1, 3) as url:
            for trace in files:
                done = oar(url, "--trace", trace, "-n", "15", "--speed", "1e6", "--trace-words", "20", "--trace-output", "4", "--csv", "-")
                self.assertIn("15 completed", done.stdout + done.stderr, trace + done.stderr)

    @unittest.skipIf(os.environ.get("OAR_WITH_SERVER") == "0", "skipped: a build without the server")
    def test_tensors_over_rest_and_grpc(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "add.onnx")
            write_onnx(model)
            server = subprocess.Popen([OAR, "serve", model, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            try:
                lines = iter(server.stdout.readline, "")
                http = next(line.split()[1] for line in lines if line.startswith("http "))
                grpc = next(line.split()[1] for line in lines if line.startswith("grpc "))
                next(line for line in lines if line.startswith("ready"))
                body = os.path.join(folder, "body.json")
                with open(body, "w", encoding="utf-8") as f:
                    json.dump({"inputs": [{"name": n, "datatype": "FP32", "shape": [1, 2], "data": [[1, 2.5]]} for n in "xy"]}, f)
                tensors = ["--tensor", "x:FP32:4,2", "--tensor", "y:FP32:4,2"]
                for arguments in ([http, "--endpoint", "infer", *tensors], [http, "--endpoint", "infer", "--body", body],
                                  [grpc, "--endpoint", "grpc_infer", *tensors], [grpc, "--endpoint", "grpc_infer", "--body", body],
                                  [grpc, "--endpoint", "grpc_stream", *tensors]):
                    done = oar(*arguments, "--model", "add", "-n", "40", "-c", "4")
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assertIn("40 completed", done.stdout)
                    # The same tensors, alone and under load: the same answers, byte by byte.
                    done = oar(*arguments, "--model", "add", "-n", "20", "-c", "4", "--check")
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                done = oar(grpc, "--endpoint", "grpc_infer", "--model", "add", "--tensor", "x:FP32:4,3", "--tensor", "y:FP32:4,2", "-n", "3")
                self.assertEqual(done.returncode, 1)
                self.assertIn("INVALID_ARGUMENT", done.stdout)
            finally:
                server.terminate()
                server.wait(timeout=120)
                server.stdout.close()

    def test_live_view_on_a_terminal(self):
        """One line that is rewritten while it runs and gone at the end; nothing of it where stderr is no terminal."""
        with Server(1, 5, 100, 20) as url:
            ours, theirs = pty.openpty()
            process = subprocess.Popen([OAR, "loadtest", url, "-n", "6", "-c", "3"], stdout=subprocess.PIPE, stderr=theirs, text=True)
            os.close(theirs)
            seen = b""
            try:
                while piece := os.read(ours, 4096):
                    seen += piece
            except OSError:  # the other end is closed
                pass
            out, _ = process.communicate(timeout=120)
            os.close(ours)
            self.assertEqual(process.returncode, 0)
            self.assertIn("6 completed", out)
            lines = [x for x in seen.split(b"\r\x1b[K") if x]
            self.assertGreater(len(lines), 3)
            for line in lines:
                self.assertRegex(line.decode(), r"^\d+ sent, \d+ in flight, \d+ done, 0 failed, \d+ chunks/s(, ETA \d+ s)?$")
            self.assertTrue(any(b"3 in flight" in line for line in lines))
            self.assertTrue(any(b", ETA " in line for line in lines))
            self.assertTrue(seen.endswith(b"\r\x1b[K"))
            self.assertEqual(oar(url, "-n", "3").stderr, "")

    def test_every_arrival(self):
        """Each kind of open loop, by the times that its requests were meant for."""
        with Server(2, 1, 0, 2) as url, tempfile.TemporaryDirectory() as folder:
            for kind, more, span in (("constant", ["-r", "200"], (0.49, 0.5)), ("poisson", ["-r", "200"], (0.3, 0.8)),
                                     ("gamma", ["-r", "200", "--burstiness", "0.5"], (0.2, 1.0)),
                                     ("ramp", ["-r", "100", "--rate-end", "300"], (0.48, 0.52)), ("burst", ["-r", "200", "--burst", "25"], (0.37, 0.38))):
                path = os.path.join(folder, kind)
                done = oar(url, "--arrival", kind, *more, "-n", "100", "--jsonl", path)
                self.assertIn("100 completed", done.stdout, done.stderr)
                with open(path, encoding="utf-8") as f:
                    intended = [json.loads(line)["intended_ms"] / 1000 for line in f]
                self.assertGreaterEqual(intended[-1], span[0], kind)
                self.assertLessEqual(intended[-1], span[1], kind)
                self.assertEqual(len(set(intended)), 4 if kind == "burst" else 100, kind)

    def test_interrupt_reports_what_there_is(self):
        with Server(1, 5, 500, 100) as url:
            process = subprocess.Popen([OAR, "loadtest", url, "-n", "50", "-c", "2"], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
            while not re.search(r" 2$", urllib.request.urlopen(url + "/metrics").read().decode(), re.M):
                time.sleep(0.02)  # until both are under way
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 130)
            self.assertIn("interrupted", out)


if __name__ == "__main__":
    unittest.main()
