"""Oar from Python: clients of its server, and the engine itself.

    from oar import Client, Model                    # standard library alone
    from oar.aio import AsyncClient
    from oar.grpc import GrpcClient                  # pip install oar[grpc]
    from oar.inference import Config, create_predictor   # NumPy and liboar.so
    from oar.encoder import Encoder                      # texts to vectors; NumPy and liboar.so

Nothing is imported before it is used: the HTTP clients need no NumPy, and no library of Oar.
"""
from typing import Any

from oar._wire import Answer, Choice, Chunk, OarError, ToolCall, Usage
from oar.client import Client

__all__ = ["Answer", "Choice", "Chunk", "Client", "Model", "OarError", "ToolCall", "Usage"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Model":
        from oar.model import Model
        return Model
    raise AttributeError(f"module 'oar' has no attribute '{name}'")
