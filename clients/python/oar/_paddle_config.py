"""Paddle Inference's Config whole: every name of it is here. What Oar has, it does; the rest is a no-op that says why through
the logger "oar.inference": a warning where a program asks for what will not happen (a GPU, TensorRT), a debug message where
it asks for what is so anyway."""
from __future__ import annotations

import logging
import os
from typing import Any, Dict, List, Optional, Sequence, Set

from oar._paddle_types import PrecisionType

_LOG = logging.getLogger("oar.inference")

# The passes that a graph goes through, in order (`oar inspect MODEL --explain` tells what each does).
PASSES = ("fuse_quantized", "fuse_dynamic", "fuse_quantized_sums", "fold_evaluated", "sizes_as_attributes", "cse", "fuse_definitions",
          "fuse_quantized_epilogues", "matmul_to_linear", "fuse_attention", "fuse_epilogues", "channels_last", "winograd", "dce")

_CPU = "predictors run on the CPU, or on a plug-in's device: enable_custom_device()"
_TENSORRT = "there is no TensorRT here; predictors run on the CPU with Oar's own kernels"
_KERNELS = "Oar's own kernels run every op"


class XpuConfig:
    """Fields of a device that is not here; kept as they are set."""

    def __init__(self) -> None:
        self.device_id = 0
        self.l3_size = 0


class PassBuilder:
    """What Config.pass_builder() hands out: the list of passes, which can be shortened."""

    def __init__(self, config: "Config") -> None:
        self._config = config

    def all_passes(self) -> List[str]:
        return [p for p in PASSES if p not in self._config.deleted_passes()]

    def delete_pass(self, name: str) -> None:
        self._config.delete_pass(name)

    def append_pass(self, name: str) -> None:
        self._config._not("append_pass", f"'{name}' is a pass of Paddle; Oar's are {', '.join(PASSES)}")

    def insert_pass(self, index: int, name: str) -> None:
        self._config._not("insert_pass", f"'{name}' is a pass of Paddle; Oar's are {', '.join(PASSES)}")

    def turn_on_debug(self) -> None:
        self._config._not("turn_on_debug", "`oar inspect MODEL --dump-pass NAME` prints the graph around a pass")

    def set_passes(self, names: Sequence[str]) -> None:
        for name in PASSES:
            if name not in names:
                self._config.delete_pass(name)


class Config:
    """Config(), Config(model), Config(folder) or Config(prog_file, params_file): names of any kind, anywhere."""

    Precision = PrecisionType
    Bfloat16, Float32 = PrecisionType.Bfloat16, PrecisionType.Float32
    Half, Int8 = PrecisionType.Half, PrecisionType.Int8

    def __init__(self, prog_file: Optional[str] = None, params_file: Optional[str] = None) -> None:
        self._prog, self._params = "", ""
        self._memory: Optional[tuple[bytes, bytes]] = None
        self._threads, self._precision, self._cache_dir, self._device = 0, "f32", "", ""
        self._deleted: Set[str] = set()
        self._optimize, self._quiet, self._feed_fetch, self._by_name = True, False, False, True
        self._onednn, self._memory_optim = True, True
        self._xpu = XpuConfig()
        if prog_file is not None:
            self.set_model(prog_file, params_file)

    # ---- why a call has no effect

    def _not(self, name: str, why: str) -> None:
        _LOG.log(logging.DEBUG if self._quiet else logging.WARNING, "Config.%s() has no effect: %s", name, why)

    def _so(self, name: str, why: str) -> None:
        _LOG.debug("Config.%s() has no effect: %s", name, why)

    # ---- the model

    def set_model(self, model: str, params: Optional[str] = None) -> None:
        """A folder or file; or a Paddle program and the file with its parameters."""
        self._prog, self._params, self._memory = os.fspath(model), os.fspath(params) if params else "", None

    def set_prog_file(self, path: str) -> None:
        self._prog, self._memory = os.fspath(path), None

    def set_params_file(self, path: str) -> None:
        self._params, self._memory = os.fspath(path), None

    def set_model_buffer(self, prog: bytes, prog_size: int, params: bytes = b"", params_size: int = 0) -> None:
        """A Paddle program and its parameters, or an ONNX model, in memory."""
        for name, given, size in (("prog_size", prog, prog_size), ("params_size", params, params_size)):
            if not 0 <= size <= len(given):
                raise ValueError(f"{name}: {size} is not between 0 and the {len(given)} bytes that are there")
        self._memory = (bytes(prog[:prog_size]), bytes(params[:params_size]))

    def model_from_memory(self) -> bool:
        return self._memory is not None

    def model_bytes(self) -> Optional[tuple[bytes, bytes]]:
        """Of set_model_buffer(): the program's and the parameters'."""
        return self._memory

    def model_dir(self) -> str:
        return self._prog if os.path.isdir(self._prog) else ""

    def prog_file(self) -> str:
        return self._prog

    def params_file(self) -> str:
        return self._params

    # ---- the processor

    def set_cpu_math_library_num_threads(self, threads: int) -> None:
        """0: all processors; 1: the thread that calls run() alone."""
        self._threads = threads

    def cpu_math_library_num_threads(self) -> int:
        return self._threads

    def precision(self) -> str:
        """One of "f32", "bf16", "f16", "tf32" and "int8"."""
        return self._precision

    def set_precision(self, precision: str) -> None:
        """Oar's own: one of these, of convolutions and layers; f16 and tf32 are of devices, int8 is of the CPU."""
        self._precision = precision

    def enable_mkldnn(self) -> None:
        self._onednn = True
        self._so("enable_mkldnn", _KERNELS)

    def disable_mkldnn(self) -> None:
        self._onednn = False
        self._so("disable_mkldnn", _KERNELS)

    def mkldnn_enabled(self) -> bool:
        return self._onednn

    def enable_mkldnn_bfloat16(self) -> None:
        """Convolutions and layers in bf16, where the processor multiplies it; elsewhere they stay f32."""
        self._precision = "bf16"

    def enable_mkldnn_int8(self, mkldnn_int8_enabled_op_types: Optional[Set[str]] = None) -> None:
        """Convolutions and layers in 8-bit integers: a scale per filter, and per image or row of the operands."""
        self._precision = "int8"
        if mkldnn_int8_enabled_op_types:
            self._not("enable_mkldnn_int8", "the op types: int8 is of all convolutions and layers, or of none")

    def mkldnn_int8_enabled(self) -> bool:
        return self._precision == "int8"

    def disable_mkldnn_fc_passes(self) -> None:
        self.delete_pass("matmul_to_linear")

    def set_mkldnn_cache_capacity(self, capacity: int = 0) -> None:
        self._so("set_mkldnn_cache_capacity", "plans of 32 sets of shapes are kept; try_shrink_memory() drops their memory")

    def set_mkldnn_op(self, op_types: Set[str]) -> None:
        self._not("set_mkldnn_op", _KERNELS)

    def set_bfloat16_op(self, op_types: Set[str]) -> None:
        self._not("set_bfloat16_op", "bf16 is of all convolutions and layers, or of none: enable_mkldnn_bfloat16()")

    enable_onednn, disable_onednn, onednn_enabled = enable_mkldnn, disable_mkldnn, mkldnn_enabled
    enable_onednn_bfloat16, disable_onednn_fc_passes = enable_mkldnn_bfloat16, disable_mkldnn_fc_passes
    set_onednn_cache_capacity, set_onednn_op = set_mkldnn_cache_capacity, set_mkldnn_op
    onednn_int8_enabled = mkldnn_int8_enabled

    def enable_onednn_int8(self, onednn_int8_enabled_op_types: Optional[Set[str]] = None) -> None:
        self.enable_mkldnn_int8(onednn_int8_enabled_op_types)

    # ---- the graph's passes

    def switch_ir_optim(self, x: int = True) -> None:
        """False: the graph runs as it was read."""
        self._optimize = bool(x)

    def ir_optim(self) -> bool:
        return self._optimize

    def delete_pass(self, name: str) -> None:
        """One of Oar's passes is left out; Paddle's names mean nothing here."""
        if name in PASSES:
            self._deleted.add(name)
        else:
            self._not("delete_pass", f"'{name}' is no pass of Oar; its passes are {', '.join(PASSES)}")

    def deleted_passes(self) -> List[str]:
        return sorted(self._deleted)

    def disabled_passes(self) -> str:
        """As the library takes them: names with commas between them, or "all"."""
        return ",".join(self.deleted_passes()) if self._optimize else "all"

    def pass_builder(self) -> PassBuilder:
        return PassBuilder(self)

    def enable_custom_passes(self, passes: Sequence[str] = (), custom_pass_only: bool = False) -> None:
        self._not("enable_custom_passes", f"Oar's passes are {', '.join(PASSES)}")

    def switch_ir_debug(self, x: int = True, passes: Sequence[str] = ()) -> None:
        self._not("switch_ir_debug", "`oar inspect MODEL --dump-pass NAME` prints the graph around a pass")

    def set_optimization_level(self, opt_level: int = 2) -> None:
        self._so("set_optimization_level", "there is one level; switch_ir_optim() and delete_pass() leave passes out")

    def set_optim_cache_dir(self, path: str) -> None:
        """Where the prepared model is kept, which the next load maps."""
        self._cache_dir = os.fspath(path)

    def optim_cache_dir(self) -> str:
        return self._cache_dir

    def enable_save_optim_model(self, save_optimized_model: bool = False) -> None:
        self._so("enable_save_optim_model", "set_optim_cache_dir() keeps the prepared model")

    def use_optimized_model(self, x: bool = True) -> None:
        self._so("use_optimized_model", "what set_optim_cache_dir() keeps is used when it is there")

    # ---- memory, logs, diagnosis

    def enable_memory_optim(self, x: bool = True) -> None:
        self._memory_optim = x
        self._so("enable_memory_optim", "values share an arena in any case; Predictor.memory() tells its bytes")

    def disable_glog_info(self) -> None:
        """Warnings of this Config about calls without effect become debug messages."""
        self._quiet = True

    def glog_info_disabled(self) -> bool:
        return self._quiet

    def enable_profile(self) -> None:
        self._not("enable_profile", "`oar infer MODEL --profile` and `--trace FILE` tell the time of each op")

    def summary(self) -> str:
        rows: Dict[str, Any] = {
            "model": "in memory" if self._memory else self._prog, "params": self._params or "found beside the model",
            "threads": self._threads or "all processors", "precision": self._precision,
            "passes": "none" if not self._optimize else f"all but {', '.join(self.deleted_passes())}" if self._deleted else "all",
            "cache": self._cache_dir or "none"}
        return "".join(f"{name:<10} {value}\n" for name, value in rows.items())

    def to_native_config(self) -> "Config":
        self._so("to_native_config", "there is one kind of configuration")
        return self

    # ---- what programs may ask and is always so

    def switch_use_feed_fetch_ops(self, x: int = True) -> None:
        self._feed_fetch = bool(x)
        self._so("switch_use_feed_fetch_ops", "inputs and outputs have handles, and run() takes arrays")

    def use_feed_fetch_ops_enabled(self) -> bool:
        return self._feed_fetch

    def switch_specify_input_names(self, x: bool = True) -> None:
        self._by_name = x
        self._so("switch_specify_input_names", "inputs have names in any case")

    def specify_input_name(self) -> bool:
        return self._by_name

    def enable_new_executor(self, x: bool = True) -> None:
        self._so("enable_new_executor", "there is one executor")

    def enable_new_ir(self, x: bool = True) -> None:
        self._so("enable_new_ir", "programs of both generations load")

    def new_ir_enabled(self) -> bool:
        return True

    def enable_cinn(self) -> None:
        self._not("enable_cinn", "there is no CINN here; Oar's passes fuse ops")

    # ---- other devices and engines

    def disable_gpu(self) -> None:
        self._so("disable_gpu", _CPU)

    def use_gpu(self) -> bool:
        return False

    def enable_use_gpu(self, memory_pool_init_size_mb: int, device_id: int = 0,
                       precision_mode: PrecisionType = PrecisionType.Float32) -> None:
        self._not("enable_use_gpu", _CPU)

    def gpu_device_id(self) -> int:
        return 0

    def memory_pool_init_size_mb(self) -> int:
        return 0

    def fraction_of_gpu_memory_for_pool(self) -> float:
        return 0.0

    def enable_low_precision_io(self, x: bool = True) -> None:
        self._not("enable_low_precision_io", "inputs and outputs have the types that the model declares")

    def exp_enable_mixed_precision_ops(self, op_types: Set[str]) -> None:
        self._not("exp_enable_mixed_precision_ops", "precision is of all convolutions and layers: enable_mkldnn_bfloat16()")

    def exp_disable_mixed_precision_ops(self, op_types: Set[str]) -> None:
        self._not("exp_disable_mixed_precision_ops", "precision is of all convolutions and layers: enable_mkldnn_bfloat16()")

    def exp_enable_use_cutlass(self) -> None:
        self._not("exp_enable_use_cutlass", _CPU)

    def exp_sparse_conv_using_buffer(self, kernels: Sequence[Sequence[int]], strides: Sequence[Sequence[int]]) -> None:
        self._not("exp_sparse_conv_using_buffer", "sparse convolutions are not supported")

    def enable_custom_device(self, device_type: str, device_id: int = 0,
                             precision: PrecisionType = PrecisionType.Float32) -> None:
        """A plug-in's device: `device_type` is the NAME of a liboar_NAME.so, or its path. Half and Bfloat16 are what convolutions
        and layers multiply, where the device has such kernels."""
        if precision == PrecisionType.Int8:
            raise ValueError(f"config: a device computes in Float32, Half or Bfloat16, and precision is {precision}")
        if precision != PrecisionType.Float32:
            self._precision = "f16" if precision == PrecisionType.Half else "bf16"
        self._device = f"{device_type}:{device_id}"

    def device(self) -> str:
        """Oar's own: the plug-in's device that the model runs on; empty: the CPU."""
        return self._device

    def enable_xpu(self, l3_size: int = 16 << 20, l3_locked: bool = False, conv_autotune: bool = False,
                   conv_autotune_file: str = "", transformer_encoder_precision: str = "int16",
                   transformer_encoder_adaptive_seqlen: bool = False, enable_multi_stream: bool = False) -> None:
        self._not("enable_xpu", _CPU)

    def use_xpu(self) -> bool:
        return False

    def set_xpu_device_id(self, device_id: int = 0) -> None:
        self._xpu.device_id = device_id
        self._not("set_xpu_device_id", _CPU)

    def xpu_device_id(self) -> int:
        return self._xpu.device_id

    def set_xpu_config(self, config: XpuConfig) -> None:
        self._xpu = config
        self._not("set_xpu_config", _CPU)

    def xpu_config(self) -> XpuConfig:
        return self._xpu

    def enable_ipu(self, ipu_device_num: int = 1, ipu_micro_batch_size: int = 1, ipu_enable_pipelining: bool = False,
                   ipu_batches_per_step: int = 1) -> None:
        self._not("enable_ipu", _CPU)

    def set_ipu_config(self, ipu_enable_fp16: bool = False, ipu_replica_num: int = 1,
                       ipu_available_memory_proportion: float = 1.0, ipu_enable_half_partial: bool = False,
                       ipu_enable_model_runtime_executor: bool = False) -> None:
        self._not("set_ipu_config", _CPU)

    def set_ipu_custom_info(self, ipu_custom_ops_info: Sequence[Sequence[str]] = (),
                            ipu_custom_patterns: Optional[Dict[str, bool]] = None) -> None:
        self._not("set_ipu_custom_info", _CPU)

    def load_ipu_config(self, config_path: str) -> None:
        self._not("load_ipu_config", _CPU)

    def enable_onnxruntime(self) -> None:
        self._not("enable_onnxruntime", _KERNELS)

    def disable_onnxruntime(self) -> None:
        self._so("disable_onnxruntime", _KERNELS)

    def onnxruntime_enabled(self) -> bool:
        return False

    def enable_ort_optimization(self) -> None:
        self._not("enable_ort_optimization", _KERNELS)

    def enable_openvino_engine(self, inference_precision: PrecisionType = PrecisionType.Float32) -> None:
        self._not("enable_openvino_engine", _KERNELS)

    def openvino_engine_enabled(self) -> bool:
        return False

    # ---- TensorRT

    def enable_tensorrt_engine(self, workspace_size: int = 1 << 30, max_batch_size: int = 1, min_subgraph_size: int = 3,
                               precision_mode: PrecisionType = PrecisionType.Float32, use_static: bool = False,
                               use_calib_mode: bool = True, use_cuda_graph: bool = False) -> None:
        self._not("enable_tensorrt_engine", _TENSORRT)

    def tensorrt_engine_enabled(self) -> bool:
        return False

    def tensorrt_precision_mode(self) -> PrecisionType:
        return PrecisionType.Float32

    def enable_tensorrt_dla(self, dla_core: int = 0) -> None:
        self._not("enable_tensorrt_dla", _TENSORRT)

    def tensorrt_dla_enabled(self) -> bool:
        return False

    def enable_tensorrt_explicit_quantization(self) -> None:
        self._not("enable_tensorrt_explicit_quantization", _TENSORRT)

    def tensorrt_explicit_quantization_enabled(self) -> bool:
        return False

    def enable_tensorrt_inspector(self, inspector_serialize: bool = False) -> None:
        self._not("enable_tensorrt_inspector", _TENSORRT)

    def tensorrt_inspector_enabled(self) -> bool:
        return False

    def enable_tensorrt_memory_optim(self, engine_memory_sharing: bool = True, sharing_identifier: int = 0) -> None:
        self._not("enable_tensorrt_memory_optim", _TENSORRT)

    def enable_tensorrt_varseqlen(self) -> None:
        self._not("enable_tensorrt_varseqlen", _TENSORRT)

    def tensorrt_varseqlen_enabled(self) -> bool:
        return False

    def set_trt_dynamic_shape_info(self, min_input_shape: Optional[Dict[str, List[int]]] = None,
                                   max_input_shape: Optional[Dict[str, List[int]]] = None,
                                   optim_input_shape: Optional[Dict[str, List[int]]] = None,
                                   disable_trt_plugin_fp16: bool = False) -> None:
        self._so("set_trt_dynamic_shape_info", "inputs may have any extents that the model leaves open")

    def tensorrt_dynamic_shape_enabled(self) -> bool:
        return False

    def enable_tuned_tensorrt_dynamic_shape(self, shape_range_info_path: str = "", allow_build_at_runtime: bool = True) -> None:
        self._so("enable_tuned_tensorrt_dynamic_shape", "inputs may have any extents that the model leaves open")

    def tuned_tensorrt_dynamic_shape(self) -> bool:
        return False

    def trt_allow_build_at_runtime(self) -> bool:
        return False

    def collect_shape_range_info(self, path: str) -> None:
        self._not("collect_shape_range_info", "no engine needs ranges of shapes; no file is written")

    def shape_range_info_path(self) -> str:
        return ""

    def shape_range_info_collected(self) -> bool:
        return False

    def set_tensorrt_optimization_level(self, level: int) -> None:
        self._not("set_tensorrt_optimization_level", _TENSORRT)

    def tensorrt_optimization_level(self) -> int:
        return 3

    def mark_trt_engine_outputs(self, output_tensor_names: Sequence[str] = ()) -> None:
        self._not("mark_trt_engine_outputs", _TENSORRT)

    def exp_disable_tensorrt_ops(self, ops: Sequence[str]) -> None:
        self._so("exp_disable_tensorrt_ops", _TENSORRT)

    def exp_disable_tensorrt_subgraph(self, names: Sequence[str]) -> None:
        self._so("exp_disable_tensorrt_subgraph", _TENSORRT)

    def exp_disable_tensorrt_dynamic_shape_ops(self, x: bool) -> None:
        self._so("exp_disable_tensorrt_dynamic_shape_ops", _TENSORRT)

    def exp_specify_tensorrt_subgraph_precision(self, float32: Sequence[str], half: Sequence[str],
                                                int8: Sequence[str]) -> None:
        self._not("exp_specify_tensorrt_subgraph_precision", _TENSORRT)
