#!/usr/bin/env python3
"""`oar serve` as a process: its words, its life, its end."""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from program import SOURCE, OAR, TIMEOUT, oar, has_server, Base, Server

sys.path.insert(0, str(SOURCE / "tests/support"))
from tiny_adapter import write_adapter  # noqa: E402
from tiny_onnx import write_layer, write_onnx, write_product  # noqa: E402


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
                                   (["--api-key-file", "/nowhere/keys"], "/nowhere/keys"),
                                   (["--request-log", "/nowhere/log"], "/nowhere/log"), (["--trace", "/nowhere/trace"], "/nowhere/trace"),
                                   (["--precision", "f12"], "f12"),
                                   (["--tool-parser", "hermse"], "tool-parser is hermse; it is one of auto, none, "),
                                   (["--reasoning-parser", "thinking"], "reasoning-parser is thinking")):
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

    def test_a_flag_that_no_model_takes_is_named(self):
        where = ["--http", "127.0.0.1:0", "--grpc", ""]
        with tempfile.TemporaryDirectory() as folder:
            ordinary = folder + "/add.onnx"
            write_onnx(ordinary)
            for flag in (["--kv", "int4"], ["--weights", "int8"], ["--rotate", "kv"], ["--max-context", "64"],
                         ["--tune-seconds", "1"], ["--deterministic"], ["--max-batch-tokens", "64"],
                         ["--max-sequences", "2"], ["--no-prefix-cache"], ["--mixed-prefix"], ["--state-snapshots", "1MiB"], ["--snapshot-tokens", "64"], ["--mla", "expanded"], ["--allow-special-in-text"],
                         ["--enable-lora"], ["--lora-modules", "a=" + folder], ["--max-loras", "2"]):
                self.refused(2, "serve", ordinary, *where, *flag, says=[flag[0] + ": language models", ordinary])
            for flag in (["--max-batch", "4"], ["--preferred-batch", "2"], ["--max-queue-delay", "5"], ["--instances", "2"],
                         ["--precision", "bf16"]):
                self.refused(2, "serve", "demo", *where, *flag, says=[flag[0] + ": ordinary models and encoders", "demo"])
            said = oar("serve", ordinary, *where, env={"OAR_KV": "int4"})
            self.assertEqual(said.returncode, 2)
            self.assertIn("--kv", said.stderr)
            os.makedirs(folder + "/models/add/1")
            shutil.copy(ordinary, folder + "/models/add/1/model.onnx")
            self.refused(2, "serve", folder + "/models", *where, "--name", "x", says=["--name", "folder of models"])
            self.refused(2, "serve", folder + "/models", *where, "--lora-modules", "a=b", says=["--lora-modules", "folder of models"])
            # What loads later may take it.
            with Server("--kv", "int4", "--model-control", "explicit", model=folder + "/models"):
                pass
            with Server("--max-batch", "4", "--threads", "1", "--max-waiting", "7", "--reference", model=ordinary):
                pass

    def test_tune_seconds_without_auto_is_refused(self):
        for command in (["serve", "demo", "--http", "127.0.0.1:0", "--grpc", ""], ["generate", "demo", "-p", "R", "--kv", "int8"],
                        ["inspect", "demo"], ["eval", "demo", "--text", SOURCE / "configs/demo/heldout.txt"]):
            self.refused(2, *command, "--tune-seconds", "1", says=["--tune-seconds 1", "--kv auto"])

    def test_an_ordinary_model_is_refused_by_the_budget(self):
        with tempfile.TemporaryDirectory() as folder:
            write_layer(folder + "/wide.onnx", 1024)  # 4 MiB of weights
            where = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
            self.refused(1, "serve", folder + "/wide.onnx", *where, "--memory", "3MiB",
                         says=["memory budget of 3.0 MiB", "for wide", "raise the memory"])
            with Server("--memory", "16MiB", "--threads", "1", model=folder + "/wide.onnx"):
                pass

    def test_models_share_one_budget(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(SOURCE / "configs/demo", folder + "/large")
            self.ok("quantize", "demo", "-o", folder + "/small", "--weights", "int8", "--quiet")
            small = ["--max-sequences", "2", "--max-batch-tokens", "64", "--max-context", "128", "--threads", "1"]
            # Half of it for each would be too little for the large one.
            budget = ["--memory", "23MiB"]
            self.refused(1, "serve", f"{folder}/large", *small, "--http", "127.0.0.1:0", "--memory", "11MiB",
                         says=["memory budget of 11.0 MiB", "raise the memory"])
            with Server(*small, *budget, model=folder) as server:
                for name in ("large", "small"):
                    self.assertEqual(len(json.load(server.complete(4, model=name))["choices"]), 1)
            # The second is refused by name of who has the memory; the first is served.
            with Server(*small, "--memory", "16MiB", model=folder) as server:
                server.process.send_signal(signal.SIGTERM)
                said = server.process.communicate(timeout=TIMEOUT)[1]
                self.assertIn("model small is not served: the memory budget of 16.0 MiB", said)

    def test_a_device_that_dies_under_one_model_leaves_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, write in (("product", write_product), ("add", write_onnx), ("at_home", write_product)):
                os.makedirs(f"{folder}/{name}/1")
                write(f"{folder}/{name}/1/model.onnx")

            pathlib.Path(folder, "at_home/config.pbtxt").write_text("instance_group [ { kind: KIND_CPU } ]\n")

            def ask(server, name, **inputs):
                body = {"inputs": [{"name": key, "shape": [1, len(v)], "datatype": "FP32", "data": v} for key, v in inputs.items()]}
                request = urllib.request.Request(f"http://127.0.0.1:{server.http}/v2/models/{name}/infer",
                                                 json.dumps(body).encode(), {"content-type": "application/json"})
                try:
                    return 200, json.load(urllib.request.urlopen(request, timeout=TIMEOUT))["outputs"][0]["data"]
                except urllib.error.HTTPError as e:
                    return e.code, json.load(e)["error"]

            # The second launch fails, and `add` needs none.
            with Server("--device", "loopback", model=folder, env={"OAR_LOOPBACK": "fail_launch=2"}) as server:
                x = [1.0] * 16
                self.assertEqual(ask(server, "product", x=x), (200, [7.5 - m for m in range(8)]))
                for _ in range(2):
                    code, error = ask(server, "product", x=x)
                    self.assertEqual(code, 503)
                    self.assertIn("loopback", str(error))
                self.assertEqual(ask(server, "add", x=[1.0, 2.0], y=[3.0, 4.0]), (200, [4.0, 6.0]))
                for _ in range(3):
                    self.assertEqual(ask(server, "at_home", x=x), (200, [7.5 - m for m in range(8)]))

    def test_the_model_is_unloaded_and_loaded_again(self):
        with Server("--model-control", "explicit") as server:
            def control(verb):
                ask = urllib.request.Request(server.url(f"/v2/repository/models/demo/{verb}"), b"{}", {"content-type": "application/json"})
                return urllib.request.urlopen(ask, timeout=TIMEOUT).status

            before = json.load(server.complete(8))["choices"]
            self.assertEqual(control("unload"), 200)
            with self.assertRaises(urllib.error.HTTPError) as gone:
                server.complete(8)
            self.assertEqual(gone.exception.code, 503)
            gone.exception.close()
            self.assertEqual(control("load"), 200)
            self.assertEqual(json.load(server.complete(8))["choices"], before)

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

    def test_the_options_and_their_origins_are_printed_as_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "server.toml"
            file.write_text('model = "demo"\nmax-sequences = 9\nhttp = "127.0.0.1:1"\n', encoding="utf-8")
            env = {**os.environ, "OAR_MAX_SEQUENCES": "8", "OAR_API_KEY": "hush", "OAR_CORS_ORIGIN": 'https://a.example,https://b".example'}
            ask = [OAR, "serve", "--config", str(file), "--http", "127.0.0.1:2", "--deterministic", "--print-config"]
            printed = subprocess.run(ask, env=env, capture_output=True, text=True, check=True).stdout
            lines = {line.split(" = ")[0]: re.split(r"\s{2,}", line.split(" = ", 1)[1], maxsplit=1) for line in printed.splitlines()}
            self.assertEqual(lines["model"], ['"demo"', f"# {file}:1"])
            self.assertEqual(lines["max-sequences"], ["8", "# OAR_MAX_SEQUENCES"])
            self.assertEqual(lines["http"], ['"127.0.0.1:2"', "# command line"])
            self.assertEqual(lines["deterministic"], ["true", "# command line"])
            self.assertEqual(lines["allowed-origins"], ['["https://a.example", "https://b\\".example"]', "# OAR_CORS_ORIGIN"])
            self.assertEqual(lines["# api-key"], ["(not shown)", "# OAR_API_KEY"])
            self.assertEqual(lines["# max-waiting"][1], "default")
            self.assertNotIn("hush", printed)
            # What was printed is such a file.
            file.write_text(printed, encoding="utf-8")
            again = subprocess.run([OAR, "serve", "--config", str(file), "--print-config"], capture_output=True, text=True, check=True).stdout
            value = [line.split("  ")[0] for line in printed.splitlines() if not line.startswith("#")]
            self.assertEqual([line.split("  ")[0] for line in again.splitlines() if not line.startswith("#")], value)

    def test_a_request_in_flight_is_finished(self):
        with Server() as server:
            with server.complete(300, stream=True, ignore_eos=True) as stream:
                stream.readline()  # under way
                server.process.send_signal(signal.SIGTERM)
                body = stream.read().decode()
            self.assertIn("[DONE]", body)
            self.assertIn('"finish_reason":"length"', body)
            self.assertEqual(server.process.wait(TIMEOUT), 0)

    def test_not_ready_comes_before_no_new_requests(self):
        with Server("--drain-delay", "3") as server:
            server.process.send_signal(signal.SIGTERM)
            line = server.process.stderr.readline()
            while "not ready" not in line:
                line = server.process.stderr.readline()
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(server.url("/health/ready"), timeout=TIMEOUT)
            self.assertEqual(refused.exception.code, 503)
            refused.exception.close()
            self.assertEqual(json.load(server.complete(4))["usage"]["completion_tokens"], 4)
            self.assertEqual(server.process.wait(TIMEOUT), 0)

    def test_requests_without_time_are_told_and_logged(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        log = os.path.join(folder.name, "requests.jsonl")
        with Server("--drain-timeout", "0.2", "--request-log", log) as server:
            json.load(server.complete(5))
            with server.complete(1900, stream=True, ignore_eos=True) as stream:
                stream.readline()  # under way
                server.process.send_signal(signal.SIGTERM)
                body = stream.read().decode()
            code = server.process.wait(TIMEOUT)
        with open(log, encoding="utf-8") as lines:
            first, second = map(json.loads, lines)
        self.assertEqual((first["model"], first["completion_tokens"], first["finish"], first["status"]), ("demo", 5, "length", "OK"))
        self.assertTrue(0 < first["queued"] <= first["first_token"] <= first["total"])
        if second["status"] == "OK":  # a machine that makes 1900 tokens in 0.2 seconds
            self.assertEqual(code, 0)
            return
        self.assertEqual(code, 3)
        self.assertIn("the server stopped before the answer was complete", body)
        self.assertNotIn("[DONE]", body)
        self.assertEqual((second["finish"], second["status"]), ("cancelled", "UNAVAILABLE"))

    def test_a_trace_is_whole_after_a_signal(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.json"
            path.write_text("an older one")
            with Server("--trace", path, "--threads", "2") as server:
                answers = [json.load(server.complete(n)) for n in (5, 9)]
                with server.complete(1900, stream=True, ignore_eos=True) as stream:
                    stream.readline()  # under way
                    server.process.send_signal(signal.SIGTERM)
                    stream.read()
                self.assertIn(server.process.wait(TIMEOUT), (0, 3))
            events = json.loads(path.read_text())
        requests = [e["args"] for e in events if e["name"] == "request" and e["ph"] == "b"]
        self.assertEqual([(r["id"], r["completion_tokens"]) for r in requests[:2]],
                         [(a["id"], a["usage"]["completion_tokens"]) for a in answers])
        self.assertEqual(len(requests), 3)
        steps = [e for e in events if e["name"] == "step"]
        self.assertEqual([s["args"]["step"] for s in steps], list(range(1, len(steps) + 1)))
        # The server may have stopped between the last token's delivery and the end of its step.
        total = sum(r["completion_tokens"] for r in requests)
        self.assertIn(total - sum(s["args"]["generated_tokens"] for s in steps), (0, 1))
        names = {e["args"]["name"] for e in events if e["ph"] == "M"}
        self.assertEqual(names, {"oar serve", "demo version 1", "engine"})
        # Nobody stands across another on the engine's track: each slice is within the one it begins in.
        slices = sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"]))
        self.assertEqual(len(slices), 5 * len(steps))
        open_until = []
        for e in slices:
            begin, end = round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            self.assertTrue(not open_until or end <= open_until[-1], e)
            open_until.append(end)

    def test_a_trace_of_spans(self):
        self.refused(2, "serve", "demo", "--trace-format", "otlp", says=["--trace-format", "--trace FILE"])
        self.refused(2, "serve", "demo", "--trace", "x", "--trace-format", "zipkin", says=["--trace-format", "chrome", "otlp"])
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "spans.jsonl"
            with Server("--trace", path, "--trace-format", "otlp") as server:
                answer = json.load(server.complete(5))
                server.process.send_signal(signal.SIGTERM)
                self.assertEqual(server.process.wait(TIMEOUT), 0)
            lines = [json.loads(line) for line in path.read_text().splitlines()]
        traces = [line["resourceSpans"][0]["scopeSpans"][0]["spans"] for line in lines]
        spans, *others = sorted(traces, key=lambda t: t[0]["name"] != "generate")
        self.assertEqual({tuple(s["name"] for s in t) for t in others}, {("step", "plan", "forward", "sample", "commit")})
        self.assertEqual([s["name"] for s in spans], ["generate", "queued", "prefill", "decode"])
        values = {a["key"]: a["value"] for a in spans[0]["attributes"]}
        self.assertEqual(values["gen_ai.response.id"], {"stringValue": answer["id"]})
        self.assertEqual(values["gen_ai.usage.output_tokens"], {"intValue": "5"})
        self.assertEqual({s["traceId"] for s in spans}, {spans[0]["traceId"]})
        self.assertEqual({s.get("parentSpanId") for s in spans[1:]}, {spans[0]["spanId"]})

    def test_a_trace_has_a_limit(self):
        self.refused(2, "serve", "demo", "--trace-limit", "1MiB", says=["--trace-limit", "--trace FILE"])
        self.refused(1, "serve", "demo", "--trace", "-", says=["name a file"])
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.json"
            self.refused(1, "serve", "demo", "--trace", path, "--trace-limit", "0", says=["trace-limit: 0 bytes", "64.0 KiB"])
            with Server("--trace", path, "--trace-limit", "64KiB") as server:
                json.load(server.complete(300, ignore_eos=True))
                server.process.send_signal(signal.SIGTERM)
                errors = server.process.communicate(timeout=TIMEOUT)[1]
                self.assertEqual(server.process.returncode, 0)
            self.assertEqual(errors.count("has reached its limit of 64.0 KiB"), 1)
            self.assertLessEqual(path.stat().st_size, 64 << 10)
            self.assertEqual(json.loads(path.read_text())[-1]["name"], "trace limit reached")

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
                self.assertEqual(server.process.wait(TIMEOUT), 3)

    def test_key_and_name(self):
        with Server("--api-key", "sesame", "--name", "bard") as server:
            with self.assertRaises(urllib.error.HTTPError) as refused:
                server.complete(1)
            self.assertEqual(refused.exception.code, 401)
            refused.exception.close()
            request = urllib.request.Request(server.url("/v1/models"), headers={"Authorization": "Bearer sesame"})
            with urllib.request.urlopen(request, timeout=TIMEOUT) as models:
                self.assertEqual(json.load(models)["data"][0]["id"], "bard")

    def test_further_names(self):
        with Server("--name", "bard", "--alias", "gpt-4,other", "--tag", "small") as server:
            def read(path):
                with urllib.request.urlopen(server.url(path), timeout=TIMEOUT) as reply:
                    return json.load(reply)

            model = read("/v1/models")["data"][0]
            self.assertEqual((model["id"], model["aliases"], model["tags"]), ("bard", ["gpt-4", "other"], ["small"]))
            self.assertEqual(read("/v1/models/other"), model)
            self.assertEqual(read("/v2/models/gpt-4")["name"], "bard")  # in every protocol
        with tempfile.TemporaryDirectory() as folder:
            for name in ("one", "two"):
                shutil.copytree(pathlib.Path(SOURCE, "configs/demo"), pathlib.Path(folder, name))
            self.refused(1, "serve", folder, "--tag", "small", says=["--tag", "there are 2"])

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
        self.refused(1, "serve", "demo", "--cors-credentials", "--cors-origin", "*", says=["cors-credentials", "origin *"])
        self.refused(1, "serve", "demo", "--cors-methods", "GET", says=["cors-methods", "--allowed-origins"])
        self.refused(1, "serve", "demo", "--no-metrics", "--metrics", "127.0.0.1:0", says=["no-metrics"])

    def test_adapters_come_and_go_as_models(self):
        def ask(server, path, body=None):
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{server.http}{path}", data, {"content-type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        def text(server, model):
            return ask(server, "/v1/completions", {"model": model, "prompt": "ROMEO:", "max_tokens": 24, "temperature": 0})

        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary) / "adapter"
            write_adapter(folder, 0.1)  # enough to move the text on every instruction set
            load = {"lora_name": "polite", "lora_path": str(folder)}
            with Server("--max-loras", "1", "--model-control", "explicit") as server:
                plain = text(server, "demo")[1]["choices"][0]["text"]
                self.assertEqual(text(server, "polite")[0], 404)
                self.assertEqual(ask(server, "/v1/load_lora_adapter", load), (200, {}))
                adapted = text(server, "polite")[1]
                self.assertEqual(adapted["model"], "polite")
                self.assertNotEqual(adapted["choices"][0]["text"], plain)
                self.assertEqual(text(server, "demo")[1]["choices"][0]["text"], plain)
                listed = ask(server, "/v1/models")[1]["data"]
                self.assertEqual([(m["id"], m["parent"]) for m in listed], [("demo", None), ("polite", "demo")])
                for wrong, code in ((load, 409), ({**load, "lora_name": "demo"}, 409), ({**load, "lora_name": "other"}, 429),
                                    ({"lora_name": "x", "lora_path": "/nowhere"}, 404), ({"lora_name": "x"}, 400)):
                    self.assertEqual(ask(server, "/v1/load_lora_adapter", wrong)[0], code, wrong)
                self.assertEqual(ask(server, "/v1/unload_lora_adapter", {"lora_name": "polite"}), (200, {}))
                self.assertEqual(ask(server, "/v1/unload_lora_adapter", {"lora_name": "polite"})[0], 404)
                self.assertEqual(text(server, "polite")[0], 404)
            with Server("--lora", f"polite={folder}") as server:
                self.assertEqual(text(server, "polite")[1]["choices"], adapted["choices"])
                self.assertNotEqual(ask(server, "/v1/load_lora_adapter", load)[0], 200)
            # By vLLM's names.
            with Server("--enable-lora", "--model-control", "explicit") as server:
                self.assertEqual(ask(server, "/v1/load_lora_adapter", load), (200, {}))
            with Server("--enable-lora", "--lora-modules", f"other={folder}", f"polite={folder}") as server:
                self.assertEqual([text(server, name)[1]["choices"][0]["text"] for name in ("other", "polite")],
                                 [adapted["choices"][0]["text"]] * 2)

    def test_an_adapter_answers_over_grpc_as_over_http_and_to_the_end_when_it_is_unloaded(self):
        def ask(server, path, body):
            request = urllib.request.Request(server.url(path), json.dumps(body).encode(), {"content-type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, json.load(error)

        client = pathlib.Path(OAR).with_name("oar_grpc_client")
        self.assertTrue(client.exists(), client)
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary) / "adapter"
            write_adapter(folder, 0.3)
            load = {"lora_name": "polite", "lora_path": str(folder)}
            with Server("--lora", f"polite={folder}", "--model-control", "explicit") as server:
                texts = {}
                for model in ("demo", "polite"):
                    chat = {"model": model, "messages": [{"role": "user", "content": "Good morrow!"}], "max_tokens": 40, "temperature": 0}
                    texts[model] = ask(server, "/v1/chat/completions", chat)[1]["choices"][0]["message"]["content"]
                    done = subprocess.run([client, "--address", f"127.0.0.1:{server.grpc}", "--model", model, "--max-tokens", "40",
                                           "--temperature", "0", "Good morrow!"], capture_output=True, text=True, timeout=TIMEOUT)
                    self.assertEqual((done.returncode, done.stdout.rpartition("\n[")[0]), (0, texts[model]), done.stderr)
                self.assertNotEqual(texts["demo"], texts["polite"])

                long = {"max_tokens": 1900, "ignore_eos": True, "model": "polite"}
                whole = json.load(server.complete(**long))["choices"][0]["text"]
                with server.complete(**long, stream=True) as stream:
                    lines = (line.decode() for line in stream)
                    first = next(line for line in lines if line.startswith("data: "))
                    self.assertEqual(ask(server, "/v1/unload_lora_adapter", {"lora_name": "polite"}), (200, {}))
                    # The request that runs has the only slot, and no new one gets the adapter.
                    self.assertEqual(ask(server, "/v1/load_lora_adapter", {**load, "lora_name": "next"})[0], 429)
                    self.assertEqual(ask(server, "/v1/completions", {"model": "polite", "prompt": "R"})[0], 404)
                    rest = [line for line in lines if line.startswith("data: ")]
                self.assertEqual(rest.pop().strip(), "data: [DONE]")
                chunks = [json.loads(line[len("data: "):]) for line in [first, *rest]]
                self.assertEqual("".join(c["text"] for chunk in chunks for c in chunk["choices"]), whole)
                deadline = time.monotonic() + TIMEOUT
                while (loaded := ask(server, "/v1/load_lora_adapter", {**load, "lora_name": "next"}))[0] == 429:
                    self.assertLess(time.monotonic(), deadline)
                self.assertEqual(loaded, (200, {}))

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
