"""A fake engine whose state a test tells, so that editors can be seen to show each."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engine import EngineStatus, GenerateRequest
from engine.messages import Event
from engine.testing import FakeEngine


class ToldEngine(FakeEngine):
    """told: a file with fields of `EngineStatus`, as `tell` writes them; they go over the fake's
    own, while there is such a file."""

    def __init__(self, told: Path, reply: Callable[[GenerateRequest], str], **options: Any) -> None:
        super().__init__(reply, **options)
        self._told = told

    def start(self, emit: Callable[[Event], None], changed: Callable[[], None]) -> None:
        super().start(emit, changed)
        threading.Thread(target=self._follow, daemon=True).start()

    def status(self) -> EngineStatus:
        status = super().status()
        with contextlib.suppress(FileNotFoundError):
            status = msgspec.structs.replace(status, **msgspec.json.decode(self._told.read_bytes()))
        return status

    def _follow(self) -> None:
        seen = self.status()
        while True:
            time.sleep(0.05)
            if (now := self.status()) != seen:
                seen = now
                self._changed()


def tell(told: Path, **fields: Any) -> None:
    """From now on the engine's status has these; without any it is the fake's own again."""
    if not fields:
        told.unlink(missing_ok=True)
        return
    fresh = told.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(fields))
    fresh.replace(told)
