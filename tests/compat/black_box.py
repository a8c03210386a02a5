"""For suites that a Python package has for a server of its own: modules of that package that need not be there, models by other
names, and `oar serve` in the place of its server. As a plugin (pytest -p) it tells which of the package a running test used.

COMPAT_MODELS says which model stands for which: lines NAME=PATH. What no line names is the model that *=PATH names, or else the
embedded demo model, under that name. Options without a counterpart are noted, a line of COMPAT_NOTES each.
"""
import importlib.machinery
import os
import socket
import subprocess
import sys
import tempfile
import time
import types
import urllib.request


def note(text):
    print(f"stand-in: {text}", flush=True)
    if os.environ.get("COMPAT_NOTES"):
        with open(os.environ["COMPAT_NOTES"], "a", encoding="utf-8") as f:
            f.write(text + "\n")


def known_models():
    return dict(line.split("=", 1) for line in os.environ.get("COMPAT_MODELS", "").splitlines() if "=" in line)


def model_path(name):
    known = known_models()
    return known.get(name) or (name if os.path.isdir(name) else known.get("*", "demo"))


def snapshot_download(repo_id, **_):
    """The folder that stands for a downloaded one."""
    if repo_id not in known_models():
        raise PrivateApi(f"no folder for {repo_id}")
    return known_models()[repo_id]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Words:
    """The options of another server, one by one: [(--option, [value, ...])]. `alone`: those that no value follows."""

    def __init__(self, words, alone=()):
        self.words, self.alone = [str(w) for w in words], alone

    def __iter__(self):
        i = 0
        while i < len(self.words):
            word, _, value = self.words[i].partition("=")
            word = word.replace("_", "-") if word.startswith("--") else word
            i += 1
            values = [value] if value else []
            while not value and word not in self.alone and i < len(self.words) and not self.words[i].startswith("--"):
                values.append(self.words[i])
                i += 1
            yield word, values


class Served:
    """`oar serve` with these options, ready."""
    last = None  # where the tokenizer of a test's model is asked

    def __init__(self, options, port, api_key=None, grpc=""):
        Served.last = self
        self.url, self.api_key = f"http://127.0.0.1:{port}", api_key
        command = [os.environ.get("OAR_BIN", "oar"), "serve", *options, "--http", f"127.0.0.1:{port}", "--grpc", grpc,
                   "--drain-timeout", "2", *(["--api-key", api_key] if api_key else [])]
        self.log = tempfile.TemporaryFile("w+")
        self.proc = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        until = time.time() + 60
        while True:
            try:
                urllib.request.urlopen(self.url + "/health").close()
                return
            except OSError:
                pass
            if self.proc.poll() is not None or time.time() > until:
                self.log.seek(0)
                raise RuntimeError(f"{' '.join(command)} did not start:\n{self.log.read()}")
            time.sleep(0.05)

    def end(self):
        self.proc.terminate()
        try:
            self.proc.wait(10)
        except subprocess.TimeoutExpired:
            self.proc.kill()
        self.log.close()


class ServedTokenizer:
    """The tokenizer of the model that was started last, asked over the wire."""
    name_or_path = "demo"

    def _ask(self, path, body):
        import requests
        server = Served.last
        answer = requests.post(server.url + path, json=body, headers={"Authorization": f"Bearer {server.api_key}"})
        answer.raise_for_status()
        return answer.json()

    def encode(self, text, add_special_tokens=True, **_):
        return self._ask("/tokenize", {"prompt": text, "add_special_tokens": add_special_tokens})["tokens"]

    def decode(self, ids, skip_special_tokens=False, **_):
        ids = [ids] if isinstance(ids, int) else list(ids)
        return self._ask("/detokenize", {"tokens": ids, "skip_special_tokens": skip_special_tokens})["prompt"]

    def __call__(self, text, **options):
        return types.SimpleNamespace(input_ids=self.encode(text, **options))

    def __getattr__(self, name):
        raise PrivateApi(f"a tokenizer's {name}")


class PrivateApi(ImportError):
    """A test uses what only the other server has."""


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


class AbsentPackages:
    """Finds packages that tests name and that need not be there, each as a module of nothing but Absent and what is `given`:
    {module: {name: value}}."""
    NAMES = ("torch", "transformers", "huggingface_hub", "datasets", "PIL", "soundfile", "librosa", "openai_harmony",
             "partial_json_parser", "mteb", "lm_eval", "pybase64", "numpy", "fastapi", "starlette", "safetensors", "peft", "cv2",
             "mistral_common", "pandas", "scipy", "uvicorn", "cloudpickle", "msgspec")
    GIVEN = {"huggingface_hub": {"snapshot_download": snapshot_download}}

    def __init__(self, names=NAMES, given=None):
        self.names, self.given = names, {**self.GIVEN, **(given or {})}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in self.names:
            return None
        if Absent.running and name not in self.given and not any(g.startswith(name + ".") for g in self.given):
            raise PrivateApi(name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return absent_module(spec.name)

    def exec_module(self, module):
        vars(module).update(self.given.get(module.__name__, {}))


def absent_module(name, **given):
    """A module of what is given; the rest is Absent."""
    module = types.ModuleType(name)
    module.__getattr__ = lambda of: Absent(f"{name}.{of}") if not of.startswith("__") else _no(of)
    vars(module).update(given)
    return module


def _no(name):
    raise AttributeError(name)


def stand_in(package, given, others=None):
    """From now on `package` is of nothing but `given`, as are packages that are not installed, of nothing but `others`."""
    sys.meta_path.insert(0, AbsentPackages([package], given))  # the checkout may have it
    sys.meta_path.append(AbsentPackages([*AbsentPackages.NAMES, *(others or {})], others))


def pytest_runtest_setup():
    Absent.running = True


def pytest_runtest_teardown():
    Absent.running = False
