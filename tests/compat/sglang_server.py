"""For pytest -p: stands where SGLang's tests of its OpenAI server look for their own launcher, and starts `oar serve`. Of the
package sglang there is nothing but the names of its models, and the kits of tests in the checkout.

What black_box.py says of models and options holds here.
"""
import ast
import contextlib
import os
import pathlib
import sys
import types
import unittest

import black_box
from black_box import Served, ServedTokenizer, Words, free_port, model_path, note

# As in vllm_server.py.
ALONE = {"--enable-metrics", "--disable-cuda-graph", "--is-embedding", "--trust-remote-code", "--constrained-json-disable-any-whitespace",
         "--disable-radix-cache", "--enable-http2", "--enable-return-hidden-states", "--enable-custom-logit-processor"}
IGNORED = {"--enable-metrics", "--disable-cuda-graph", "--is-embedding", "--trust-remote-code", "--mem-fraction-static",
           "--grammar-backend", "--attention-backend", "--decode-log-interval", "--tp-size", "--max-total-token", "--dtype",
           "--constrained-json-disable-any-whitespace", "--max-total-tokens", "--tokenizer-worker-num"}
RENAMED = {"--max-running-requests": "--max-sequences", "--context-length": "--max-context", "--context-len": "--max-context",
           "--tool-call-parser": "--tool-parser", "--reasoning-parser": "--reasoning-parser", "--served-model-name": "--name",
           "--disable-radix-cache": "--no-prefix-cache"}
PARSERS = {"llama3": "hermes", "qwen25": "hermes", "qwen3": "think", "deepseek-r1": "think", "gpt-oss": "harmony"}
started = {}  # by process id


def translate(model, words):
    """The options of `oar serve`. SGLang's server takes requests for whatever model."""
    out, name = [model_path(model), "--any-model-name"], model
    words = list(Words(words, ALONE))
    encodes = ("--is-embedding", []) in words
    for word, values in words:
        if word in IGNORED or values == ["-1"] or (encodes and word == "--disable-radix-cache"):
            continue
        if word not in RENAMED:
            note(f"without effect: {word}")
        elif word == "--served-model-name":
            name = values[0]
        else:
            out += [RENAMED[word], *(PARSERS.get(v, v) for v in values)]
    thinks = "--reasoning-parser" in out or encodes
    return [*out, "--name", name, *([] if thinks else ["--reasoning-parser", "none"])]


def popen_launch_server(model, base_url, timeout, api_key=None, other_args=(), **_):
    server = Served(translate(model, other_args), int(base_url.rsplit(":", 1)[1]), api_key)
    started[server.proc.pid] = server
    return server.proc


def kill_process_tree(pid, **_):
    if pid in started:
        started.pop(pid).end()


def constants(path):
    """{name: value} of the plain values that a file gives names to."""
    out = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(ValueError):
                out[node.targets[0].id] = ast.literal_eval(node.value)
    return out


def stand_in():
    root = pathlib.Path(os.environ["COMPAT_CHECKOUT"]) / "python/sglang/test"
    utils = {**constants(root / "test_utils.py"), "popen_launch_server": popen_launch_server, "CustomTestCase": unittest.TestCase,
             "DEFAULT_URL_FOR_TEST": f"http://127.0.0.1:{free_port()}", "is_in_ci": lambda: False, "is_in_amd_ci": lambda: False}
    tokenizer = {"get_tokenizer": lambda *_, **__: ServedTokenizer()}
    black_box.stand_in("sglang", {"sglang.test.test_utils": utils, "sglang.test.runners": constants(root / "runners.py"),
                                  "sglang.srt.utils": {"kill_process_tree": kill_process_tree},
                                  "sglang.srt.utils.hf_transformers_utils": tokenizer})
    import sglang.test
    kits = types.ModuleType("sglang.test.kits")
    kits.__path__ = [str(root / "kits")]
    sys.modules["sglang.test.kits"] = sglang.test.kits = kits


if "COMPAT_CHECKOUT" in os.environ:
    stand_in()
