"""liboar.so through ctypes: finding it, its structures (engine/capi/oar.h), its errors. No build step."""
from __future__ import annotations

import ctypes
import functools
import logging
import os
from ctypes import POINTER, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from oar._wire import OarError

ABI_VERSION = 0
MAX_RANK = 8


class ModelOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("threads", c_int32), ("weights", c_char_p), ("kv", c_char_p),
                ("max_context", c_int64), ("max_batch_tokens", c_int64), ("max_sequences", c_int64),
                ("max_waiting", c_int64), ("memory_bytes", c_uint64), ("seed", c_uint64), ("no_prefix_cache", c_int32),
                ("deterministic", c_int32), ("no_mmap", c_int32), ("no_cache", c_int32), ("log", c_void_p),
                ("log_user", c_void_p), ("progress", c_void_p), ("progress_user", c_void_p), ("cache_dir", c_char_p),
                ("cache_bytes", c_uint64), ("allow_special_in_text", c_int32), ("mixed_prefix", c_int32), ("device", c_char_p),
                ("tool_parser", c_char_p), ("reasoning_parser", c_char_p), ("speculative", c_char_p),
                ("num_speculative_tokens", c_int64), ("prompt_lookup_min", c_int32), ("prompt_lookup_max", c_int32),
                ("draft_model", c_char_p), ("max_loras", c_int64), ("max_lora_rank", c_int64),
                ("state_snapshots", c_uint64), ("snapshot_tokens", c_int64), ("mla", c_char_p)]


class Sampling(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("temperature", c_float), ("top_p", c_float), ("min_p", c_float),
                ("top_k", c_int32), ("repetition_penalty", c_float), ("presence_penalty", c_float),
                ("frequency_penalty", c_float), ("max_tokens", c_int64), ("min_tokens", c_int64), ("n", c_int32),
                ("has_seed", c_int32), ("seed", c_uint64), ("ignore_eos", c_int32), ("logprobs", c_int32),
                ("keep_special_tokens", c_int32), ("include_stop", c_int32), ("timeout_ms", c_int64),
                ("stop", POINTER(c_char_p)), ("stop_count", c_size_t), ("stop_tokens", POINTER(c_int32)),
                ("stop_token_count", c_size_t), ("bias_tokens", POINTER(c_int32)), ("bias_values", POINTER(c_float)),
                ("bias_count", c_size_t), ("cache_salt", c_char_p),
                ("constraint_kind", c_int32), ("constraint", c_char_p), ("lora", c_char_p)]


class ToolCall(ctypes.Structure):
    _fields_ = [("index", c_int32), ("reserved", c_int32), ("id", c_char_p), ("name", c_char_p), ("arguments", c_char_p)]


class ChatOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("parallel_tool_calls", c_int32), ("tools", c_char_p), ("tool_choice", c_char_p),
                ("inline_reasoning", c_int32), ("reserved", c_int32), ("thinking_budget", c_int64)]


class Event(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("index", c_int32), ("text", POINTER(c_char)), ("text_length", c_size_t),
                ("tokens", POINTER(c_int32)), ("logprobs", POINTER(c_float)), ("token_count", c_size_t),
                ("finish", c_int), ("status", c_int), ("message", c_char_p), ("prompt_tokens", c_int64),
                ("cached_tokens", c_int64), ("completion_tokens", c_int64), ("seconds_to_first_token", c_double),
                ("seconds", c_double), ("reasoning", POINTER(c_char)), ("reasoning_length", c_size_t),
                ("tool_calls", POINTER(ToolCall)), ("tool_call_count", c_size_t),
                ("accepted_prediction_tokens", c_int64), ("rejected_prediction_tokens", c_int64)]


class Tensor(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("rank", c_int32), ("shape", c_int64 * MAX_RANK), ("data", c_void_p), ("bytes", c_size_t)]


class TensorInfo(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int32), ("rank", c_int32), ("shape", c_int64 * MAX_RANK)]


class PredictorOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("threads", c_int32), ("precision", c_char_p), ("cache_dir", c_char_p),
                ("params", c_char_p), ("disabled_passes", c_char_p), ("device", c_char_p), ("log", c_void_p),
                ("log_user", c_void_p), ("weights", c_char_p)]


class EmbedOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("pooling", c_int32), ("normalize", c_int32), ("reserved", c_int32),
                ("max_tokens", c_int64), ("dimensions", c_int64)]


class EncoderInfo(ctypes.Structure):
    _fields_ = [("max_tokens", c_int64), ("dimensions", c_int64), ("vocab_size", c_int32), ("embeds", c_int32),
                ("scores", c_int32), ("normalizes", c_int32)]


def _log(level: int, message: bytes, _: Any) -> None:
    logging.getLogger("oar").log((logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)[level],
                                 message.decode(errors="replace"))


# What the library says, to the logger "oar"; for calls that log on the caller's own thread.
log_callback = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)(_log)

HANDLE = c_uint64
_FUNCTIONS = {
    "oar_abi_version": (c_uint32, []),
    "oar_version": (c_char_p, []),
    "oar_status_name": (c_char_p, [c_int]),
    "oar_last_error": (c_char_p, []),
    "oar_last_error_param": (c_char_p, []),
    "oar_model_options_init": (c_int, [POINTER(ModelOptions), c_size_t]),
    "oar_model_load": (c_int, [c_char_p, POINTER(ModelOptions), POINTER(HANDLE)]),
    "oar_model_close": (c_int, [HANDLE]),
    "oar_model_describe": (c_int, [HANDLE, c_char_p, c_size_t, POINTER(c_size_t)]),
    "oar_model_load_lora": (c_int, [HANDLE, c_char_p, c_char_p]),
    "oar_model_unload_lora": (c_int, [HANDLE, c_char_p]),
    "oar_model_list_loras": (c_int, [HANDLE, c_char_p, c_size_t, POINTER(c_size_t)]),
    "oar_tokenize": (c_int, [HANDLE, c_char_p, c_size_t, c_int, POINTER(c_int32), c_size_t, POINTER(c_size_t)]),
    "oar_detokenize": (c_int, [HANDLE, POINTER(c_int32), c_size_t, c_int, c_char_p, c_size_t, POINTER(c_size_t)]),
    "oar_chat_prompt": (c_int, [HANDLE, c_char_p, c_char_p, c_char_p, c_size_t, POINTER(c_size_t)]),
    "oar_sampling_init": (c_int, [POINTER(Sampling), c_size_t]),
    "oar_generate_text": (c_int, [HANDLE, c_char_p, POINTER(Sampling), c_void_p, c_void_p, POINTER(HANDLE)]),
    "oar_generate_tokens": (c_int, [HANDLE, POINTER(c_int32), c_size_t, POINTER(Sampling), c_void_p, c_void_p, POINTER(HANDLE)]),
    "oar_generate_chat": (c_int, [HANDLE, c_char_p, POINTER(Sampling), c_void_p, c_void_p, POINTER(HANDLE)]),
    "oar_chat_options_init": (c_int, [POINTER(ChatOptions), c_size_t]),
    "oar_generate_conversation": (c_int, [HANDLE, c_char_p, POINTER(ChatOptions), POINTER(Sampling), c_void_p, c_void_p,
                                          POINTER(HANDLE)]),
    "oar_generation_next": (c_int, [HANDLE, c_int64, POINTER(POINTER(Event))]),
    "oar_generation_close": (c_int, [HANDLE]),
    "oar_predictor_load": (c_int, [c_char_p, c_int32, POINTER(HANDLE)]),
    "oar_predictor_options_init": (c_int, [POINTER(PredictorOptions), c_size_t]),
    "oar_predictor_open": (c_int, [c_char_p, POINTER(PredictorOptions), POINTER(HANDLE)]),
    "oar_predictor_open_memory": (c_int, [c_char_p, c_size_t, c_char_p, c_size_t, POINTER(PredictorOptions), POINTER(HANDLE)]),
    "oar_predictor_clone": (c_int, [HANDLE, POINTER(HANDLE)]),
    "oar_predictor_close": (c_int, [HANDLE]),
    "oar_predictor_counts": (c_int, [HANDLE, POINTER(c_size_t), POINTER(c_size_t)]),
    "oar_predictor_input": (c_int, [HANDLE, c_size_t, POINTER(TensorInfo), c_size_t]),
    "oar_predictor_output": (c_int, [HANDLE, c_size_t, POINTER(TensorInfo), c_size_t]),
    "oar_predictor_run": (c_int, [HANDLE, POINTER(Tensor), c_size_t, POINTER(HANDLE)]),
    "oar_predictor_run_into": (c_int, [HANDLE, POINTER(Tensor), c_size_t, POINTER(Tensor), c_size_t]),
    "oar_predictor_cancel": (c_int, [HANDLE]),
    "oar_predictor_set_timeout": (c_int, [HANDLE, c_int64]),
    "oar_predictor_memory": (c_int, [HANDLE, POINTER(Tensor), c_size_t, POINTER(c_uint64)]),
    "oar_predictor_shrink": (c_int, [HANDLE, POINTER(c_uint64)]),
    "oar_outputs_get": (c_int, [HANDLE, c_size_t, POINTER(Tensor)]),
    "oar_outputs_close": (c_int, [HANDLE]),
    "oar_embed_options_init": (c_int, [POINTER(EmbedOptions), c_size_t]),
    "oar_encoder_load": (c_int, [c_char_p, c_int32, POINTER(HANDLE)]),
    "oar_encoder_open": (c_int, [c_char_p, POINTER(PredictorOptions), POINTER(HANDLE)]),
    "oar_encoder_close": (c_int, [HANDLE]),
    "oar_encoder_get_info": (c_int, [HANDLE, POINTER(EncoderInfo), c_size_t]),
    "oar_embed": (c_int, [HANDLE, POINTER(c_char_p), c_size_t, POINTER(EmbedOptions), POINTER(HANDLE)]),
    "oar_score": (c_int, [HANDLE, c_char_p, POINTER(c_char_p), c_size_t, POINTER(HANDLE)]),
}


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The library that $OAR_LIBRARY names, else the one in this package (a wheel with the library has it), else liboar.so.0 as the
    system finds it. ctypes gives up the GIL in every call."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"lib/liboar.so.{ABI_VERSION}")
    name = os.environ.get("OAR_LIBRARY") or (own if os.path.exists(own) else f"liboar.so.{ABI_VERSION}")
    try:
        found = ctypes.CDLL(name)
    except OSError as e:
        raise OarError(f"cannot load {name} ({e}); install liboar0, or set OAR_LIBRARY to the path of liboar.so") from e
    for function, (result, arguments) in _FUNCTIONS.items():
        try:
            f = getattr(found, function)
        except AttributeError:
            raise OarError(f"{name} has no {function}(): it is older than this package; update the library") from None
        f.restype, f.argtypes = result, arguments
    if found.oar_abi_version() != ABI_VERSION:
        raise OarError(f"{name} has ABI {found.oar_abi_version()}, this package needs {ABI_VERSION}")
    return found


def check(status: int) -> None:
    if status != 0:
        lib = library()
        raise OarError(lib.oar_last_error().decode(), lib.oar_status_name(status).decode(), lib.oar_last_error_param().decode() or None)
