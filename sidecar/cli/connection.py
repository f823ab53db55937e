"""A verb's line to the running daemon: JSON-RPC over its Unix socket, and chat over HTTP.

Blocking and small on purpose: a verb that asks one thing needs no event loop and no HTTP library.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.parse
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from engine import EngineError, ModelError, NotReady, PillionError, RequestError
from sidecar.cli.terminal import Loading
from sidecar.config import Config
from sidecar.runtime_dir import Address, RuntimeDir

if TYPE_CHECKING:
    import http.client

_INVALID_PARAMS = -32602
_READ_BYTES = 64 << 10


class NotRunning(PillionError):
    """There is no daemon to talk to, or no longer."""

    """There is no daemon to talk to."""

    code = "not_running"

    def __init__(self, said: str = "no daemon is running; `pillion serve` starts one") -> None:
        super().__init__(said)


def find_daemon(config: Config) -> Address | None:
    """The running daemon's address. A file that a crash left behind counts for nothing, also
    while the next daemon is about to write its own: its lock names another process."""
    runtime = RuntimeDir.of(config.daemon)
    address = runtime.read_address()
    return address if address is not None and runtime.holder() == address.pid else None


def require_daemon(config: Config) -> Address:
    """Raises NotRunning."""
    address = find_daemon(config)
    if address is None:
        raise NotRunning()
    return address


class Rpc:
    """One JSON-RPC connection. Use as a context manager."""

    def __init__(self, address: Address, *, timeout: float = 10.0) -> None:
        self._timeout = timeout
        self._ids = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(address.socket)
        except OSError:
            self._socket.close()
            raise NotRunning() from None
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> Rpc:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def call(
        self,
        method: str,
        params: object = None,
        *,
        timeout: float | None = None,
        notified: Callable[[str, Any], None] = lambda _method, _params: None,
    ) -> Any:
        """The result. notified: called with each notification that comes before it. Raises what the
        daemon's error stands for, NotRunning when it goes away, EngineError when it does not answer
        in time."""
        self._ids += 1
        body = msgspec.json.encode(
            {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params or {}}
        )
        self._socket.settimeout(self._timeout if timeout is None else timeout)
        try:
            self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            while (message := self._receive()).get("id") != self._ids or "method" in message:
                if "id" not in message:
                    notified(message["method"], message.get("params"))
        except TimeoutError:
            raise EngineError(f"the daemon did not answer {method} in time") from None
        except OSError:
            raise NotRunning("the daemon went away") from None
        if "error" in message:
            raise _rpc_error(message["error"])
        return message.get("result")

    def _receive(self) -> dict[str, Any]:
        length = 0
        while (line := self._stream.readline(_READ_BYTES).strip()) or not length:
            if not line:
                raise NotRunning("the daemon went away")
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        body = self._stream.read(length)
        if len(body) < length:
            raise NotRunning("the daemon went away")
        message: dict[str, Any] = msgspec.json.decode(body)
        return message


def _rpc_error(error: Mapping[str, Any]) -> PillionError:
    data = error.get("data") or {}
    code, said = data.get("code"), error["message"]
    if code == NotReady.code:
        return NotReady(said)
    if code == ModelError.code:
        return ModelError(said)
    if code == EngineError.code:
        return EngineError(said)
    if error["code"] == _INVALID_PARAMS or data.get("field") is not None:
        return RequestError(said, field=data.get("field"), code=code)
    return PillionError(said, code=code)


def wait_until_ready(address: Address) -> dict[str, Any]:
    """The daemon's status once its model is loaded, with progress meanwhile. Raises NotReady
    when it will not be."""
    with Rpc(address) as rpc:
        status: dict[str, Any] = rpc.call("pillion/status")
        if status["state"] == "loading":
            with Loading.shown(f"loading {address.model}") as loading:
                while status["state"] == "loading":
                    loading.show(status["detail"], status["progress"])
                    time.sleep(0.1)
                    status = rpc.call("pillion/status")
    if status["state"] != "ready":
        raise NotReady(f"the engine is {status['state']}: {status['detail']}")
    return status


def stream_chat(address: Address, body: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
    """The ``chat.completion.chunk`` objects of one streamed reply.

    Closing the iterator drops the connection, which frees the engine. Raises the error that the
    door answers with.
    """
    # `pillion status` has no use for it, and it takes longer to import than that verb takes.
    import http.client

    url = urllib.parse.urlsplit(address.url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=600)
    headers = {"Content-Type": "application/json"}
    if address.api_key is not None:
        headers["Authorization"] = f"Bearer {address.api_key}"
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with contextlib.closing(connection):
        try:
            connection.request("POST", "/v1/chat/completions", msgspec.json.encode(asked), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise _http_error(response.status, response.read())
            yield from _events(response)
        except TimeoutError:
            raise EngineError("the daemon did not answer in time") from None
        except (OSError, http.client.HTTPException):
            raise NotRunning("the daemon went away") from None


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Source of the framing: WHATWG HTML, "Server-sent events"; OpenAI ends with ``[DONE]``."""
    while line := response.readline():
        field, _, data = line.decode().rstrip("\r\n").partition(":")
        if field != "data":
            continue
        if data.strip() == "[DONE]":
            return
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            raise _error_of(chunk["error"], 500)
        yield chunk
    raise NotRunning("the daemon went away in the middle of the reply")


def _http_error(status: int, body: bytes) -> PillionError:
    try:
        return _error_of(msgspec.json.decode(body)["error"], status)
    except (msgspec.DecodeError, KeyError, TypeError):
        return EngineError(f"the daemon answered with status {status}")


def _error_of(error: Mapping[str, Any], status: int) -> PillionError:
    said, code = error["message"], error.get("code")
    if code == NotReady.code:
        return NotReady(said)
    if status < 500 or error.get("type") == "invalid_request_error":
        return RequestError(said, field=error.get("param"), code=code)
    return EngineError(said, code=code)
