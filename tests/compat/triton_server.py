"""For pytest -p: stands where the tests of Triton's OpenAI frontend look for their own server, as a process or inside the test, and
starts `oar serve`. A model of their repository is the stand-in under its name; of the package tritonserver there is nothing.

What black_box.py says of models and options holds here.
"""
import os
import pathlib
import shutil
import sys
import tempfile
import types

import black_box
from black_box import Served, Words, free_port, known_models, model_path, note

ALONE = {"--enable-kserve-frontends"}
IGNORED = ALONE | {"--tokenizer", "--backend"}


def write_repository(repository, folder):
    """A folder with a model for each of that repository."""
    names = [p.name for p in sorted(pathlib.Path(repository).iterdir()) if (p / "config.pbtxt").exists()]
    for name in names:
        shutil.copytree(model_path(name), pathlib.Path(folder, name))
    return names


class Frontend:
    """`oar serve` with the options of Triton's frontend, as what the tests call client and server."""

    def __init__(self, words):
        self.folder = tempfile.TemporaryDirectory()
        out, names, load = [self.folder.name, "--error-style", "triton", "--server-name", "Triton Inference Server", "--require-model"], [], []
        for word, values in Words(words, ALONE):
            value = " ".join(values)
            if word == "--model-repository":
                names = write_repository(value, self.folder.name)
            elif word == "--model-control-mode":
                out += ["--model-control", value]
            elif word == "--load-model":
                load.append(value)
            elif word == "--tool-call-parser":
                out += ["--tool-parser", "hermes"]  # as the stand-in calls tools
            elif word not in IGNORED:
                note(f"without effect: {word}")
        explicit = "explicit" in out
        if len(names) == 1:
            out[0] = os.path.join(self.folder.name, names[0])
            out += ["--name", names[0]]
        if not set(names) & set(known_models()):
            # The length of an answer that is asked for without one.
            out += ["--request-default", "max_tokens=16", "--reasoning-parser", "none"]
        self.served = Served(out, free_port())
        import requests
        for name in names if explicit and load != ["*"] else ():
            if name not in load:
                requests.post(f"{self.served.url}/v2/repository/models/{name}/unload").raise_for_status()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.served.end()
        self.folder.cleanup()


class OpenAIServer(Frontend):
    """As a process, while a with block lasts."""

    def __init__(self, cli_args, *, env_dict=None):
        super().__init__(cli_args)
        self.url_root = self.served.url

    def url_for(self, *parts):
        return "/".join([self.url_root, *parts])

    def get_client(self):
        import openai
        return openai.OpenAI(base_url=self.url_for("v1"), api_key="EMPTY")

    def get_async_client(self):
        import openai
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key="EMPTY")


class InTest:
    """What tests inside the process call a server: options, until there is a client."""

    def __init__(self, words):
        self.words = words

    def stop(self):
        pass


def setup_server(model_repository, model_control_mode=None, load_models=None):
    words = ["--model-repository", str(model_repository)]
    if load_models:
        words += ["--model-control-mode", "explicit"]
    for name in load_models or []:
        words += ["--load-model", name]
    return InTest(words)


def setup_fastapi_app(tokenizer, server, backend, tool_call_parser=None, **others):
    for name in others:
        note(f"without effect: {name}")
    return InTest([*server.words, *(["--tool-call-parser", tool_call_parser] if tool_call_parser else [])])


def client_of(app):
    """Starts the server with the with block, as FastAPI's client does."""
    import contextlib

    import httpx

    @contextlib.contextmanager
    def started():
        with Frontend(app.words) as server, httpx.Client(base_url=server.served.url, timeout=60) as client:
            yield client
    return started()


def stand_in():
    root = os.environ["COMPAT_CHECKOUT"]
    black_box.stand_in("tritonserver", {"tritonserver": {"ModelControlMode": types.SimpleNamespace(NONE="none", EXPLICIT="explicit")}})
    sys.meta_path.insert(0, black_box.AbsentPackages(["fastapi", "vllm", "frontend", "openai_frontend", "engine"],
                                                     {"fastapi.testclient": {"TestClient": client_of}}))
    sys.path.insert(0, root)
    import tests
    tests.utils = black_box.absent_module("tests.utils", OpenAIServer=OpenAIServer, setup_server=setup_server,
                                          setup_fastapi_app=setup_fastapi_app)
    sys.modules["tests.utils"] = tests.utils


if "COMPAT_CHECKOUT" in os.environ:
    stand_in()
