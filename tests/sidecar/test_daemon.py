"""The process's life: its doors, its one lock, its endings."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import os
import resource
import signal
import socket
import stat
import threading
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine import EngineClient, EngineStatus, GenerateRequest
from engine.testing import FakeEngine
from sidecar.cli.connection import NotRunning, Rpc, stream_chat
from sidecar.config import Config, DaemonConfig, HttpConfig
from sidecar.daemon import Daemon
from sidecar.runtime_dir import Address, AlreadyRunning, RuntimeDir
from sidecar.services import Services
from sidecar.tcp_socket import PortError

ASK = {"messages": [{"role": "user", "content": "hello"}]}


class MortalEngine(FakeEngine):
    """Can fail while it loads, or die later."""

    failure = ""

    def status(self) -> EngineStatus:
        if self.failure:
            return EngineStatus(state="failed", detail=self.failure)
        return super().status()

    def fail(self, detail: str) -> None:
        self.failure = detail
        self._changed()


class Running:
    def __init__(self, config: Config, backend: FakeEngine) -> None:
        self.backend = backend
        self.opened: asyncio.Future[tuple[Services, Address]] = asyncio.Future()
        daemon = Daemon(config, EngineClient(backend))
        self.code = asyncio.create_task(
            daemon.run(lambda services, address: self.opened.set_result((services, address)))
        )

    async def doors(self) -> tuple[Services, Address]:
        await asyncio.wait({self.opened, self.code}, return_when=asyncio.FIRST_COMPLETED)
        if self.code.done():
            await self.code
        return self.opened.result()

    async def end(self) -> int:
        (await self.doors())[0].shutdown()
        return await self.code


def config(home: Path, **http: Any) -> Config:
    return Config(
        daemon=DaemonConfig(runtime_dir=str(home / "r")), http=HttpConfig(**{"port": 0} | http)
    )


@contextlib.asynccontextmanager
async def running(settings: Config, backend: FakeEngine) -> AsyncIterator[tuple[Running, Address]]:
    daemon = Running(settings, backend)
    _, address = await daemon.doors()
    try:
        yield daemon, address
    finally:
        if not daemon.code.done():
            await daemon.end()


def get(url: str, path: str) -> tuple[int, Any]:
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def call(address: Address, method: str) -> Any:
    with Rpc(address) as rpc:
        return rpc.call(method)


def chat(address: Address) -> str:
    chunks = list(stream_chat(address, ASK))
    return "".join(choice["delta"].get("content") or "" for c in chunks for choice in c["choices"])


async def test_both_doors_answer_while_the_model_loads(home: Path) -> None:
    loaded = threading.Event()
    async with running(config(home), FakeEngine("fine", loading=loaded)) as (daemon, address):
        status = await asyncio.to_thread(call, address, "pillion/status")
        assert status["state"] == "loading"
        assert status["pid"] == os.getpid()
        assert status["socket"] == address.socket
        code, health = await asyncio.to_thread(get, address.url, "/health")
        assert code == 503
        assert health["url"] == address.url
        loaded.set()
        services, _ = await daemon.doors()
        await services.engine.ready()
        assert await asyncio.to_thread(chat, address) == "fine"


async def test_what_it_leaves_for_its_clients_and_removes(home: Path) -> None:
    runtime = RuntimeDir(home / "r")
    async with running(config(home, api_key="k"), FakeEngine()) as (daemon, address):
        assert runtime.read_address() == address
        assert address.pid == runtime.holder() == os.getpid()
        assert address.api_key == "k"
        for path in (runtime.socket, runtime.address, runtime.lock):
            assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert stat.S_IMODE(runtime.path.lstat().st_mode) == 0o700
        assert await daemon.end() == 0
    assert [path.name for path in runtime.path.iterdir()] == ["daemon.lock"]
    assert runtime.holder() is None


async def test_second_daemon_is_refused_and_the_first_serves_on(home: Path) -> None:
    async with running(config(home), FakeEngine("still here")) as (_, address):
        with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
            await Running(config(home), FakeEngine()).doors()
        assert await asyncio.to_thread(chat, address) == "still here"


async def test_takes_over_what_a_crash_left(home: Path) -> None:
    runtime = RuntimeDir(home / "r")
    runtime.create()
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(runtime.socket))
    runtime.address.write_text("{}")
    runtime.lock.write_text("999999\n")
    async with running(config(home), FakeEngine()) as (_, address):
        assert (await asyncio.to_thread(call, address, "pillion/status"))["state"] == "ready"


async def test_taken_port_leaves_nothing_behind(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortError, match=f"port {port} "):
            await Running(config(home, port=port), FakeEngine()).doors()
    runtime = RuntimeDir(home / "r")
    assert runtime.holder() is None
    assert not runtime.socket.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_it_cleanly(home: Path, number: signal.Signals) -> None:
    async with running(config(home), FakeEngine()) as (daemon, _):
        os.kill(os.getpid(), number)
        assert await daemon.code == 0
    assert not RuntimeDir(home / "r").socket.exists()


async def test_shutdown_by_a_client_is_answered_first(home: Path) -> None:
    async with running(config(home), FakeEngine()) as (daemon, address):
        assert await asyncio.to_thread(call, address, "pillion/shutdown") is None
        assert await daemon.code == 0
        with pytest.raises(NotRunning):
            Rpc(address)


async def test_open_requests_may_finish(home: Path) -> None:
    begun = threading.Event()

    def reply(_request: GenerateRequest) -> str:
        begun.set()
        return "0123456789"

    backend = FakeEngine(reply, round_seconds=0.02)
    async with running(config(home), backend) as (daemon, address):
        asked = asyncio.create_task(asyncio.to_thread(chat, address))
        await asyncio.to_thread(begun.wait)
        assert await daemon.end() == 0
        assert await asked == "0123456789"


async def test_idle_and_stuck_clients_do_not_hold_it_up(home: Path) -> None:
    async with running(config(home), FakeEngine()) as (daemon, address):
        place = urllib.parse.urlsplit(address.url)
        idle = socket.create_connection((place.hostname, place.port))
        half = socket.create_connection((place.hostname, place.port))
        half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
        editor = socket.socket(socket.AF_UNIX)
        editor.connect(address.socket)
        editor.sendall(b"Content-Length: 5\r\n\r\n{")
        with idle, half, editor:
            async with asyncio.timeout(10):
                assert await daemon.end() == 0
            assert editor.recv(100) == b""


async def test_model_that_cannot_be_loaded(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded = threading.Event()
    backend = MortalEngine(loading=loaded)
    async with running(config(home), backend) as (daemon, _):
        with caplog.at_level(logging.ERROR):
            backend.fail("config.json is missing")
            assert await daemon.code == 3
    assert "builtin could not be loaded: config.json is missing" in caplog.text
    assert "pillion doctor" in caplog.text
    assert not RuntimeDir(home / "r").address.exists()


async def test_engine_death_ends_it_with_3(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = MortalEngine()
    async with running(config(home), backend) as (daemon, address):
        assert await asyncio.to_thread(chat, address) == "ok"
        with caplog.at_level(logging.ERROR):
            backend.fail("out of memory")
            assert await daemon.code == 3
    assert "the engine died: out of memory" in caplog.text


async def test_many_clients_at_once(home: Path) -> None:
    backend = FakeEngine(lambda request: "x" * 5)
    async with running(config(home), backend) as (_, address):
        replies = [asyncio.to_thread(chat, address) for _ in range(4)]
        states = [asyncio.to_thread(call, address, "pillion/status") for _ in range(4)]
        answers = await asyncio.gather(*replies, *states)
        assert answers[:4] == ["x" * 5] * 4
        assert {status["state"] for status in answers[4:]} == {"ready"}


async def test_as_many_files_may_be_open_as_clients_may_come(home: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        async with running(config(home), MortalEngine()):
            now = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert now == (min(4096, hard), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
