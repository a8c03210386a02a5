"""ONNX and Paddle models inside this process, on NumPy arrays without copies, under the names that users of Paddle
Inference know:

    config = Config("inference.pdmodel", "inference.pdiparams")     # or Config("model.onnx"), or a folder
    predictor = create_predictor(config)
    predictor.get_input_handle("x").copy_from_cpu(x)                 # or .share_external_data(x)
    predictor.run()
    y = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()

or in one call: y, = predictor.run([x]), or y, = predictor.run({"x": x}).
"""
from __future__ import annotations

import ctypes
import logging
import math
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from oar import _library
from oar._library import HANDLE, MAX_RANK, PredictorOptions, TensorInfo, check, library, log_callback
from oar._outputs import TYPES, Outputs
from oar._paddle_config import Config, PassBuilder, XpuConfig
from oar._paddle_types import DATA_TYPES, DataType, PlaceType, PrecisionType, get_num_bytes_of_data_type
from oar._wire import OarError

__all__ = ["Config", "DataType", "PassBuilder", "PlaceType", "PrecisionType", "Predictor", "PredictorPool", "Tensor",
           "XpuConfig", "convert_to_mixed_precision", "create_predictor", "get_num_bytes_of_data_type",
           "get_trt_compile_version", "get_trt_runtime_version", "get_version"]

Array = npt.NDArray[Any]
_LOG = logging.getLogger("oar.inference")
_NUMBERS = {np.dtype(t): n for n, t in TYPES.items() if n != 4}


class Tensor:
    """An input's or output's handle. Before data is there, shape() and type() are what the model declares."""

    def __init__(self, name: str, dtype: int, shape: Sequence[int]) -> None:
        self._name, self._dtype, self._declared = name, dtype, list(shape)
        self._array: Optional[Array] = None

    def name(self) -> str:
        return self._name

    def type(self) -> DataType:
        """An OarError of status UNIMPLEMENTED where Paddle has no number for the element type."""
        if self._dtype not in DATA_TYPES:
            raise OarError(f"'{self._name}' has an element type that Paddle has not", "UNIMPLEMENTED", "name")
        return DATA_TYPES[self._dtype]

    def shape(self) -> List[int]:
        """-1 where the model leaves an extent open and no data is there."""
        return list(self._declared) if self._array is None else list(self._array.shape)

    def reshape(self, shape: Sequence[int]) -> None:
        """Of the data that is there, where it has as many elements; data given later brings its own shape."""
        if self._array is not None and int(np.prod(shape)) == self._array.size:
            self._array = self._array.reshape(shape)
        else:
            self._array, self._declared = None, list(shape)

    def copy_from_cpu(self, array: Array) -> None:
        self._array = np.array(self._checked(array), order="C", copy=True)

    def share_external_data(self, array: Array) -> None:
        """No copy: the array must be C-contiguous and stay unchanged during run()."""
        if not self._checked(array).flags["C_CONTIGUOUS"]:
            raise ValueError(f"array: of input '{self._name}' is not C-contiguous; use copy_from_cpu()")
        self._array = array

    def share_external_data_by_ptr_name(self, *_: Any) -> None:
        raise OarError("memory shared by name is Paddle's own; use share_external_data()", "UNIMPLEMENTED", "ptr_name")

    def copy_to_cpu(self) -> Array:
        """The result of the last run(). It lies in the library's memory, which lives as long as the array does."""
        if self._array is None:
            raise OarError(f"'{self._name}' has no data; call run()", "FAILED_PRECONDITION")
        return self._array

    def lod(self) -> List[List[int]]:
        return []

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        if lod:
            raise OarError(f"lod: '{self._name}' is a dense tensor; sequences of unequal length are padded", "UNIMPLEMENTED",
                           "lod")

    def _checked(self, array: Array) -> Array:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"array: of input '{self._name}' must be a numpy.ndarray, not {type(array).__name__}")
        return array


class Predictor:
    """run() with arrays may be called by many threads at once; the handles belong to one, so clone() for each."""

    def __init__(self, handle: HANDLE) -> None:
        self._lib, self._handle = library(), handle
        self._close = weakref.finalize(self, self._lib.oar_predictor_close, handle)
        counts = ctypes.c_size_t(), ctypes.c_size_t()
        check(self._lib.oar_predictor_counts(handle, *counts))
        self._inputs = self._handles(self._lib.oar_predictor_input, counts[0].value)
        self._outputs = self._handles(self._lib.oar_predictor_output, counts[1].value)

    def _handles(self, function: Any, count: int) -> Dict[str, Tensor]:
        found = {}
        for i in range(count):
            info = TensorInfo()
            check(function(self._handle, i, info, ctypes.sizeof(info)))
            name = info.name.decode()
            found[name] = Tensor(name, info.dtype, info.shape[:max(info.rank, 0)])
        return found

    def get_input_names(self) -> List[str]:
        return list(self._inputs)

    def get_output_names(self) -> List[str]:
        return list(self._outputs)

    def get_input_handle(self, name: str) -> Tensor:
        return self._named(self._inputs, name, "input")

    def get_output_handle(self, name: str) -> Tensor:
        return self._named(self._outputs, name, "output")

    @staticmethod
    def _named(tensors: Dict[str, Tensor], name: str, what: str) -> Tensor:
        if name not in tensors:
            raise OarError(f"name: '{name}' is no {what} of the model; its {what}s are {', '.join(tensors)}", "NOT_FOUND", "name")
        return tensors[name]

    def get_input_types(self) -> Dict[str, DataType]:
        return {name: t.type() for name, t in self._inputs.items()}

    def get_input_tensor_shape(self) -> Dict[str, List[int]]:
        """As declared; -1 for what is open."""
        return {name: list(t._declared) for name, t in self._inputs.items()}

    def get_output_types(self) -> Dict[str, DataType]:
        return {name: t.type() for name, t in self._outputs.items()}

    def get_output_tensor_shape(self) -> Dict[str, List[int]]:
        return {name: list(t._declared) for name, t in self._outputs.items()}

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
        tensors, needed = (_library.Tensor * len(shapes))(), ctypes.c_uint64()
        for tensor, shape, name in zip(tensors, shapes, self._inputs):
            self._set_shape(tensor, shape, name)
        check(self._lib.oar_predictor_memory(self._handle, tensors, len(shapes), needed))
        return needed.value

    def try_shrink_memory(self) -> int:
        """Gives back what this predictor keeps between runs; how many bytes that was."""
        freed = ctypes.c_uint64()
        check(self._lib.oar_predictor_shrink(self._handle, freed))
        return freed.value

    def cancel(self) -> None:
        """Ends the runs of this predictor that are under way, from any thread: run() raises an OarError of status
        CANCELLED. Runs begun later, and those of clones, go on."""
        check(self._lib.oar_predictor_cancel(self._handle))

    def set_timeout(self, seconds: float) -> None:
        """run() raises an OarError of status DEADLINE_EXCEEDED where it takes longer from now on; 0: no limit. Less than
        a millisecond counts as one. A clone begins without a limit."""
        check(self._lib.oar_predictor_set_timeout(self._handle, math.ceil(seconds * 1000)))

    def clear_intermediate_tensor(self) -> None:
        self.try_shrink_memory()

    def register_input_hook(self, hook: Callable[..., None]) -> None:
        self._no_hook("register_input_hook")

    def register_output_hook(self, hook: Callable[..., None]) -> None:
        self._no_hook("register_output_hook")

    @staticmethod
    def _no_hook(name: str) -> None:
        _LOG.warning("Predictor.%s() has no effect: fused ops have no values between them; `oar inspect MODEL --graph` prints "
                     "what is computed", name)

    def run(self, inputs: Union[Sequence[Array], Mapping[str, Array], None] = None) -> Any:
        """With arrays in the order of get_input_names(), or by name: the list of outputs. Without: on the handles; True."""
        if inputs is not None:
            return self._run(self._ordered(inputs))
        arrays: List[Array] = []
        for name, tensor in self._inputs.items():
            if tensor._array is None:
                raise OarError(f"input '{name}' has no data; call copy_from_cpu() or share_external_data()", "INVALID_ARGUMENT")
            arrays.append(tensor._array)
        for out, array in zip(self._outputs.values(), self._run(arrays)):
            out._array = array
        return True

    def run_into(self, inputs: Union[Sequence[Array], Mapping[str, Array]],
                 outputs: Union[Sequence[Array], Mapping[str, Array]]) -> None:
        """run() whose results are written into arrays of the caller: C-contiguous, of the results' shapes and types."""
        arrays, names = self._ordered(inputs), list(self._outputs)
        into = [outputs[name] for name in names if name in outputs] if isinstance(outputs, Mapping) else list(outputs)
        if len(into) != len(names) or len(outputs) != len(names):
            raise OarError(f"outputs: {len(outputs)} are given; the model's are {', '.join(names)}", "INVALID_ARGUMENT", "outputs")
        tensors = self._tensors(arrays)
        results = (_library.Tensor * len(into))()
        for t, a, name in zip(results, into, names):
            if not (isinstance(a, np.ndarray) and a.flags["C_CONTIGUOUS"] and a.flags["WRITEABLE"]):
                raise ValueError(f"outputs: '{name}' must be a C-contiguous array that can be written")
            if any(np.shares_memory(a, b) for b in arrays):
                raise ValueError(f"outputs: '{name}' overlaps an input")
            t.data, t.bytes = a.ctypes.data, a.nbytes
        check(self._lib.oar_predictor_run_into(self._handle, tensors, len(arrays), results, len(into)))
        for t, a, name in zip(results, into, names):
            if tuple(t.shape[:t.rank]) != a.shape or np.dtype(TYPES[t.dtype]) != a.dtype:
                raise OarError(f"outputs: '{name}' is {np.dtype(TYPES[t.dtype])}{list(t.shape[:t.rank])}; the array is "
                               f"{a.dtype}{list(a.shape)}", "INVALID_ARGUMENT", "outputs")

    def _ordered(self, inputs: Union[Sequence[Array], Mapping[str, Array]]) -> List[Array]:
        if not isinstance(inputs, Mapping):
            return [np.asarray(a, order="C") for a in inputs]
        for name in inputs:
            self._named(self._inputs, name, "input")
        for name in self._inputs:
            if name not in inputs:
                raise OarError(f"inputs: '{name}' is missing", "INVALID_ARGUMENT", "inputs")
        return [np.asarray(inputs[name], order="C") for name in self._inputs]

    @staticmethod
    def _set_shape(tensor: _library.Tensor, shape: Sequence[int], name: str) -> None:
        if len(shape) > MAX_RANK:
            raise OarError(f"input '{name}': rank {len(shape)} is more than {MAX_RANK}", "INVALID_ARGUMENT")
        tensor.rank = len(shape)
        tensor.shape[:len(shape)] = shape

    def _tensors(self, arrays: Sequence[Array]) -> Any:
        tensors = (_library.Tensor * len(arrays))()
        for t, a, name in zip(tensors, arrays, self._inputs):
            if a.dtype not in _NUMBERS:
                raise OarError(f"input '{name}': dtype {a.dtype} is not supported", "INVALID_ARGUMENT")
            self._set_shape(t, a.shape, name)
            # A file that wants bf16 takes its bits as uint16.
            t.dtype = 4 if self._inputs[name]._dtype == 4 and a.dtype == np.uint16 else _NUMBERS[a.dtype]
            t.data, t.bytes = a.ctypes.data, a.nbytes
        return tensors

    def _run(self, arrays: List[Array]) -> List[Array]:
        outputs = HANDLE()
        check(self._lib.oar_predictor_run(self._handle, self._tensors(arrays), len(arrays), outputs))
        owner = Outputs(self._lib, outputs)
        return [owner.array(i) for i in range(len(self._outputs))]


def create_predictor(config: Config) -> Predictor:
    handle, lib = HANDLE(), library()
    options = PredictorOptions()
    check(lib.oar_predictor_options_init(options, ctypes.sizeof(options)))
    options.threads = config.cpu_math_library_num_threads()
    options.precision = config.precision().encode()
    options.disabled_passes = config.disabled_passes().encode()
    options.device = config.device().encode() or None
    options.log = ctypes.cast(log_callback, ctypes.c_void_p)
    memory = config.model_bytes()
    if memory is not None:
        program, params = memory
        check(lib.oar_predictor_open_memory(program, len(program), params or None, len(params), options, handle))
        return Predictor(handle)
    if not config.prog_file():
        raise ValueError("config: names no model; call set_model() or set_model_buffer()")
    options.params = config.params_file().encode() or None
    options.cache_dir = config.optim_cache_dir().encode() or None
    check(lib.oar_predictor_open(config.prog_file().encode(), options, handle))
    return Predictor(handle)


class PredictorPool:
    """So many predictors on the same weights, one for each thread that uses handles."""

    def __init__(self, config: Config, size: int) -> None:
        if size < 1:
            raise ValueError(f"size: {size} must be at least 1")
        first = create_predictor(config)
        self._predictors = [first, *(first.clone() for _ in range(size - 1))]

    def retrieve(self, index: int) -> Predictor:
        return self._predictors[index]

    retrive = retrieve  # as Paddle spelled it


def get_version() -> str:
    version: bytes = library().oar_version()
    return f"oar {version.decode()}"


def get_trt_compile_version() -> Tuple[int, int, int]:
    """There is no TensorRT here."""
    return (0, 0, 0)


def get_trt_runtime_version() -> Tuple[int, int, int]:
    return (0, 0, 0)


def convert_to_mixed_precision(*_: Any, **__: Any) -> None:
    raise OarError("precision is chosen when a model is loaded: Config.enable_mkldnn_bfloat16() or enable_mkldnn_int8()",
                   "UNIMPLEMENTED", "mixed_precision")
