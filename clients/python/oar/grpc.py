"""gRPC: oar.v1 for text, the Open Inference Protocol for tensors. `pip install oar[grpc]`.

    client = GrpcClient("127.0.0.1:8001")
    for chunk in client.stream("Once upon a time", max_tokens=64):
        print(chunk.text, end="")
    y = client.infer("model", {"x": x})["y"]
"""
from __future__ import annotations

import json
import os
import tempfile
from typing import Any, Dict, Iterator, List, Optional

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from oar._wire import Answer, Choice, Chunk, Messages, OarError, ToolCall, Usage


class _Protos:
    """Messages and methods made from the .proto files when this module is first imported: no generated code."""

    def __init__(self, *files: str):
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "protos")
        with tempfile.TemporaryDirectory() as temp:
            out = os.path.join(temp, "set")
            if protoc.main(["protoc", "-I", folder, "--descriptor_set_out", out, *files]) != 0:
                raise ImportError(f"the .proto files in {folder} cannot be compiled")
            with open(out, "rb") as f:
                described = descriptor_pb2.FileDescriptorSet.FromString(f.read())
        self._pool = descriptor_pool.DescriptorPool()
        for file in described.file:
            self._pool.Add(file)

    def message(self, name: str) -> Any:
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))

    def method(self, channel: grpc.Channel, service: str, name: str) -> Any:
        method = self._pool.FindServiceByName(service).methods_by_name[name]
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        return make(f"/{service}/{name}", request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=message_factory.GetMessageClass(method.output_type).FromString)


_PROTOS = _Protos("oar/v1/oar.proto", "inference/grpc_service.proto")
_GenerateRequest, _ListModelsRequest = (_PROTOS.message("oar.v1." + n) for n in ("GenerateRequest", "ListModelsRequest"))
_ModelInferRequest = _PROTOS.message("inference.ModelInferRequest")

_TYPES = {"BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8,
          "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "FP16": np.float16, "FP32": np.float32,
          "FP64": np.float64}
_NAMES = {np.dtype(t): n for n, t in _TYPES.items()}
_FINISH = {1: "stop", 2: "length", 3: "tool_calls"}
_SAMPLING = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed"}
_STOPPING = {"max_tokens", "min_tokens", "ignore_eos"}
_CONSTRAINTS = {"json_object", "json_schema", "regex", "grammar", "structural_tag", "choice"}
_CONVERSATION = {"tools", "tool_choice", "parallel_tool_calls", "inline_reasoning", "thinking_budget"}
_MODES = {"auto": 0, "none": 1, "required": 2}
_OPTIONS = _SAMPLING | _STOPPING | _CONSTRAINTS | _CONVERSATION | {"stop", "stop_token_ids", "logit_bias"}


class GrpcClient:
    """One channel; any thread. `root_certificates` (PEM bytes) turns TLS on."""

    def __init__(self, address: str = "127.0.0.1:8001", *, api_key: Optional[str] = None, timeout: float = 600,
                 root_certificates: Optional[bytes] = None):
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        if root_certificates is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(root_certificates), options)
        key = api_key if api_key is not None else os.environ.get("OAR_API_KEY")
        self._metadata = [("authorization", "Bearer " + key)] if key else []
        self._timeout = timeout
        self._generate = _PROTOS.method(self._channel, "oar.v1.Generation", "Generate")
        self._list_models = _PROTOS.method(self._channel, "oar.v1.Generation", "ListModels")
        self._model_infer = _PROTOS.method(self._channel, "inference.GRPCInferenceService", "ModelInfer")

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> "GrpcClient":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def models(self) -> List[str]:
        return [m.name for m in self._call(self._list_models, _ListModelsRequest()).models]

    def stream(self, prompt: Optional[str] = None, *, messages: Optional[Messages] = None, model: str = "", **options: Any) -> Iterator[Chunk]:
        request = _GenerateRequest(model=model)
        if messages is not None:
            for m in [{"role": "user", "content": messages}] if isinstance(messages, str) else messages:
                _add_message(request.conversation, m)
        else:
            request.prompt = prompt or ""
        for name, value in options.items():
            if name in _SAMPLING:
                setattr(request.sampling, name, value)
            elif name in _STOPPING:
                setattr(request.stopping, name, value)
            elif name == "stop":
                request.stopping.stop.extend([value] if isinstance(value, str) else value)
            elif name == "stop_token_ids":
                request.stopping.stop_token_ids.extend(value)
            elif name == "logit_bias":
                for token, added in value.items():
                    request.sampling.logit_bias[int(token)] = added
            elif name in _CONVERSATION:
                if messages is None:
                    raise TypeError(f"{name} is of conversations; give messages")
                _set_conversation(request.conversation, name, value)
            elif name == "choice":
                request.constraint.choice.texts.extend(value)
            elif name in _CONSTRAINTS:
                is_json = name in ("json_schema", "structural_tag") and not isinstance(value, str)
                setattr(request.constraint, name, json.dumps(value) if is_json else value)
            else:
                raise TypeError(f"there is no option '{name}'; options are {', '.join(sorted(_OPTIONS))}")
        call = self._generate(request, metadata=self._metadata, timeout=self._timeout)
        try:
            for c in call:
                u = c.usage
                usage = Usage(u.prompt_tokens, u.completion_tokens, u.cached_tokens, u.accepted_prediction_tokens,
                              u.rejected_prediction_tokens) if c.HasField("usage") else None
                calls = [ToolCall(t.id, t.name, t.arguments, t.index) for t in c.tool_calls]
                yield Chunk(c.text, c.index, _FINISH.get(c.finish_reason), usage, reasoning=c.reasoning, tool_calls=calls)
        except grpc.RpcError as e:
            raise _error(e) from e
        finally:
            call.cancel()

    def generate(self, prompt: Optional[str] = None, **options: Any) -> Answer:
        choice, usage = Choice(), Usage()
        for chunk in self.stream(prompt, **options):
            choice.add(chunk)
            usage = chunk.usage or usage
        return Answer(choice.text, choice.finish_reason, usage, choices=[choice])

    def infer(self, model: str, inputs: Dict[str, np.ndarray], *, version: str = "") -> Dict[str, np.ndarray]:
        """One run of an ordinary model: arrays by name in, arrays by name out."""
        request = _ModelInferRequest(model_name=model, model_version=version)
        for name, value in inputs.items():
            array = np.asarray(value, order="C")
            if array.dtype not in _NAMES:
                raise OarError(f"input '{name}': dtype {array.dtype} is not supported", "INVALID_ARGUMENT")
            request.inputs.add(name=name, datatype=_NAMES[array.dtype], shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        answer = self._call(self._model_infer, request)
        out = {}
        for tensor, raw in zip(answer.outputs, answer.raw_output_contents):
            if tensor.datatype not in _TYPES:
                raise OarError(f"output '{tensor.name}': datatype {tensor.datatype} has no NumPy type", "UNIMPLEMENTED")
            out[tensor.name] = np.frombuffer(raw, _TYPES[tensor.datatype]).reshape(tuple(tensor.shape))
        return out

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, metadata=self._metadata, timeout=self._timeout)
        except grpc.RpcError as e:
            raise _error(e) from e


# Messages, tools and tool_choice are written as OpenAI's clients write them.
def _add_message(conversation: Any, m: Dict[str, Any]) -> None:
    m = {k: v for k, v in m.items() if v is not None}
    calls = [{"id": c.get("id", ""), "name": c["function"]["name"], "arguments": c["function"].get("arguments", "")}
             for c in m.pop("tool_calls", [])]
    conversation.messages.add(**m, tool_calls=calls)


def _set_conversation(conversation: Any, name: str, value: Any) -> None:
    if name == "tools":
        for tool in value:
            function = dict(tool["function"])
            if (parameters := function.get("parameters")) is not None:
                function["parameters"] = json.dumps(parameters)
            conversation.tools.add(**function)
    elif name == "tool_choice":
        choice = conversation.tool_choice
        allowed: Dict[str, Any] = {}
        if isinstance(value, str):
            allowed = {"mode": value}
        elif value.get("type") == "function":
            choice.name = value["function"]["name"]
        else:
            allowed = value.get("allowed_tools", value)
        mode = allowed.get("mode", "auto")
        if mode not in _MODES:
            raise ValueError(f"tool_choice: '{mode}' is none of {', '.join(_MODES)}")
        choice.mode = _MODES[mode]
        choice.allowed.extend(t["function"]["name"] for t in allowed.get("tools", []))
    else:
        setattr(conversation, name, value)


def _error(e: grpc.RpcError) -> OarError:
    return OarError(e.details(), e.code().name)
