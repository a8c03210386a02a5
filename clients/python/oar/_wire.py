"""What both HTTP clients share: request bodies, server-sent events, answers and errors. No sockets."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Union

Messages = Union[str, Sequence[Dict[str, str]]]


class OarError(Exception):
    """A request that failed. `status` is the HTTP status, or a canonical code's name from the library and gRPC."""

    def __init__(self, message: str, status: Union[int, str, None] = None, param: Optional[str] = None):
        super().__init__(message)
        self.status, self.param = status, param


@dataclass
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    accepted_prediction_tokens: int = 0  # of completion_tokens, drafted by speculation
    rejected_prediction_tokens: int = 0  # drafts that were wrong; no part of completion_tokens


@dataclass
class ToolCall:
    """A call of a tool by the model. In a Chunk it is a piece: id and name come with a call's first, and `arguments` (JSON
    text) are appended to what came before."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    index: int = 0


@dataclass
class Chunk:
    """A piece of a stream. `finish_reason` is set on a choice's last one, `usage` on the stream's. `tokens` (of the embedded
    model) and `logprobs` (one per token, where asked for) may come before their text."""
    text: str = ""
    index: int = 0
    finish_reason: Optional[str] = None
    usage: Optional[Usage] = None
    tokens: List[int] = field(default_factory=list)
    logprobs: Optional[List[float]] = None
    reasoning: str = ""
    tool_calls: List[ToolCall] = field(default_factory=list)


@dataclass
class Choice:
    """One of the n answers."""
    text: str = ""
    finish_reason: Optional[str] = None
    tokens: List[int] = field(default_factory=list)
    logprobs: Optional[List[float]] = None
    reasoning: str = ""
    tool_calls: List[ToolCall] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.reasoning += chunk.reasoning
        self.finish_reason = chunk.finish_reason or self.finish_reason
        self.tokens += chunk.tokens
        if chunk.logprobs is not None:
            self.logprobs = (self.logprobs or []) + chunk.logprobs
        for call in chunk.tool_calls:
            if call.index == len(self.tool_calls):
                self.tool_calls.append(ToolCall(call.id, call.name, "", call.index))
            self.tool_calls[call.index].arguments += call.arguments


@dataclass
class Answer:
    """`text`, `finish_reason`, `reasoning` and `tool_calls` are the first choice's; `choices` has every one of n."""
    text: str
    finish_reason: Optional[str] = None
    usage: Usage = field(default_factory=Usage)
    raw: Dict[str, Any] = field(default_factory=dict, repr=False)
    choices: List[Choice] = field(default_factory=list)

    @property
    def reasoning(self) -> str:
        return self.choices[0].reasoning if self.choices else ""

    @property
    def tool_calls(self) -> List[ToolCall]:
        return self.choices[0].tool_calls if self.choices else []


def chat_body(messages: Messages, model: Optional[str], stream: bool, options: Dict[str, Any]) -> Dict[str, Any]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return _body({"messages": list(messages)}, model, stream, options)


def completion_body(prompt: Union[str, List[int]], model: Optional[str], stream: bool, options: Dict[str, Any]) -> Dict[str, Any]:
    return _body({"prompt": prompt}, model, stream, options)


def _body(body: Dict[str, Any], model: Optional[str], stream: bool, options: Dict[str, Any]) -> Dict[str, Any]:
    if model is not None:
        body["model"] = model
    if stream:
        body.update(stream=True, stream_options={"include_usage": True})
    body.update(options)
    return body


def parse_error(status: int, text: bytes) -> OarError:
    try:
        error = json.loads(text)["error"]
        if isinstance(error, str):
            return OarError(error, status)
        return OarError(error["message"], status, error.get("param"))
    except (ValueError, KeyError, TypeError):
        return OarError(f"HTTP {status}: {text[:300].decode(errors='replace')}", status)


def parse_usage(usage: Optional[Dict[str, Any]]) -> Optional[Usage]:
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    drafts = usage.get("completion_tokens_details") or {}
    return Usage(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), details.get("cached_tokens", 0),
                 drafts.get("accepted_prediction_tokens", 0), drafts.get("rejected_prediction_tokens", 0))


def parse_answer(raw: Dict[str, Any]) -> Answer:
    choices = [_choice(c) for c in raw["choices"]]
    return Answer(choices[0].text, choices[0].finish_reason, parse_usage(raw.get("usage")) or Usage(), raw, choices)


def _choice(choice: Dict[str, Any]) -> Choice:
    text = choice["message"].get("content") or "" if "message" in choice else choice["text"]
    given, logprobs = choice.get("logprobs") or {}, None
    if given.get("content") is not None:
        logprobs = [t["logprob"] for t in given["content"]]
    elif given.get("token_logprobs") is not None:
        logprobs = list(given["token_logprobs"])
    message = choice.get("message") or {}
    return Choice(text, choice.get("finish_reason"), [], logprobs, message.get("reasoning_content") or "", _tool_calls(message))


# Of a message, or pieces of them of a delta.
def _tool_calls(message: Dict[str, Any]) -> List[ToolCall]:
    calls = message.get("tool_calls") or []
    return [ToolCall(c.get("id", ""), c["function"].get("name", ""), c["function"].get("arguments", ""), c.get("index", i))
            for i, c in enumerate(calls)]


class EventParser:
    """Lines of a stream to chunks; `done` once [DONE] was seen."""

    def __init__(self) -> None:
        self.done = False

    def push(self, line: bytes) -> Iterator[Chunk]:
        if not line.startswith(b"data:") or self.done:
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            raise OarError(event["error"].get("message", str(event["error"])), event["error"].get("code"))
        usage = parse_usage(event.get("usage"))
        if usage and not event["choices"]:
            yield Chunk(usage=usage)
        for choice in event["choices"]:
            text = choice["delta"].get("content") or "" if "delta" in choice else choice.get("text", "")
            finish = choice.get("finish_reason")
            delta = choice.get("delta") or {}
            reasoning, calls = delta.get("reasoning_content") or "", _tool_calls(delta)
            if text or finish or reasoning or calls:
                yield Chunk(text, choice.get("index", 0), finish, reasoning=reasoning, tool_calls=calls)

    def finish(self) -> None:
        if not self.done:
            raise OarError("the stream ended before its answer did")


def parse_lines(lines: Iterable[bytes]) -> Iterator[Chunk]:
    parser = EventParser()
    for line in lines:
        yield from parser.push(line)
        if parser.done:
            return
    parser.finish()
