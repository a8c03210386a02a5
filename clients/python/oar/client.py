"""HTTP, blocking, with the standard library alone."""
from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.parse
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from oar import _wire
from oar._wire import Answer, Chunk, Messages, OarError


class Client:
    """One server. Each call has a connection of its own, so that a Client may be used by many threads.

        client = Client("http://127.0.0.1:8000")
        print(client.chat("Speak, what news?", max_tokens=64).text)
        for chunk in client.stream_chat("Speak, what news?"):
            print(chunk.text, end="")

    Options are those of the OpenAI interface (temperature, max_tokens, seed, stop, ...). Failures raise OarError.
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

    def ready(self) -> bool:
        try:
            connection, response = self._request("GET", "/v2/health/ready")
        except OSError:
            return False
        connection.close()
        return bool(response.status == 200)

    def models(self) -> List[str]:
        return [m["id"] for m in self._json("GET", "/v1/models")["data"]]

    def chat(self, messages: Messages, *, model: Optional[str] = None, **options: Any) -> Answer:
        return self._answer("/v1/chat/completions", _wire.chat_body(messages, self._name(model), False, options))

    def complete(self, prompt: Union[str, List[int]], *, model: Optional[str] = None, **options: Any) -> Answer:
        return self._answer("/v1/completions", _wire.completion_body(prompt, self._name(model), False, options))

    def stream_chat(self, messages: Messages, *, model: Optional[str] = None, **options: Any) -> Iterator[Chunk]:
        return self._stream("/v1/chat/completions", _wire.chat_body(messages, self._name(model), True, options))

    def stream_complete(self, prompt: Union[str, List[int]], *, model: Optional[str] = None, **options: Any) -> Iterator[Chunk]:
        return self._stream("/v1/completions", _wire.completion_body(prompt, self._name(model), True, options))

    def tokenize(self, text: str, *, model: Optional[str] = None) -> List[int]:
        body = {"prompt": text}
        if name := self._name(model):
            body["model"] = name
        tokens: List[int] = self._json("POST", "/tokenize", body)["tokens"]
        return tokens

    # The server wants a name of every request; without one given, the first that it serves.
    def _name(self, model: Optional[str]) -> str:
        if model is not None:
            return model
        if self._model is None:
            self._model = self.models()[0]
        return self._model

    def _request(self, method: str, path: str,
                 body: Optional[Dict[str, Any]] = None) -> Tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        host, port = self._url.hostname or "", self._url.port
        connection = (http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._tls) if self._tls
                      else http.client.HTTPConnection(host, port, timeout=self._timeout))
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = "Bearer " + self._key
        try:
            connection.request(method, self._url.path.rstrip("/") + path, None if body is None else json.dumps(body), headers)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _json(self, method: str, path: str, body: Optional[Dict[str, Any]] = None) -> Any:
        connection, response = self._request(method, path, body)
        try:
            text = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise _wire.parse_error(response.status, text)
        return json.loads(text)

    def _answer(self, path: str, body: Dict[str, Any]) -> Answer:
        return _wire.parse_answer(self._json("POST", path, body))

    def _stream(self, path: str, body: Dict[str, Any]) -> Iterator[Chunk]:
        connection, response = self._request("POST", path, body)
        try:  # closing the generator closes the connection, and that cancels the request
            if response.status != 200:
                raise _wire.parse_error(response.status, response.read())
            yield from _wire.parse_lines(response)
        except http.client.HTTPException as e:
            raise OarError(f"the stream broke: {e!r}") from e
        finally:
            connection.close()
