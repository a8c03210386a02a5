#!/usr/bin/env python3
"""The package `oar` as its users have it: HTTP clients against a served default model, gRPC where its packages are there,
the engine embedded through liboar.so. Environment: OAR_BIN, OAR_LIBRARY, OAR_SOURCE_DIR. The README's examples run too."""
import asyncio
import importlib.util
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]
sys.path.insert(0, os.path.join(HERE, "../../../tests/support"))
SOURCE = os.environ.get("OAR_SOURCE_DIR", os.path.join(HERE, "../../.."))
DEMO = os.path.join(SOURCE, "configs/demo")
OAR = os.environ["OAR_BIN"]

import oar  # noqa: E402
from oar.aio import AsyncClient  # noqa: E402
from tiny_adapter import write_adapter  # noqa: E402
from tiny_onnx import write_lookup, write_onnx  # noqa: E402


def missing(*modules):
    gone = [m for m in modules if importlib.util.find_spec(m) is None]
    return f"skipped: no Python package {', '.join(gone)}" if gone else ""


TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}}}]


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen([OAR, "serve", DEMO, "--name", "demo", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
                                       "--threads", "2", "--memory", "512MiB", "--api-key", "secret", "--tool-parser", "hermes",
                                       "--speculative", "ngram", "--prompt-lookup-min", "1"],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in cls.server.stdout:
            if line.startswith("http "):
                cls.url = line.split()[1]
            if line.startswith("grpc "):
                cls.grpc = line.split()[1]
            if line.startswith("ready"):
                break
        cls.client = oar.Client(cls.url, api_key="secret")

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.wait(timeout=120)
        cls.server.stdout.close()

    def check_call(self, answer):
        self.assertEqual((answer.finish_reason, answer.text, len(answer.tool_calls)), ("tool_calls", "", 1))
        call = answer.tool_calls[0]
        self.assertTrue(call.id)
        self.assertEqual(call.name, "weather")
        self.assertIn(json.loads(call.arguments)["city"], ("Oslo", "Rome"))


# Tokens that speculation drafted, right ones and wrong ones.
def drafted(usage):
    return usage.accepted_prediction_tokens + usage.rejected_prediction_tokens


# Text that repeats a token, as drafts expect. Step times decide how many are tried: the first of a server that
# has answered nobody is tried on any machine, and is right.
REPEATED = {"prompt": "ROMEO:", "max_tokens": 40, "temperature": 0, "ignore_eos": True, "logit_bias": {"300": 100}}


class HttpDrafts(Served):
    def test_drafts_are_counted(self):
        answer = self.client.complete(**REPEATED)
        details = answer.raw["usage"]["completion_tokens_details"]
        self.assertGreater(details["accepted_prediction_tokens"], 0)
        self.assertEqual(drafted(answer.usage), sum(details.values()))
        self.assertEqual(answer.usage.completion_tokens, 40)


@unittest.skipIf(missing("grpc", "grpc_tools", "numpy"), missing("grpc", "grpc_tools", "numpy"))
class GrpcDrafts(Served):
    def test_drafts_are_counted(self):
        from oar.grpc import GrpcClient
        with GrpcClient(self.grpc, api_key="secret") as c:
            self.assertGreater(c.generate(**REPEATED).usage.accepted_prediction_tokens, 0)


class Http(Served):
    def test_answers(self):
        c = self.client
        self.assertTrue(c.ready())
        self.assertEqual(c.models(), ["demo"])
        answer = c.chat("Good morrow!", max_tokens=12, temperature=0)
        self.assertTrue(answer.text)
        self.assertEqual(answer.usage.completion_tokens, len(answer.raw["choices"]) and answer.raw["usage"]["completion_tokens"])
        self.assertEqual(answer.text, "".join(x.text for x in c.stream_chat("Good morrow!", max_tokens=12, temperature=0)))
        ids = c.tokenize("Good morrow")
        self.assertEqual(c.complete(ids, max_tokens=8, temperature=0).text, c.complete("Good morrow", max_tokens=8, temperature=0).text)
        chunks = list(c.stream_complete("ROMEO:", max_tokens=8, ignore_eos=True))
        self.assertEqual(chunks[-1].usage.completion_tokens, 8)
        self.assertEqual([x.finish_reason for x in chunks if x.finish_reason], ["length"])

    def test_constraints(self):
        c = self.client
        options = {"max_tokens": 200, "temperature": 1, "seed": 3}
        self.assertRegex(c.complete("ROMEO:", regex="[a-z]{3}-[0-9]{2}", **options).text, r"\A[a-z]{3}-[0-9]{2}\Z")
        schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}},
                  "required": ["age"], "additionalProperties": False}
        answer = c.chat("How old?", response_format={"type": "json_schema", "json_schema": {"name": "age", "schema": schema}},
                        **options)
        self.assertTrue(0 <= json.loads(answer.text)["age"] <= 120, answer.text)
        with self.assertRaises(oar.OarError) as e:
            c.chat("x", regex="(")
        self.assertEqual((e.exception.status, e.exception.param), (400, "regex"))

    def test_refusals(self):
        with self.assertRaises(oar.OarError) as e:
            self.client.chat("x", temperature=-1)
        self.assertEqual((e.exception.status, e.exception.param), (400, "temperature"))
        with self.assertRaises(oar.OarError) as e:
            list(self.client.stream_chat("x", model="absent"))
        self.assertEqual(e.exception.status, 404)
        with self.assertRaises(oar.OarError) as e:
            oar.Client(self.url, api_key="wrong").models()
        self.assertEqual(e.exception.status, 401)
        with self.assertRaises(ValueError):
            oar.Client("127.0.0.1")
        self.assertFalse(oar.Client("http://127.0.0.1:1").ready())

    def test_leaving_a_stream_cancels_it(self):
        stream = self.client.stream_complete("ROMEO:", max_tokens=2000, ignore_eos=True)
        next(stream)
        stream.close()
        import urllib.request
        request = urllib.request.Request(self.url + "/metrics", headers={"Authorization": "Bearer secret"})
        for _ in range(100):
            if re.search(r"^vllm:num_requests_running\S* 0\b", urllib.request.urlopen(request).read().decode(), re.M):
                return
            time.sleep(0.05)
        self.fail("the request still runs")

    def test_async(self):
        async def work():
            c = AsyncClient(self.url, api_key="secret")
            one = await c.chat("Good morrow!", max_tokens=12, temperature=0)
            many = await asyncio.gather(*(c.chat("Good morrow!", max_tokens=12, temperature=0) for _ in range(20)))
            self.assertEqual({m.text for m in many}, {one.text})
            text = "".join([x.text async for x in c.stream_chat("Good morrow!", max_tokens=12, temperature=0)])
            self.assertEqual(text, one.text)
            last = [x async for x in c.stream_complete("ROMEO:", max_tokens=5, ignore_eos=True)][-1]
            self.assertEqual(last.usage.completion_tokens, 5)
            with self.assertRaises(oar.OarError) as e:
                await c.complete("x", top_p=7)
            self.assertEqual(e.exception.status, 400)
            with self.assertRaises(oar.OarError):
                async for _ in c.stream_complete("x", top_p=7):
                    pass
            with self.assertRaises(OSError):
                await AsyncClient("http://127.0.0.1:1").models()
            return one.text
        self.assertEqual(asyncio.run(work()), self.client.chat("Good morrow!", max_tokens=12, temperature=0).text)

    def test_tools(self):
        options = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 120, "temperature": 0}
        answer = self.client.chat("Is it cold?", **options)
        self.check_call(answer)
        streamed = oar.Choice()
        for chunk in self.client.stream_chat("Is it cold?", **options):
            streamed.add(chunk)
        self.assertEqual((streamed.tool_calls[0].name, streamed.tool_calls[0].arguments),
                         (answer.tool_calls[0].name, answer.tool_calls[0].arguments))
        self.check_call(asyncio.run(AsyncClient(self.url, api_key="secret").chat("Is it cold?", **options)))
        with self.assertRaises(oar.OarError) as e:
            self.client.chat("x", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nope"}})
        self.assertEqual((e.exception.status, e.exception.param), (400, "tool_choice"))

    def test_readme(self):
        with open(os.path.join(HERE, "../README.md"), encoding="utf-8") as f:
            examples = re.findall(r"```python\n(.*?)```", f.read(), re.S)
        self.assertGreaterEqual(len(examples), 2)
        for example in examples:
            if "liboar" in example or "grpc" in example and missing("grpc", "grpc_tools", "numpy"):
                continue
            code = example.replace("http://127.0.0.1:8000", self.url).replace("127.0.0.1:8001", self.grpc)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240,
                                  env=dict(os.environ, OAR_API_KEY="secret", PYTHONPATH=os.path.dirname(HERE)))
            self.assertEqual(done.returncode, 0, code + done.stderr)
            self.assertTrue(done.stdout.strip())


@unittest.skipIf(missing("grpc", "grpc_tools", "numpy"), missing("grpc", "grpc_tools", "numpy"))
class Grpc(Served):
    def test_text(self):
        from oar.grpc import GrpcClient
        with GrpcClient(self.grpc, api_key="secret") as c:
            self.assertEqual(c.models(), ["demo"])
            text = self.client.complete("ROMEO:", max_tokens=10, temperature=0).text
            answer = c.generate("ROMEO:", max_tokens=10, temperature=0)
            self.assertEqual((answer.text, answer.usage.completion_tokens), (text, 10))
            chat = "".join(x.text for x in c.stream(messages="Good morrow!", max_tokens=10, temperature=0))
            self.assertEqual(chat, self.client.chat("Good morrow!", max_tokens=10, temperature=0).text)
            with self.assertRaises(oar.OarError) as e:
                c.generate("x", temperature=-1)
            self.assertEqual(e.exception.status, "INVALID_ARGUMENT")
            self.assertRegex(c.generate("x", regex="[0-9]{3}", max_tokens=8).text, "^[0-9]{3}$")
            talk = [{"role": "user", "content": "Is it cold?"},
                    {"role": "assistant", "content": None, "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
                    {"role": "tool", "tool_call_id": "a", "content": "yes"}]
            options = {"tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 120, "temperature": 0}
            for choice in ("required", {"type": "function", "function": {"name": "weather"}},
                           {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": TOOLS}}):
                self.check_call(c.generate(messages="Is it cold?", tool_choice=choice, **options))
            with self.assertRaisesRegex(oar.OarError, "unknown role tool"):  # it has reached the model's template
                c.generate(messages=talk, **options)
            with self.assertRaisesRegex(TypeError, "tools"):
                c.generate("x", tools=TOOLS)
            for option in ("temprature", "mirostat"):
                with self.assertRaisesRegex(TypeError, option):
                    c.generate("x", **{option: 1})
            with self.assertRaises(oar.OarError) as e:
                self.client.complete("x", max_tokens=1, mirostat=2)
            self.assertEqual((e.exception.status, e.exception.param), (400, "mirostat"))
        with GrpcClient(self.grpc, api_key="wrong") as c, self.assertRaises(oar.OarError) as e:
            c.models()
        self.assertEqual(e.exception.status, "UNAUTHENTICATED")

    def test_tensors(self):
        import numpy as np
        from oar.grpc import GrpcClient
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "add.onnx")
            write_onnx(path)
            server = subprocess.Popen([OAR, "serve", path, "--http", "", "--grpc", "127.0.0.1:0"], stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, text=True)
            try:
                lines = iter(server.stdout.readline, "")
                address = next(line.split()[1] for line in lines if line.startswith("grpc "))
                next(line for line in lines if line.startswith("ready"))
                x = np.arange(6, dtype=np.float32).reshape(3, 2)
                with GrpcClient(address) as c:
                    np.testing.assert_array_equal(c.infer("add", {"x": x, "y": x})["z"], 2 * x)
                    with self.assertRaises(oar.OarError):
                        c.infer("add", {"x": x})
            finally:
                server.terminate()
                server.wait(timeout=120)
                server.stdout.close()


class Embedded(unittest.TestCase):
    def test_speculation_changes_no_text(self):
        options = [{"max_tokens": 60, "ignore_eos": True, "logprobs": True, "temperature": t, "seed": 7, "n": 2} for t in (0.0, 1.0)]

        def answers(**switches):
            with oar.Model(DEMO, threads=2, **switches) as m:
                return [m.generate(**REPEATED), *(m.generate("ROMEO:", **o) for o in options)]
        plain = answers()
        quick = answers(speculative="ngram", num_speculative_tokens=4, prompt_lookup_min=1, prompt_lookup_max=3)
        for a, b in zip(plain, quick):
            self.assertEqual([(c.text, c.tokens, c.logprobs, c.finish_reason) for c in a.choices],
                             [(c.text, c.tokens, c.logprobs, c.finish_reason) for c in b.choices])
            self.assertEqual((drafted(a.usage), a.usage.completion_tokens), (0, b.usage.completion_tokens))
        self.assertGreater(sum(b.usage.accepted_prediction_tokens for b in quick), 0)
        for switch, wrong in (("speculative", "medusa"), ("num_speculative_tokens", 65), ("prompt_lookup_min", -1)):
            with self.assertRaises(oar.OarError) as e:
                oar.Model(DEMO, **{switch: wrong})
            self.assertEqual(e.exception.param, switch)

    def test_a_draft_model_changes_no_text(self):
        asked = [{"max_tokens": 40, "logprobs": True, "temperature": t, "seed": 7} for t in (0.0, 1.0)]
        asked.append({"max_tokens": 40, "temperature": 1.0, "seed": 3, "regex": "([A-Z][a-z]{2,6}, ){3}[a-z]+"})

        def answers(**switches):
            with oar.Model(DEMO, threads=2, **switches) as m:
                return [m.generate(**REPEATED), *(m.generate("ROMEO:", **o) for o in asked)]
        plain, quick = answers(), answers(speculative="draft", draft_model=DEMO, num_speculative_tokens=3)
        for a, b in zip(plain, quick):
            self.assertEqual([(c.text, c.tokens, c.logprobs, c.finish_reason) for c in a.choices],
                             [(c.text, c.tokens, c.logprobs, c.finish_reason) for c in b.choices])
        self.assertGreater(sum(b.usage.accepted_prediction_tokens for b in quick), 0)
        self.assertEqual(sum(b.usage.rejected_prediction_tokens for b in quick), 0)  # the draft is the model itself
        for switches, said in (({"speculative": "draft"}, "draft_model is missing"),
                               ({"speculative": "draft", "draft_model": "/nonexistent/model"}, "/nonexistent/model"),
                               ({"speculative": "ngram", "draft_model": DEMO}, 'only "draft" has one')):
            with self.assertRaises(oar.OarError) as e:
                oar.Model(DEMO, **switches)
            self.assertIn(said, str(e.exception))

    def test_adapters(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = os.path.join(folder, "adapter")
            write_adapter(pathlib.Path(folder), 0.3)
            asked = {"max_tokens": 16, "temperature": 0, "ignore_eos": True}
            with oar.Model(DEMO, threads=2, memory_bytes=256 << 20, max_loras=1, max_lora_rank=8) as model:
                plain = model.generate("ROMEO:", **asked).text
                self.assertEqual(model.loras(), [])
                model.load_lora("polite", folder)
                self.assertEqual([(a["name"], a["path"]) for a in model.loras()], [("polite", folder)])
                self.assertNotEqual(model.generate("ROMEO:", lora="polite", **asked).text, plain)
                self.assertEqual(model.generate("ROMEO:", lora=None, **asked).text, plain)
                for call, status, words in (
                        (lambda: model.load_lora("polite", folder), "ALREADY_EXISTS", "unload it first"),
                        (lambda: model.load_lora("other", folder), "RESOURCE_EXHAUSTED", "polite"),
                        (lambda: model.load_lora("other", "/nowhere"), "NOT_FOUND", "/nowhere"),
                        (lambda: model.unload_lora("rude"), "NOT_FOUND", "loaded: polite"),
                        (lambda: model.generate("ROMEO:", lora="rude", **asked), "NOT_FOUND", "loaded: polite")):
                    with self.assertRaisesRegex(oar.OarError, words) as refused:
                        call()
                    self.assertEqual(refused.exception.status, status)
                model.unload_lora("polite")
                self.assertEqual(model.loras(), [])
            with self.assertRaisesRegex(oar.OarError, "max_lora_rank"):
                oar.Model(DEMO, max_lora_rank=8)

    def test_snapshots_are_of_models_with_a_recurrent_state(self):
        for name, value in (("state_snapshots", 1 << 20), ("snapshot_tokens", 64)):
            with self.assertRaisesRegex(oar.OarError, f"{name}: this model has no recurrent state") as refused:
                oar.Model(DEMO, threads=2, **{name: value})
            self.assertEqual(refused.exception.param, name)

    def test_forms_of_attention_over_a_latent(self):
        for form, words in (("expanded", "keeps no latent"), ("naive", "neither absorbed nor expanded")):
            with self.assertRaisesRegex(oar.OarError, f"mla '{form}'.*{words}") as refused:
                oar.Model(DEMO, threads=2, mla=form)
            self.assertEqual(refused.exception.param, "mla")
        with oar.Model(DEMO, threads=2, mla="absorbed") as model:
            self.assertEqual(model.generate("ROMEO:", max_tokens=3).usage.completion_tokens, 3)

    def test_language_model(self):
        with oar.Model(DEMO, threads=2) as m:
            self.assertIn("architecture", m.describe())
            ids = m.tokenize("Good morrow, friend")
            self.assertIn("Good morrow, friend", m.detokenize(ids))
            a = m.generate("ROMEO:", max_tokens=12, temperature=0)
            self.assertEqual((a.finish_reason, a.usage.completion_tokens), ("length", 12))
            self.assertEqual(a.text, m.generate(m.tokenize("ROMEO:"), max_tokens=12, temperature=0).text)
            self.assertEqual(a.text, "".join(c.text for c in m.stream("ROMEO:", max_tokens=12, temperature=0)))
            self.assertEqual(m.generate("ROMEO:", seed=3, max_tokens=9).text, m.generate("ROMEO:", seed=3, max_tokens=9).text)
            first = a.text.split()[0]
            self.assertNotIn(first, m.generate("ROMEO:", max_tokens=12, temperature=0, stop=first).text)
            self.assertIn("Hi", m.chat_prompt("Hi"))
            self.assertTrue(m.chat([{"role": "user", "content": "Hi"}], max_tokens=4).text)
            stream = m.stream("ROMEO:", max_tokens=10000, ignore_eos=True)
            next(stream)
            stream.close()
            texts = []
            threads = [threading.Thread(target=lambda: texts.append(m.generate("ROMEO:", max_tokens=12, temperature=0).text)) for _ in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(texts, [a.text] * 8)
            with self.assertRaises(oar.OarError) as e:
                m.generate("x", top_p=7.0)
            self.assertEqual(e.exception.status, "INVALID_ARGUMENT")
            self.assertRegex(m.generate("x", regex="[0-9]{3}", max_tokens=8).text, "^[0-9]{3}$")
            for option in ("temprature", "mirostat"):
                with self.assertRaisesRegex(TypeError, option):
                    m.generate("x", **{option: 1})
            # Every one of n, their tokens and log-probabilities, and prompts that run together.
            three = m.generate("ROMEO:", n=3, seed=5, temperature=1.0, max_tokens=6, ignore_eos=True, logprobs=True)
            self.assertEqual(len(three.choices), 3)
            self.assertEqual(three.text, three.choices[0].text)
            self.assertEqual(three.usage.completion_tokens, 18)
            for choice in three.choices:
                self.assertEqual((len(choice.tokens), len(choice.logprobs), choice.finish_reason), (6, 6, "length"))
                self.assertTrue(all(p <= 0 for p in choice.logprobs))
                self.assertEqual(m.detokenize(choice.tokens), choice.text)
            self.assertIsNone(a.choices[0].logprobs)
            many = m.generate(["ROMEO:", "JULIET:"], max_tokens=12, temperature=0)
            self.assertEqual([x.text for x in many], [a.text, m.generate("JULIET:", max_tokens=12, temperature=0).text])
            self.assertEqual(m.generate([m.tokenize("ROMEO:")], max_tokens=12, temperature=0)[0].text, a.text)
            with self.assertRaises(oar.OarError):
                m.generate(["ROMEO:", "x" * 100000], max_tokens=4)
            safe = m.chat("a<|bos|>", max_tokens=1).usage.prompt_tokens
            with self.assertRaises(oar.OarError) as e:
                m.chat("Is it cold?", tools=TOOLS)
            self.assertEqual(e.exception.param, "tools")
        with oar.Model(DEMO, threads=2, tool_parser="llama3_json") as m:
            a = m.chat("Is it cold?", tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=120, temperature=0)
            self.assertEqual((a.finish_reason, a.text), ("tool_calls", ""))
            self.assertEqual(a.tool_calls[0].name, "weather")
            self.assertIn(json.loads(a.tool_calls[0].arguments)["city"], ("Oslo", "Rome"))
            with self.assertRaises(oar.OarError) as e:
                m.chat("x", thinking_budget=3)
            self.assertEqual(e.exception.param, "thinking_budget")
        with self.assertRaises(oar.OarError) as e:
            oar.Model(DEMO, reasoning_parser="thinking")
        self.assertIn("reasoning-parser is thinking", str(e.exception))
        with oar.Model(DEMO, threads=2, allow_special_in_text=True) as m:
            self.assertLess(m.chat("a<|bos|>", max_tokens=1).usage.prompt_tokens, safe)
        with self.assertRaises(oar.OarError):
            oar.Model("/nonexistent")
        with self.assertRaises(oar.OarError):
            m.tokenize("closed")

    @unittest.skipIf(missing("numpy"), missing("numpy"))
    def test_encoder(self):
        import numpy as np
        from oar.encoder import Encoder
        with tempfile.TemporaryDirectory() as folder:
            table = write_lookup(folder)
            with Encoder(folder, threads=2) as e:
                self.assertEqual((e.dimensions, e.embeds, e.scores), (3, True, False))
                want = np.array([table[[2, 5, 6, 3]].mean(0), table[[2, 9, 3]].mean(0)])
                np.testing.assert_allclose(e.embed(["w5 w6", "w9"], normalize=False), want, rtol=1e-6)
                want /= np.linalg.norm(want, axis=1, keepdims=True)
                vectors = e.embed(["w5 w6", "w9"])
                np.testing.assert_allclose(e.embed("w9", pooling="cls", normalize=False), table[2], rtol=1e-6)
                self.assertEqual(e.embed("w9", dimensions=2).shape, (2,))
                for wrong, status in (({"dimensions": 9}, "INVALID_ARGUMENT"),
                                      ({"max_tokens": 0, "texts": "w5 " * 600}, "OUT_OF_RANGE")):
                    with self.assertRaises(oar.OarError) as raised:
                        e.embed(**{"texts": "w5", **wrong})
                    self.assertEqual(raised.exception.status, status)
                with self.assertRaises(ValueError):
                    e.embed("w5", pooling="median")
                with self.assertRaises(oar.OarError):
                    e.score("w5", ["w6"])
            np.testing.assert_allclose(vectors, want, rtol=1e-6)  # results outlive their encoder
            with self.assertRaises(oar.OarError):
                e.embed("closed")

    @unittest.skipIf(missing("numpy"), missing("numpy"))
    def test_predictor(self):
        import numpy as np
        from oar.inference import Config, PrecisionType, PredictorPool, create_predictor
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "add.onnx")
            write_onnx(path)
            config = Config(path)
            config.set_cpu_math_library_num_threads(1)
            p = create_predictor(config)
            pool = PredictorPool(config, 2)
            for enable, precision in ((Config.enable_mkldnn_bfloat16, "bf16"), (Config.enable_mkldnn_int8, "int8")):
                narrow = Config(path)
                self.assertEqual(narrow.precision(), "f32")
                enable(narrow)
                self.assertEqual(narrow.precision(), precision)
                create_predictor(narrow).close()
            of_device = Config(path)
            of_device.set_precision("tf32")
            with self.assertRaisesRegex(oar.OarError, "precision tf32 is of a device"):
                create_predictor(of_device)
            of_device.enable_custom_device("cuda", 0, PrecisionType.Half)
            self.assertEqual((of_device.precision(), of_device.device()), ("f16", "cuda:0"))
            with self.assertRaises(ValueError):
                of_device.enable_custom_device("cuda", 0, PrecisionType.Int8)
        np.testing.assert_array_equal(pool.retrieve(0).run([np.ones((1, 2), np.float32)] * 2)[0],
                                      pool.retrieve(1).run([np.ones((1, 2), np.float32)] * 2)[0])
        with self.assertRaises(ValueError):
            PredictorPool(config, 0)
        self.assertEqual((p.get_input_names(), p.get_output_names()), (["x", "y"], ["z"]))
        x = np.arange(8, dtype=np.float32).reshape(4, 2)
        z, = p.run([x, x])
        np.testing.assert_array_equal(z, 2 * x)
        p.get_input_handle("x").share_external_data(x)
        p.get_input_handle("y").copy_from_cpu(np.ones((4, 2), np.float32))
        self.assertTrue(p.run())
        np.testing.assert_array_equal(p.get_output_handle("z").copy_to_cpu(), x + 1)
        x += 1  # shared, so the next run sees it
        p.run()
        np.testing.assert_array_equal(p.get_output_handle("z").copy_to_cpu(), x + 1)
        with self.assertRaises(ValueError):
            p.get_input_handle("x").share_external_data(np.zeros((2, 4), np.float32).T)
        for wrong in ([x], [x, x[:2]], [x, x.astype(np.float64)], [x, x.astype(np.complex64)]):
            with self.assertRaises(oar.OarError):
                p.run(wrong)
        with self.assertRaises(oar.OarError):
            p.clone().run()
        self.assertGreaterEqual(p.memory([[400, 2], [400, 2]]), 400 * 2 * 4)  # its result at least
        for wrong in ([[4, 2]], [[4, 2], [5, 2]], [[4, 2], [1] * 9]):
            with self.assertRaises(oar.OarError):
                p.memory(wrong)
        self.assertGreaterEqual(p.try_shrink_memory(), 0)
        self.assertEqual(p.try_shrink_memory(), 0)
        np.testing.assert_array_equal(p.run([x, x])[0], 2 * x)
        p.cancel()  # no run is under way, and those to come are not meant
        p.set_timeout(1e-6)
        large = np.ones((1 << 23, 2), np.float32)
        with self.assertRaisesRegex(oar.OarError, "timeout of 1 ms") as late:
            p.run([large, large])
        self.assertEqual(late.exception.status, "DEADLINE_EXCEEDED")
        with self.assertRaises(oar.OarError):
            p.set_timeout(-1)
        p.set_timeout(0)
        # Results outlive their predictor, and threads share one.
        results = []
        threads = [threading.Thread(target=lambda i=i: results.append((i, p.run([x * i, x])[0]))) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        clone = p.clone()
        p.close()
        np.testing.assert_array_equal(clone.run([x, x])[0], 2 * x)
        for i, r in results:
            np.testing.assert_array_equal(r, x * (i + 1))


    @unittest.skipIf(missing("numpy"), missing("numpy"))
    def test_device(self):
        """A plug-in's device, in a process for each: a predictor and a model, and what a device does that dies."""
        plugin = pathlib.Path(OAR).parent / "liboar_loopback.so"
        if not plugin.exists():
            self.skipTest("no loopback plug-in beside the program")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "add.onnx")
            write_onnx(path)
            code = textwrap.dedent(f"""
                import sys, numpy as np, oar
                from oar.inference import Config, create_predictor
                device = sys.argv[1] or None
                try:
                    config = Config({path!r})
                    if device: config.enable_custom_device(device, 0)
                    z, = create_predictor(config).run([np.ones((4, 2), np.float32)] * 2)
                    print(z.sum())
                    with oar.Model({DEMO!r}, threads=2, device=device, kv="bf16") as m:
                        print(m.generate("ROMEO:", max_tokens=12, temperature=0).text)
                except oar.OarError as e:
                    print(e.status)
                """)

            def run(device="", **loopback):
                options = {"OAR_LOOPBACK": ",".join(f"{k}={v}" for k, v in loopback.items())}
                done = subprocess.run([sys.executable, "-c", code, device], capture_output=True, text=True, timeout=300,
                                      env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **options})
                self.assertEqual(done.returncode, 0, done.stderr)
                return done.stdout

            want = run()
            self.assertEqual(want.split()[0], "16.0")
            self.assertEqual(run(str(plugin)), want)
            # On the device, or its death would go unnoticed: of the predictor, and of the model behind it.
            self.assertEqual(run(str(plugin), fail_launch=1).split(), ["UNAVAILABLE"])
            late = run(str(plugin), fail_launch=40).split()
            self.assertEqual((late[0], late[-1]), ("16.0", "UNAVAILABLE"))

    @unittest.skipIf(missing("numpy"), missing("numpy"))
    def test_paddle_names(self):
        from oar import inference
        from paddle_names import CONFIG, PREDICTOR, TENSOR
        self.assertEqual((len(CONFIG), len(PREDICTOR), len(TENSOR)), (113, 10, 9))
        for names, there in ((CONFIG, inference.Config), (PREDICTOR, inference.Predictor), (TENSOR, inference.Tensor)):
            self.assertEqual([n for n in names if not hasattr(there, n)], [])
        # Each call without effect says so, and why.
        config = inference.Config("model.onnx")
        with self.assertLogs("oar.inference", "DEBUG") as logs:
            for name in CONFIG:
                if name.startswith(("enable_", "disable_", "switch_")) and name != "disable_glog_info" and not any(
                        p.default is p.empty for p in inspect.signature(getattr(config, name)).parameters.values()):
                    getattr(config, name)()
            config.enable_use_gpu(100, 0)
            config.collect_shape_range_info("shapes.txt")
            config.delete_pass("conv_bn_fuse_pass")
        said = "\n".join(logs.output)
        for words in ("WARNING:oar.inference:Config.enable_use_gpu() has no effect: predictors run on the CPU",
                      "enable_tensorrt_engine() has no effect: there is no TensorRT", "'conv_bn_fuse_pass' is no pass of Oar",
                      "DEBUG:oar.inference:Config.enable_memory_optim() has no effect"):
            self.assertIn(words, said)
        self.assertFalse(config.use_gpu() or config.use_xpu() or config.tensorrt_engine_enabled())
        self.assertEqual(config.precision(), "int8")  # the last that was asked for
        config.disable_glog_info()
        with self.assertLogs("oar.inference", "DEBUG") as logs:
            config.enable_use_gpu(100, 0)
        self.assertEqual([r.levelname for r in logs.records], ["DEBUG"])

    @unittest.skipIf(missing("numpy"), missing("numpy"))
    def test_paddle_programs(self):
        import numpy as np
        from oar import inference
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "add.onnx")
            write_onnx(path)
            with open(path, "rb") as f:
                model = f.read()
            # A typical program, as Paddle's documentation has it.
            config = inference.Config()
            config.set_model_buffer(model, len(model), b"", 0)
            config.enable_memory_optim()
            config.switch_ir_optim(True)
            config.set_cpu_math_library_num_threads(2)
            config.pass_builder().delete_pass("winograd")
            self.assertEqual((config.model_from_memory(), config.disabled_passes()), (True, "winograd"))
            self.assertIn("in memory", config.summary())
            p = inference.create_predictor(config)
            x = np.arange(8, dtype=np.float32).reshape(4, 2)
            self.assertEqual(p.get_input_tensor_shape(), {"x": [-1, 2], "y": [-1, 2]})
            self.assertEqual(p.get_output_types(), {"z": inference.DataType.FLOAT32})
            handle = p.get_input_handle("x")
            self.assertEqual((handle.shape(), handle.type(), handle.lod()), ([-1, 2], inference.DataType.FLOAT32, []))
            for name in p.get_input_names():
                t = p.get_input_handle(name)
                t.reshape([4, 2])
                t.copy_from_cpu(x)
            p.run()
            np.testing.assert_array_equal(p.get_output_handle("z").copy_to_cpu(), 2 * x)
            # By name, and into the caller's arrays.
            np.testing.assert_array_equal(p.run({"y": x, "x": x + 1})[0], 2 * x + 1)
            z = np.zeros((4, 2), np.float32)
            p.run_into({"x": x, "y": x}, [z])
            np.testing.assert_array_equal(z, 2 * x)
            p.run_into([x, x + 1], {"z": z})
            np.testing.assert_array_equal(z, 2 * x + 1)
            for call, param in ((lambda: p.run({"x": x}), "inputs"), (lambda: p.run({"x": x, "q": x}), "name"),
                                (lambda: p.get_output_handle("q"), "name"), (lambda: p.run_into([x, x], []), "outputs"),
                                (lambda: p.run_into([x, x], [np.zeros((3, 2), np.float32)]), "results"),
                                (lambda: p.run_into([x, x], [np.zeros((8, 1), np.float32)]), "outputs"),
                                (lambda: handle.set_lod([[0, 2]]), "lod")):
                with self.assertRaises(oar.OarError) as e:
                    call()
                self.assertEqual(e.exception.param, param)
            with self.assertRaises(ValueError):
                p.run_into([x, x], [x])  # overlaps an input
            with self.assertLogs("oar.inference", "WARNING"):
                p.register_output_hook(lambda *_: None)
            p.clear_intermediate_tensor()
            # Files of any names; the whole graph as it was read.
            plain = inference.Config(path)
            plain.switch_ir_optim(False)
            np.testing.assert_array_equal(inference.create_predictor(plain).run([x, x])[0], 2 * x)
            named = inference.Config(path, os.path.join(folder, "weights"))
            with self.assertRaises(oar.OarError) as e:
                inference.create_predictor(named)
            self.assertEqual(e.exception.param, "params")
            with self.assertRaises(ValueError):
                inference.create_predictor(inference.Config())
            with self.assertRaises(ValueError):
                config.set_model_buffer(b"abc", 4)

    @unittest.skipIf(missing("mypy", "numpy"), missing("mypy", "numpy"))
    def test_types(self):
        done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "oar"], cwd=os.path.dirname(HERE), capture_output=True,
                              text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
