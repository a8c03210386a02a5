"""ONNX and Paddle models inside this process, on NumPy arrays without copies, under the names that users of Paddle
Inference know:

    config = Config("inference.pdmodel", "inference.pdiparams")     # or Config("model.onnx"), or a folder
    predictor = create_predictor(config)
    predictor.get_input_handle("x").copy_from_cpu(x)                 # or .share_external_data(x)
    predictor.run()
    y = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()

or in one call: y, = predictor.run([x]).
"""
from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from oar._library import HANDLE, MAX_RANK, PredictorOptions, Tensor, TensorInfo, check, library
from oar._outputs import TYPES, Outputs
from oar._wire import OarError

_NUMBERS = {np.dtype(t): n for n, t in TYPES.items() if n != 4}


class Config:
    def __init__(self, prog_file: str, params_file: Optional[str] = None):
        # The library finds a Paddle model's parameters beside its program, by the same stem.
        if params_file is not None and os.path.splitext(params_file)[0] != os.path.splitext(prog_file)[0]:
            raise ValueError(f"params_file: '{params_file}' must lie beside '{prog_file}' and differ in its ending alone")
        self._path, self._params, self._threads = prog_file, params_file, 0
        self._precision = "f32"

    def prog_file(self) -> str:
        return self._path

    def params_file(self) -> Optional[str]:
        return self._params

    def set_cpu_math_library_num_threads(self, threads: int) -> None:
        """0: all processors; 1: the thread that calls run() alone."""
        self._threads = threads

    def cpu_math_library_num_threads(self) -> int:
        return self._threads

    def enable_mkldnn_bfloat16(self) -> None:
        """Convolutions and layers in bf16, where the processor multiplies it; elsewhere they stay f32."""
        self._precision = "bf16"

    def enable_mkldnn_int8(self) -> None:
        """Convolutions and layers in 8-bit integers: a scale per filter, and per image or row of the operands."""
        self._precision = "int8"

    def precision(self) -> str:
        """One of "f32", "bf16" and "int8"."""
        return self._precision

    def disable_gpu(self) -> None:
        """Predictors run on the CPU."""

    def use_gpu(self) -> bool:
        return False


class InputTensor:
    def __init__(self, name: str, dtype: int):
        self._name, self._dtype, self._array = name, dtype, None

    def name(self) -> str:
        return self._name

    def reshape(self, shape: Sequence[int]) -> None:
        """Kept for programs that call it: the array given brings its own shape."""

    def copy_from_cpu(self, array: np.ndarray) -> None:
        self._array = np.array(array, order="C", copy=True)

    def share_external_data(self, array: np.ndarray) -> None:
        """No copy: the array must be C-contiguous and stay unchanged during run()."""
        if not array.flags["C_CONTIGUOUS"]:
            raise ValueError(f"input '{self._name}': the array is not C-contiguous; use copy_from_cpu()")
        self._array = array

    def shape(self) -> List[int]:
        return [] if self._array is None else list(self._array.shape)


class OutputTensor:
    def __init__(self, name: str):
        self._name, self._array = name, None

    def name(self) -> str:
        return self._name

    def copy_to_cpu(self) -> np.ndarray:
        """The result of the last run(). It lies in the library's memory, which lives as long as the array does."""
        if self._array is None:
            raise OarError(f"output '{self._name}': run() has not been called", "FAILED_PRECONDITION")
        return self._array

    def shape(self) -> List[int]:
        return [] if self._array is None else list(self._array.shape)


class Predictor:
    """run() with a list of arrays may be called by many threads at once; the handles belong to one, so clone() for each."""

    def __init__(self, handle: HANDLE):
        self._lib, self._handle = library(), handle
        self._close = weakref.finalize(self, self._lib.oar_predictor_close, handle)
        counts = ctypes.c_size_t(), ctypes.c_size_t()
        check(self._lib.oar_predictor_counts(handle, *counts))
        self._inputs = {}
        for i in range(counts[0].value):
            info = self._info(self._lib.oar_predictor_input, i)
            self._inputs[info.name.decode()] = InputTensor(info.name.decode(), info.dtype)
        self._outputs = {}
        for i in range(counts[1].value):
            name = self._info(self._lib.oar_predictor_output, i).name.decode()
            self._outputs[name] = OutputTensor(name)

    def _info(self, function: Any, index: int) -> TensorInfo:
        info = TensorInfo()
        check(function(self._handle, index, info, ctypes.sizeof(info)))
        return info

    def get_input_names(self) -> List[str]:
        return list(self._inputs)

    def get_output_names(self) -> List[str]:
        return list(self._outputs)

    def get_input_handle(self, name: str) -> InputTensor:
        return self._inputs[name]

    def get_output_handle(self, name: str) -> OutputTensor:
        return self._outputs[name]

    def clone(self) -> "Predictor":
        """On the same weights and threads."""
        handle = HANDLE()
        check(self._lib.oar_predictor_clone(self._handle, handle))
        return Predictor(handle)

    def close(self) -> None:
        self._close()

    def memory(self, shapes: Sequence[Sequence[int]]) -> int:
        """The bytes that a run with inputs of these shapes takes beside the weights, told before it. An OarError of
        status FAILED_PRECONDITION where sizes depend on values."""
        tensors, needed = (Tensor * len(shapes))(), ctypes.c_uint64()
        for tensor, shape, name in zip(tensors, shapes, self._inputs):
            self._set_shape(tensor, shape, name)
        check(self._lib.oar_predictor_memory(self._handle, tensors, len(shapes), needed))
        return needed.value

    def try_shrink_memory(self) -> int:
        """Gives back what this predictor keeps between runs; how many bytes that was."""
        freed = ctypes.c_uint64()
        check(self._lib.oar_predictor_shrink(self._handle, freed))
        return freed.value

    def run(self, inputs: Optional[Sequence[np.ndarray]] = None) -> Any:
        """With arrays in the order of get_input_names(): their outputs. Without: on the handles; True."""
        if inputs is not None:
            return self._run([np.ascontiguousarray(a) for a in inputs])
        arrays = []
        for name, tensor in self._inputs.items():
            if tensor._array is None:
                raise OarError(f"input '{name}' has no data; call copy_from_cpu() or share_external_data()", "INVALID_ARGUMENT")
            arrays.append(tensor._array)
        for tensor, array in zip(self._outputs.values(), self._run(arrays)):
            tensor._array = array
        return True

    @staticmethod
    def _set_shape(tensor: Tensor, shape: Sequence[int], name: str) -> None:
        if len(shape) > MAX_RANK:
            raise OarError(f"input '{name}': rank {len(shape)} is more than {MAX_RANK}", "INVALID_ARGUMENT")
        tensor.rank = len(shape)
        tensor.shape[:len(shape)] = shape

    def _run(self, arrays: List[np.ndarray]) -> List[np.ndarray]:
        tensors = (Tensor * len(arrays))()
        for t, a, name in zip(tensors, arrays, self._inputs):
            if a.dtype not in _NUMBERS:
                raise OarError(f"input '{name}': dtype {a.dtype} is not supported", "INVALID_ARGUMENT")
            self._set_shape(t, a.shape, name)
            # A file that wants bf16 takes its bits as uint16.
            t.dtype = 4 if self._inputs[name]._dtype == 4 and a.dtype == np.uint16 else _NUMBERS[a.dtype]
            t.data, t.bytes = a.ctypes.data, a.nbytes
        outputs = HANDLE()
        check(self._lib.oar_predictor_run(self._handle, tensors, len(arrays), outputs))
        owner = Outputs(self._lib, outputs)
        return [owner.array(i) for i in range(len(self._outputs))]


def create_predictor(config: Config) -> Predictor:
    handle = HANDLE()
    options = PredictorOptions()
    check(library().oar_predictor_options_init(options, ctypes.sizeof(options)))
    options.threads = config.cpu_math_library_num_threads()
    options.precision = config.precision().encode()
    check(library().oar_predictor_open(config.prog_file().encode(), options, handle))
    return Predictor(handle)


class PredictorPool:
    """So many predictors on the same weights, one for each thread that uses handles."""

    def __init__(self, config: Config, size: int):
        if size < 1:
            raise ValueError(f"size: {size} must be at least 1")
        first = create_predictor(config)
        self._predictors = [first, *(first.clone() for _ in range(size - 1))]

    def retrieve(self, index: int) -> Predictor:
        return self._predictors[index]

    retrive = retrieve  # as Paddle spells it
