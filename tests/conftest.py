"""What every test gets: a home of its own, no network, and the real engine where it asks for it."""

from __future__ import annotations

import ipaddress
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio
from private_home import private_environment, short_folder

from engine import (
    CacheReport,
    EngineClient,
    EngineOptions,
    EngineStatus,
    Event,
    FileContent,
    GenerateRequest,
)
from engine.client import Backend, Codec

_online = False


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: the default tests must pass on a train."""
    if _online or event not in {"socket.connect", "socket.getaddrinfo"}:
        return
    address = arguments[1] if event == "socket.connect" else (arguments[0],)
    host = address[0] if isinstance(address, tuple) else None
    if host is None or host in {"localhost", ""}:
        return
    if isinstance(host, bytes):
        host = host.decode()
    try:
        local = ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        local = False
    if not local:
        raise AssertionError(f"a test that is not marked slow or clients reached for {host}")


def pytest_configure() -> None:
    # No test asserts a wall time: a busy machine must not fail one. CI tries the same examples at
    # each run, so that it judges the change; everybody else's runs look for new ones.
    same = os.environ.get("PILLION_TEST_EXAMPLES") == "same"
    hypothesis.settings.register_profile("pillion", deadline=None, derandomize=same)
    hypothesis.settings.load_profile("pillion")
    sys.addaudithook(_refuse_network)


@pytest.fixture(autouse=True)
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The test's own HOME; settings and state of whoever runs the tests stay out of it."""
    global _online
    folder = short_folder()
    environment = private_environment(folder)
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    _online = any(request.node.get_closest_marker(mark) for mark in ("slow", "clients"))
    yield folder
    _online = False
    shutil.rmtree(folder, ignore_errors=True)


class SharedBackend:
    """One loaded engine for many `EngineClient`s, one after the other.

    Loading takes seconds, while a client belongs to the event loop of one test. `stop` ends what
    the last client left open and keeps the engine.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._emit: Callable[[Event], None] = lambda event: None
        self._changed: Callable[[], None] = lambda: None
        self._started = False
        self._posted: list[str] = []

    @property
    def codec(self) -> Codec | None:
        return self._backend.codec

    def start(self, emit: Callable[[Event], None], changed: Callable[[], None]) -> None:
        self._emit, self._changed = emit, changed
        if not self._started:
            self._started = True
            self._backend.start(lambda event: self._emit(event), lambda: self._changed())

    def post(self, request: GenerateRequest) -> None:
        self._posted.append(request.id)
        self._backend.post(request)

    def cancel(self, request_id: str) -> None:
        self._backend.cancel(request_id)

    def files_changed(self, files: Sequence[FileContent]) -> None:
        self._backend.files_changed(files)

    def cache(self, action: str) -> Future[CacheReport]:
        return self._backend.cache(action)

    def status(self) -> EngineStatus:
        return self._backend.status()

    def stop(self) -> None:
        for request_id in self._posted:
            self._backend.cancel(request_id)
        self._posted.clear()
        deadline = time.monotonic() + 30
        while (status := self.status()).active or status.queued:
            assert time.monotonic() < deadline, f"the engine still works: {status}"
            time.sleep(0.01)


@pytest.fixture(scope="session")
def builtin_backend() -> Iterator[SharedBackend]:
    """The real engine on the built-in model, loaded once for the whole run."""
    from engine.engine import Engine

    backend = Engine(EngineOptions())
    yield SharedBackend(backend)
    backend.stop()


@pytest_asyncio.fixture
async def builtin_engine(builtin_backend: SharedBackend) -> AsyncIterator[EngineClient]:
    """A started client of the real engine on the built-in model, ready to generate."""
    client = EngineClient(builtin_backend)
    client.start()
    await client.ready()
    yield client
    await client.stop()
