"""HTTP on asyncio, with the standard library alone: many streams in one thread."""
from __future__ import annotations

import asyncio
import json
import os
import ssl
import urllib.parse
from typing import Any, AsyncIterator, Dict, List, Optional, Tuple, Union

from oar import _wire
from oar._wire import Answer, Chunk, Messages, OarError

_MOST_LINE = 16 << 20


class AsyncClient:
    """As oar.Client, with `await` and `async for`:

        client = AsyncClient("http://127.0.0.1:8000")
        answers = await asyncio.gather(*(client.chat(q) for q in questions))
        async for chunk in client.stream_chat("Speak, what news?"):
            print(chunk.text, end="")
    """

    def __init__(self, url: str = "http://127.0.0.1:8000", *, api_key: Optional[str] = None, timeout: float = 600,
                 ca_file: Optional[str] = None, model: Optional[str] = None):
        self._url = urllib.parse.urlsplit(url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ValueError(f"url: '{url}' is no address; write http://host:port")
        self._key = api_key if api_key is not None else os.environ.get("OAR_API_KEY")
        self._timeout = timeout
        self._tls = ssl.create_default_context(cafile=ca_file) if self._url.scheme == "https" else None
        self._model = model

    async def models(self) -> List[str]:
        return [m["id"] for m in (await self._json("GET", "/v1/models"))["data"]]

    async def chat(self, messages: Messages, *, model: Optional[str] = None, **options: Any) -> Answer:
        body = _wire.chat_body(messages, await self._name(model), False, options)
        return _wire.parse_answer(await self._json("POST", "/v1/chat/completions", body))

    async def complete(self, prompt: Union[str, List[int]], *, model: Optional[str] = None, **options: Any) -> Answer:
        body = _wire.completion_body(prompt, await self._name(model), False, options)
        return _wire.parse_answer(await self._json("POST", "/v1/completions", body))

    async def stream_chat(self, messages: Messages, *, model: Optional[str] = None, **options: Any) -> AsyncIterator[Chunk]:
        body = _wire.chat_body(messages, await self._name(model), True, options)
        async for chunk in self._stream("/v1/chat/completions", body):
            yield chunk

    async def stream_complete(self, prompt: Union[str, List[int]], *, model: Optional[str] = None,
                              **options: Any) -> AsyncIterator[Chunk]:
        body = _wire.completion_body(prompt, await self._name(model), True, options)
        async for chunk in self._stream("/v1/completions", body):
            yield chunk

    async def _name(self, model: Optional[str]) -> str:
        if model is not None:
            return model
        if self._model is None:
            self._model = (await self.models())[0]
        return self._model

    async def _open(self, method: str, path: str,
                    body: Optional[Dict[str, Any]]) -> Tuple[asyncio.StreamWriter, int, AsyncIterator[bytes]]:
        port = self._url.port or (443 if self._tls else 80)
        reader, writer = await asyncio.open_connection(self._url.hostname, port, ssl=self._tls, limit=_MOST_LINE)
        data = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {self._url.path.rstrip('/')}{path} HTTP/1.1", f"Host: {self._url.hostname}:{port}",
                "Content-Type: application/json", f"Content-Length: {len(data)}", "Connection: close"]
        if self._key:
            head.append("Authorization: Bearer " + self._key)
        try:
            writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + data)
            await writer.drain()
            status, headers = await _read_head(reader)
        except BaseException:
            writer.close()
            raise
        return writer, status, _body(reader, headers)

    async def _json(self, method: str, path: str, body: Optional[Dict[str, Any]] = None) -> Any:
        async def work() -> Any:
            writer, status, pieces = await self._open(method, path, body)
            try:
                text = b"".join([piece async for piece in pieces])
            finally:
                writer.close()
            if status != 200:
                raise _wire.parse_error(status, text)
            return json.loads(text)

        return await asyncio.wait_for(work(), self._timeout)

    async def _stream(self, path: str, body: Dict[str, Any]) -> AsyncIterator[Chunk]:
        writer, status, pieces = await asyncio.wait_for(self._open("POST", path, body), self._timeout)
        try:  # leaving closes the connection, and that cancels the request
            if status != 200:
                raise _wire.parse_error(status, b"".join([piece async for piece in pieces]))
            parser, rest = _wire.EventParser(), b""
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    for chunk in parser.push(line):
                        yield chunk
                if parser.done:
                    return
            parser.finish()
        finally:
            writer.close()


async def _read_head(reader: asyncio.StreamReader) -> Tuple[int, Dict[str, str]]:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in head[1:]) if n}
        return int(head[0].split(" ", 2)[1]), headers
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError, ValueError) as e:
        raise OarError("the server's answer is no HTTP") from e


async def _body(reader: asyncio.StreamReader, headers: Dict[str, str]) -> AsyncIterator[bytes]:
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while True:
                size = int((await reader.readline()).split(b";")[0], 16)
                data = (await reader.readexactly(size + 2))[:-2]
                if size == 0:
                    return
                yield data
        elif "content-length" in headers:
            yield await reader.readexactly(int(headers["content-length"]))
        else:
            yield await reader.read()
    except (asyncio.IncompleteReadError, ValueError) as e:
        raise OarError("the connection ended before the answer did") from e
