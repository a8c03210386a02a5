"""For pytest -p: what the tests of llama.cpp's server need of a machine without the network. They start every preset once at the
start, so that the models are downloaded; here nothing is downloaded, and a test whose model is not there fails alone."""
import sys


def pytest_sessionstart(session):
    utils = sys.modules.get("utils")
    if utils is not None and hasattr(utils, "ServerPreset"):
        utils.ServerPreset.load_all = staticmethod(lambda: None)
