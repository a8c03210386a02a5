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


@dataclass
class Choice:
    """One of the n answers."""
    text: str = ""
    finish_reason: Optional[str] = None
    tokens: List[int] = field(default_factory=list)
    logprobs: Optional[List[float]] = None


@dataclass
class Answer:
    """`text` and `finish_reason` are the first choice's; `choices` has every one of n."""
    text: str
    finish_reason: Optional[str] = None
    usage: Usage = field(default_factory=Usage)
    raw: Dict[str, Any] = field(default_factory=dict, repr=False)
    choices: List[Choice] = field(default_factory=list)


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
    return Usage(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), details.get("cached_tokens", 0))


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
    return Choice(text, choice.get("finish_reason"), [], logprobs)


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
            if text or finish:
                yield Chunk(text, choice.get("index", 0), finish)

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
