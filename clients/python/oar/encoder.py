"""An encoder inside this process: texts to vectors, pairs of texts to scores, as NumPy arrays."""
from __future__ import annotations

import ctypes
from typing import Any, Optional, Sequence, Union

import numpy as np

from oar._library import EmbedOptions, EncoderInfo, HANDLE, PredictorOptions, check, library, log_callback
from oar._outputs import Outputs

_POOLING = {None: 0, "mean": 1, "first": 2, "cls": 2, "last": 3, "max": 4, "mean_sqrt": 5, "weighted_mean": 6}


class Encoder:
    """    with Encoder("all-MiniLM-L6-v2") as encoder:
            a, b = encoder.embed(["How do you do?", "How are you?"])
            print(a @ b)

    A folder as Hugging Face and sentence-transformers write it. `weights` (int8, int4, fp8, ...) says how those of its
    layers are held; None: as in the file. May be used by many threads at once.
    """

    def __init__(self, path: str, *, threads: int = 0, device: Optional[str] = None, weights: Optional[str] = None):
        self._lib, self._handle = library(), HANDLE()
        options = PredictorOptions()
        check(self._lib.oar_predictor_options_init(options, ctypes.sizeof(options)))
        options.threads, options.device = threads, device.encode() if device else None
        options.weights = weights.encode() if weights else None
        options.log = ctypes.cast(log_callback, ctypes.c_void_p)
        check(self._lib.oar_encoder_open(path.encode(), options, self._handle))
        info = EncoderInfo()
        check(self._lib.oar_encoder_get_info(self._handle, info, ctypes.sizeof(info)))
        self.max_tokens: int = info.max_tokens
        self.dimensions: int = info.dimensions
        self.embeds, self.scores, self.normalizes = bool(info.embeds), bool(info.scores), bool(info.normalizes)

    def close(self) -> None:
        if self._handle:
            handle, self._handle = self._handle, HANDLE()
            check(self._lib.oar_encoder_close(handle))

    def __enter__(self) -> "Encoder":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.oar_encoder_close(self._handle)

    def embed(self, texts: Union[str, Sequence[str]], *, pooling: Optional[str] = None, normalize: Optional[bool] = None,
              max_tokens: int = 0, dimensions: int = 0) -> np.ndarray:
        """f32[texts, dimensions]; of one text, f32[dimensions]. `pooling` (mean, first, last, max, mean_sqrt, weighted_mean)
        and `normalize` are the model's unless given; longer texts are cut to `max_tokens` (-1: what the model takes)."""
        if pooling not in _POOLING:
            raise ValueError(f"pooling: '{pooling}' is none of {', '.join(p for p in _POOLING if p)}")
        o = EmbedOptions()
        check(self._lib.oar_embed_options_init(o, ctypes.sizeof(o)))
        o.pooling, o.max_tokens, o.dimensions = _POOLING[pooling], max_tokens, dimensions
        o.normalize = -1 if normalize is None else int(normalize)
        array, out = _strings([texts] if isinstance(texts, str) else texts), HANDLE()
        check(self._lib.oar_embed(self._handle, array, len(array), o, out))
        vectors = Outputs(self._lib, out).array(0)
        return vectors[0] if isinstance(texts, str) else vectors

    def score(self, query: str, documents: Sequence[str]) -> np.ndarray:
        """f32[documents]: how well each answers the query, by a model that was trained to say so."""
        array, out = _strings(documents), HANDLE()
        check(self._lib.oar_score(self._handle, query.encode(), array, len(array), out))
        return Outputs(self._lib, out).array(0)


def _strings(texts: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(texts))(*(t.encode() for t in texts))
