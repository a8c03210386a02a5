"""For pytest -p: takes the place of what Triton's tests of its protocols share, whose classes count runs in unittest's own way, and
starts `oar serve` for each class of them, with as many models as the file is meant for."""
import os
import pathlib
import shutil
import sys
import tempfile
import types
import unittest

import pytest

from black_box import Served

sys.modules["test_util"] = types.SimpleNamespace(TestResultCollector=unittest.TestCase)
# How many models these files expect to be there; the others say which they want by name.
MODELS = {"python_http_aio_test.py": 7, "python_grpc_aio_test.py": 8}


@pytest.fixture(scope="class", autouse=True)
def server(request):
    models = pathlib.Path(os.environ["COMPAT_REPOSITORY"])
    name = pathlib.Path(request.node.fspath).name
    with tempfile.TemporaryDirectory() as folder:
        first = sorted(models.iterdir(), key=lambda p: (not p.name.startswith("simple"), p.name))[:MODELS.get(name)]
        for path in first:
            shutil.copytree(path, pathlib.Path(folder, path.name))
        # As their scripts start it: those of the asynchronous clients leave loading off. Clients look for these ports.
        control = "none" if "_aio_" in name else "explicit"
        served = Served([folder, "--model-control", control, "--server-name", "triton", "--shared-memory", "/oar-compat-"], 8000,
                        grpc="127.0.0.1:8001")
        yield served
        served.end()
