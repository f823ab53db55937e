"""Starting `fake_openai`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from sidecar.jobs.race.server_process import ServerProcess, free_port

SCRIPT = Path(__file__).with_name("fake_openai.py")


@contextlib.contextmanager
def fake_server(mode: str, *, seconds: float = 20.0) -> Iterator[ServerProcess]:
    """A running one."""
    server = start(mode, seconds=seconds)
    try:
        yield server
    finally:
        server.stop()


def start(mode: str, *, seconds: float = 20.0) -> ServerProcess:
    """What `ServerProcess.start` does with it."""
    port = free_port()
    return ServerProcess.start(
        "fake",
        [sys.executable, "-P", str(SCRIPT), str(port), mode],
        port=port,
        environment=os.environ,
        seconds=seconds,
    )
