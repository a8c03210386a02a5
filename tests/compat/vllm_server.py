"""For pytest -p: stands where vLLM's tests of its OpenAI server look for their own class that starts `vllm serve`, and starts
`oar serve`. Of the package vllm there is nothing; a test that imports it is none of a server.

COMPAT_MODELS says which model stands for which: lines NAME=PATH. What no line names is the embedded demo model under that
name. Options without a counterpart are noted, a line of COMPAT_NOTES each.
"""
import importlib.machinery
import inspect
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import types
import urllib.request

import pytest

# Options of `vllm serve`, with the number of their values, that change nothing a client of `oar serve` could see.
IGNORED = {"--dtype": 1, "--enforce-eager": 0, "--gpu-memory-utilization": 1, "--no-enable-prefix-caching": 0,
           "--enable-chunked-prefill": 0, "--disable-log-stats": 0, "--seed": 1, "--trust-remote-code": 0, "--load-format": 1,
           "--enable-prefix-caching": 0, "--enable-prompt-tokens-details": 0, "--max-logprobs": 1, "--task": 1, "--runner": 1,
           "--disable-frontend-multiprocessing": 0, "--enable-lora": 0, "--max-cpu-loras": 1, "--async-scheduling": 0,
           "--attention-backend": 1, "--disable-log-requests": 0, "--enable-log-requests": 0, "--generation-config": 1,
           "--enable-auto-tool-choice": 0, "--structured-outputs-config.backend": 1, "--convert": 1, "--api-server-count": 1,
           "--guided-decoding-backend": 1, "--enable-server-load-tracking": 0, "--tensor-parallel-size": 1}
RENAMED = {"--max-model-len": "--max-context",
           "--max-num-seqs": "--max-sequences", "--max-num-batched-tokens": "--max-batch-tokens",
           "--api-key": "--api-key", "--served-model-name": "--name", "--tool-call-parser": "--tool-parser",
           "--reasoning-parser": "--reasoning-parser", "--root-path": "--root-path", "--max-lora-rank": "--max-lora-rank", "--max-loras": "--max-loras"}


# Parsers by vLLM's names, where they have others here.
PARSERS = {"qwen3": "think", "deepseek_r1": "think", "qwen3_xml": "qwen3_coder", "glm45": "think",
           "openai_gptoss": "harmony", "openai": "harmony"}


def note(text):
    print(f"vllm_server: {text}", flush=True)
    if os.environ.get("COMPAT_NOTES"):
        with open(os.environ["COMPAT_NOTES"], "a", encoding="utf-8") as f:
            f.write(text + "\n")


def known_models():
    return dict(line.split("=", 1) for line in os.environ.get("COMPAT_MODELS", "").splitlines() if "=" in line)


def snapshot_download(repo_id, **_):
    """The folder that stands for a downloaded one."""
    if repo_id not in known_models():
        raise PrivateApi(f"no folder for {repo_id}")
    return known_models()[repo_id]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def translate(model, words):
    """The options of `oar serve`."""
    out, name, i = [known_models().get(model, model if os.path.isdir(model) else "demo")], model, 0
    while i < len(words):
        word, _, value = words[i].partition("=")
        word = word.replace("_", "-") if word.startswith("--") else word
        i += 1
        values = [value] if value else []
        while not values and i < len(words) and not words[i].startswith("--") and IGNORED.get(word, 1):
            while i < len(words) and not words[i].startswith("--"):
                values.append(words[i])
                i += 1
        if word in IGNORED:
            continue
        if word == "--lora-modules":
            for module in values:
                out += ["--lora", module]
        elif word == "--enable-force-include-usage":
            out += ["--request-default", 'stream_options={"include_usage": true, "continuous_usage_stats": true}']
        elif word not in RENAMED:
            note(f"without effect: {word}")
        elif word in ("--tool-call-parser", "--reasoning-parser"):
            out += [RENAMED[word], PARSERS.get(values[0], values[0])]
        elif word == "--served-model-name":
            name = values[0]
        elif word == "--max-model-len" and out[0] == "demo":
            note("the demo model's own context: --max-model-len")
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
        command = [os.environ.get("OAR_BIN", "oar"), "serve", *translate(model, [str(w) for w in vllm_serve_args]),
                   "--http", f"{self.host}:{self.port}", "--grpc", "", "--drain-timeout", "2"]
        self.log = tempfile.TemporaryFile("w+")
        self.proc = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        until = time.time() + 60
        while True:
            try:
                urllib.request.urlopen(self.url_for("health")).close()
                return
            except OSError:
                pass
            if self.proc.poll() is not None or time.time() > until:
                self.log.seek(0)
                raise RuntimeError(f"{' '.join(command)} did not start:\n{self.log.read()}")
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.terminate()
        try:
            self.proc.wait(10)
        except subprocess.TimeoutExpired:
            self.proc.kill()
        self.log.close()

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


class PrivateApi(ImportError):
    """A test uses what only vLLM itself has."""


class Absent:
    """What a test file takes from a package that is not there. Files name it when they are read; a test that uses it fails."""
    running = False

    def __init__(self, name):
        self.__dict__["name"] = name

    def _use(self, *_, **__):
        if Absent.running:
            raise PrivateApi(self.__dict__["name"])
        return self

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._use()

    def __mro_entries__(self, bases):
        return ()

    def __bool__(self):
        self._use()
        return False

    def __iter__(self):
        self._use()
        return iter(())

    __call__ = __getitem__ = __or__ = __ror__ = __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = _use
    __hash__ = object.__hash__


# Modules that tests download adapters with.
DOWNLOADS = ("huggingface_hub", "vllm.transformers_utils.repo_utils")


class AbsentPackages:
    """Finds packages that tests name and that need not be there, each as a module of nothing but Absent."""
    NAMES = ("torch", "transformers", "huggingface_hub", "datasets", "PIL", "soundfile", "librosa", "openai_harmony",
             "partial_json_parser", "mteb", "lm_eval", "pybase64", "numpy", "fastapi", "starlette", "safetensors", "peft", "cv2",
             "mistral_common", "pandas", "scipy", "uvicorn", "cloudpickle", "msgspec")

    def __init__(self, names=NAMES):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in self.names:
            return None
        if Absent.running and name not in DOWNLOADS and not any(d.startswith(name + ".") for d in DOWNLOADS):
            raise PrivateApi(name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: Absent(f"{spec.name}.{name}") if not name.startswith("__") else _no(name)
        return module

    def exec_module(self, module):
        if module.__name__ in DOWNLOADS:
            module.snapshot_download = snapshot_download
            module.hf_api = lambda: module


def _no(name):
    raise AttributeError(name)


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


def pytest_runtest_setup():
    Absent.running = True


def pytest_runtest_teardown():
    Absent.running = False


def stand_in():
    """tests.utils is ours; the other modules of that name are the checkout's. Before pytest reads the first conftest.py."""
    sys.meta_path.insert(0, AbsentPackages(["vllm"]))  # the checkout has it
    sys.meta_path.append(AbsentPackages())
    root = os.environ["COMPAT_CHECKOUT"]
    sys.path.insert(0, root)
    tests = types.ModuleType("tests")
    tests.__path__ = [os.path.join(root, "tests")]
    utils = types.ModuleType("tests.utils")
    utils.RemoteOpenAIServer = RemoteOpenAIServer
    utils.VLLM_PATH = pathlib.Path(root)
    utils.ROCM_EXTRA_ARGS, utils.ROCM_ENV_OVERRIDES = [], {}
    utils.__getattr__ = lambda name: Absent(f"tests.utils.{name}") if not name.startswith("__") else _no(name)
    tests.utils = utils
    sys.modules["tests"], sys.modules["tests.utils"] = tests, utils


if "COMPAT_CHECKOUT" in os.environ:
    stand_in()
