"""For pytest -p: stands where vLLM's tests of its OpenAI server look for their own class that starts `vllm serve`, and starts
`oar serve`. Of the package vllm there is nothing; a test that imports it is none of a server.

What black_box.py says of models and options holds here.
"""
import inspect
import json
import os
import pathlib
import sys
import types

import pytest

import black_box
from black_box import Served, ServedTokenizer, Words, free_port, model_path, note, snapshot_download

# Options of `vllm serve` that change nothing a client of `oar serve` could see; those that no value follows.
ALONE = {"--enforce-eager", "--no-enable-prefix-caching", "--enable-chunked-prefill", "--disable-log-stats", "--trust-remote-code",
         "--enable-prefix-caching", "--enable-prompt-tokens-details", "--disable-frontend-multiprocessing", "--enable-lora",
         "--async-scheduling", "--return-tokens-as-token-ids", "--disable-log-requests", "--enable-log-requests", "--enable-auto-tool-choice",
         "--enable-server-load-tracking", "--enable-per-request-metrics"}
IGNORED = ALONE | {"--dtype", "--gpu-memory-utilization", "--seed", "--load-format", "--task", "--runner", "--max-cpu-loras",
                   "--attention-backend", "--generation-config", "--structured-outputs-config.backend", "--convert",
                   "--api-server-count", "--guided-decoding-backend", "--tensor-parallel-size"}
RENAMED = {"--max-model-len": "--max-context",
           "--max-num-seqs": "--max-sequences", "--max-num-batched-tokens": "--max-batch-tokens",
           "--api-key": "--api-key", "--served-model-name": "--name", "--tool-call-parser": "--tool-parser",
           "--reasoning-parser": "--reasoning-parser", "--root-path": "--root-path", "--max-logprobs": "--max-logprobs",
           "--max-lora-rank": "--max-lora-rank", "--max-loras": "--max-loras"}
# Parsers by vLLM's names, where they have others here.
PARSERS = {"qwen3": "think", "deepseek_r1": "think", "qwen3_xml": "qwen3_coder", "glm45": "think",
           "openai_gptoss": "harmony", "openai": "harmony"}


class Platform:
    """A machine with nothing special."""

    def __getattr__(self, name):
        return lambda *_, **__: 0


class ModelConfig:
    """Of a model's configuration how many tokens it has."""

    def __init__(self, model, **_):
        self.config = json.loads(pathlib.Path(model_path(model), "config.json").read_text(encoding="utf-8"))

    def get_vocab_size(self):
        return self.config["vocab_size"]


TORCH = {"iinfo": lambda _: types.SimpleNamespace(min=-2 ** 63, max=2 ** 63 - 1), "long": None}


def translate(model, words):
    """The options of `oar serve`. Models that are to show their reasoning are those that think."""
    words = list(words)
    thinks = any(str(w).startswith("--reasoning-parser") for w in words)
    out, name = [model_path("thinker" if thinks else model), *([] if thinks else ["--reasoning-parser", "none"])], model
    for word, values in Words(words, ALONE):
        if word == "--return-tokens-as-token-ids":
            out += ["--request-default", "return_tokens_as_token_ids=true"]
        elif word == "--enable-per-request-metrics":
            out += ["--request-default", "request_metrics=true"]
        elif word in IGNORED:
            continue
        elif word == "--lora-modules":
            for module in values:
                out += ["--lora", module]
            out += ["--show-adapter-paths"]
        elif word == "--enable-force-include-usage":
            out += ["--request-default", 'stream_options={"include_usage": true, "continuous_usage_stats": true}']
        elif word not in RENAMED:
            note(f"without effect: {word}")
        elif word in ("--tool-call-parser", "--reasoning-parser"):
            out += [RENAMED[word], PARSERS.get(values[0], values[0])]
        elif word == "--served-model-name":
            name = values[0]
        else:
            out += [RENAMED[word], values[0]]
    return [*out, "--name", name]


class RemoteOpenAIServer:
    """What the tests call so: `oar serve` in the place of `vllm serve`, while a with block lasts."""
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model, vllm_serve_args, *, env_dict=None, seed=0, auto_port=True, max_wait_seconds=None,
                 override_hf_configs=None):
        own = {name: value for name, value in (env_dict or {}).items() if os.environ.get(name) != value}
        if "VLLM_API_KEY" in own:
            vllm_serve_args = [*vllm_serve_args, "--api-key", own.pop("VLLM_API_KEY")]
        if own:
            note(f"without effect: {' '.join(own)}")
        if "--uds" in vllm_serve_args:
            pytest.fail("a socket file: --uds")
        self.host, self.port, self.uds = "127.0.0.1", free_port(), None
        self.show_hidden_metrics = False
        self.served = Served(translate(model, vllm_serve_args), self.port)
        self.served.api_key = self.DUMMY_API_KEY
        self.proc = self.served.proc

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.served.end()

    @property
    def url_root(self):
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return "/".join([self.url_root, *parts])

    def _client(self, kind, base, kwargs):
        return kind(base_url=base, api_key=self.DUMMY_API_KEY, max_retries=0, **{"timeout": 60, **kwargs})

    def get_client(self, **kwargs):
        import openai
        return self._client(openai.OpenAI, self.url_for("v1"), kwargs)

    def get_async_client(self, **kwargs):
        import openai
        return self._client(openai.AsyncOpenAI, self.url_for("v1"), kwargs)

    def get_client_anthropic(self, **kwargs):
        import anthropic
        return self._client(anthropic.Anthropic, self.url_root, kwargs)

    def get_async_client_anthropic(self, **kwargs):
        import anthropic
        return self._client(anthropic.AsyncAnthropic, self.url_root, kwargs)


@pytest.fixture(scope="session")
def qwen3_lora_files():
    return snapshot_download("charent/self_cognition_Alice")


def starts_server(item):
    """Whether a test, or a fixture that it takes, names the class that starts a server."""
    functions = [item.function]
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        functions += [d.func for d in definitions]
    for f in functions:
        try:
            if "RemoteOpenAIServer" in inspect.getsource(inspect.unwrap(f)):
                return True
        except (OSError, TypeError):
            pass
    return False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """What starts no server is none of a server: it is neither run nor counted."""
    others = [item for item in items if not starts_server(item)]
    items[:] = [item for item in items if item not in others]
    if others:
        config.hook.pytest_deselected(items=others)


def stand_in():
    """tests.utils is ours; the other modules of that name are the checkout's. Before pytest reads the first conftest.py."""
    repo_utils = {"snapshot_download": snapshot_download, "hf_api": lambda: types.SimpleNamespace(snapshot_download=snapshot_download)}
    black_box.stand_in("vllm", {"vllm.platforms": {"current_platform": Platform()}, "vllm.config": {"ModelConfig": ModelConfig},
                                "vllm.transformers_utils.repo_utils": repo_utils,
                                "vllm.tokenizers": {"get_tokenizer": lambda *_, **__: ServedTokenizer()}},
                       {"torch": TORCH, "gpt_oss": {}})
    root = os.environ["COMPAT_CHECKOUT"]
    sys.path.insert(0, root)
    tests = types.ModuleType("tests")
    tests.__path__ = [os.path.join(root, "tests")]
    tests.utils = black_box.absent_module("tests.utils", RemoteOpenAIServer=RemoteOpenAIServer, VLLM_PATH=pathlib.Path(root),
                                          ROCM_EXTRA_ARGS=[], ROCM_ENV_OVERRIDES={})
    sys.modules["tests"], sys.modules["tests.utils"] = tests, tests.utils


if "COMPAT_CHECKOUT" in os.environ:
    stand_in()
