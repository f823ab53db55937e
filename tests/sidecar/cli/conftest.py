"""A command to type, and a daemon with a scripted engine for it to find."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pillion_command import Pillion

from engine import EngineClient
from engine.testing import FakeEngine
from sidecar.cli.private_daemon import daemon_in_thread
from sidecar.config import Config, load_config
from sidecar.runtime_dir import Address


@pytest.fixture
def pillion(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pillion:
    return Pillion(monkeypatch, capsys)


@pytest.fixture
def settings() -> Config:
    return load_config({"http.port": 0})


@pytest.fixture
def backend() -> FakeEngine:
    return FakeEngine(lambda request: "a reply")


@pytest.fixture
def daemon(settings: Config, backend: FakeEngine) -> Iterator[Address]:
    with daemon_in_thread(settings, EngineClient(backend)) as address:
        yield address
