"""Results of the library as NumPy arrays over its memory, without copies."""
from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from oar._library import HANDLE, Tensor, check

# oar_dtype to NumPy; bf16, which NumPy has not, is seen as its bits.
TYPES = {1: np.float32, 2: np.float64, 3: np.float16, 4: np.uint16, 5: np.bool_, 6: np.int8, 7: np.uint8, 8: np.int16,
          9: np.uint16, 10: np.int32, 11: np.uint32, 12: np.int64, 13: np.uint64}


class Outputs:
    """Memory of one run's results; each array over it keeps it alive."""

    def __init__(self, lib: Any, handle: HANDLE):
        self._lib, self._handle = lib, handle
        weakref.finalize(self, lib.oar_outputs_close, handle)

    def array(self, index: int) -> np.ndarray:
        t = Tensor()
        check(self._lib.oar_outputs_get(self._handle, index, t))
        shape, dtype = tuple(t.shape[:t.rank]), np.dtype(TYPES[t.dtype])
        if t.bytes == 0:
            return np.empty(shape, dtype)
        memory = (ctypes.c_char * t.bytes).from_address(t.data)
        memory._owner = self  # a ctypes array takes attributes; the NumPy array holds it as its base
        return np.frombuffer(memory, dtype).reshape(shape)
