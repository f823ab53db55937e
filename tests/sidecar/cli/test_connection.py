"""A verb's connection, to daemons that misbehave or go away."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import EngineError, ModelError, NotReady, PillionError, RequestError
from sidecar.cli.connection import NotRunning, Rpc, find_daemon, stream_chat
from sidecar.config import load_config
from sidecar.runtime_dir import Address, RuntimeDir


@contextlib.contextmanager
def answering(listener: socket.socket, answer: bytes) -> Iterator[None]:
    """One client gets `answer` to the first thing that it sends, then the end."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            # Closing with unread bytes would reset the connection instead of ending it.
            while not connection.recv(1 << 16).endswith(b"}"):
                pass
            connection.sendall(answer)

    listener.listen()
    thread = threading.Thread(target=serve)
    thread.start()
    with listener:
        yield
    thread.join(10)


def rpc(home: Path, answer: bytes) -> Any:
    address = Address(pid=1, socket=str(home / "s"), url="", version="", model="m")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address.socket)
    with answering(listener, answer), Rpc(address) as connection:
        return connection.call("pillion/status")


def framed(*messages: dict[str, Any]) -> bytes:
    bodies = [json.dumps(message).encode() for message in messages]
    return b"".join(b"content-length: %d\r\n\r\n%b" % (len(body), body) for body in bodies)


def test_what_is_not_the_answer_is_passed_over(home: Path) -> None:
    noise = [{"method": "window/logMessage"}, {"id": 1, "method": "a/request"}, {"id": 7}]
    assert rpc(home, framed(*noise, {"id": 1, "result": {"a": 1}})) == {"a": 1}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": -32602, "message": "m", "data": {"field": "f"}}, RequestError),
        ({"code": -32803, "message": "m", "data": {"code": "not_ready"}}, NotReady),
        ({"code": -32603, "message": "m", "data": {"code": "model_error"}}, ModelError),
        ({"code": -32603, "message": "m", "data": {"code": "engine_error"}}, EngineError),
        ({"code": -32603, "message": "m"}, PillionError),
    ],
)
def test_errors_keep_their_kind(
    home: Path, error: dict[str, Any], kind: type[PillionError]
) -> None:
    with pytest.raises(PillionError, match="m") as raised:
        rpc(home, framed({"id": 1, "error": error}))
    assert type(raised.value) is kind


@pytest.mark.parametrize("answer", [b"", b"Content-Length: 50\r\n\r\n{"])
def test_daemon_that_goes_away(home: Path, answer: bytes) -> None:
    with pytest.raises(NotRunning, match="the daemon went away"):
        rpc(home, answer)


def test_no_daemon(home: Path) -> None:
    address = Address(
        pid=1, socket=str(home / "none"), url="http://127.0.0.1:1", version="", model=""
    )
    with pytest.raises(NotRunning, match="pillion serve"):
        Rpc(address)
    with pytest.raises(NotRunning, match="went away"):
        list(stream_chat(address, {}))


def chat(answer: bytes) -> list[dict[str, Any]]:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with answering(listener, answer):
        return list(stream_chat(Address(pid=1, socket="", url=url, version="", model=""), {}))


HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


def test_events_up_to_done() -> None:
    events = (
        b': ping\n\nevent: x\ndata: {"a": 1}\r\n\r\ndata:{"a": 2}\n\ndata: [DONE]\n\ndata: 3\n\n'
    )
    assert chat(HEAD + events) == [{"a": 1}, {"a": 2}]


def test_reply_that_breaks_off() -> None:
    with pytest.raises(NotRunning, match="in the middle of the reply"):
        chat(HEAD + b'data: {"a": 1}\n\n')


def test_error_in_the_stream() -> None:
    with pytest.raises(EngineError, match="it died"):
        chat(HEAD + b'data: {"error": {"message": "it died", "code": "engine_error"}}\n\n')


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, b'{"error": {"message": "m", "param": "top_p"}}', RequestError),
        (503, b'{"error": {"message": "m", "code": "not_ready"}}', NotReady),
        (500, b'{"error": {"message": "m"}}', EngineError),
        (502, b"<html>", EngineError),
    ],
)
def test_refusals(status: int, body: bytes, kind: type[PillionError]) -> None:
    with pytest.raises(PillionError) as raised:
        chat(b"HTTP/1.1 %d X\r\nConnection: close\r\n\r\n%b" % (status, body))
    assert type(raised.value) is kind


def test_an_address_that_a_crash_left_is_not_the_next_daemons() -> None:
    settings = load_config()
    runtime = RuntimeDir.of(settings.daemon)
    runtime.create()
    stale = Address(pid=999_999, socket=str(runtime.socket), url="", version="", model="m")
    runtime.write_address(stale)
    assert find_daemon(settings) is None
    with runtime.locked():
        assert find_daemon(settings) is None
        runtime.write_address(msgspec.structs.replace(stale, pid=os.getpid()))
        assert find_daemon(settings) is not None
    assert find_daemon(settings) is None
