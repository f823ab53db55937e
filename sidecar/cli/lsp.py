"""`pillion lsp`: an editor's stdin and stdout, joined to the daemon's socket.

The bridge moves bytes and understands none of them, so whatever the daemon speaks the editor
gets, and a hundred editors share one model.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from typing import Annotated

import typer

from sidecar.cli.background import ensure_daemon
from sidecar.cli.connection import NotRunning, find_daemon
from sidecar.cli.options import ConfigFile
from sidecar.cli.terminal import note
from sidecar.config import load_config
from sidecar.runtime_dir import RuntimeDir

_READ_BYTES = 64 << 10


def command(
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Fail when no daemon is running.")
    ] = False,
    config: ConfigFile = None,
) -> None:
    """Speak the Language Server Protocol on stdin and stdout, for editors.

    Joins them to the running daemon, and starts one in the background when there is none.
    """
    settings = load_config(path=config)
    address = find_daemon(settings)
    if address is None:
        if no_start:
            raise NotRunning()
        address, _ = ensure_daemon(settings, {}, config)
    if sys.stdin.isatty():
        note("this is for editors: they write to stdin and read stdout; Ctrl-C ends it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
        try:
            daemon.connect(address.socket)
        except OSError:
            raise NotRunning("the daemon went away") from None
        lost = bridge(daemon, 0, 1)
    if lost and _dead(RuntimeDir.of(settings.daemon), address.pid):
        raise NotRunning("the daemon went away; start the language server again")


def _dead(runtime: RuntimeDir, pid: int) -> bool:
    """Whether the daemon hung up because it died; after `exit` it hangs up too, and lives on. The
    kernel closes what a dead process had open one by one, so its lock may go a moment later."""
    deadline = time.monotonic() + 0.5
    while runtime.holder() == pid:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def bridge(daemon: socket.socket, source: int, sink: int) -> bool:
    """Move bytes from the descriptor `source` to `daemon` and from `daemon` to `sink` until both
    ways are over or the reader is gone. Returns whether the daemon hung up first."""
    source_over = threading.Event()

    def upward() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(source, _READ_BYTES):
                daemon.sendall(data)
        source_over.set()
        with contextlib.suppress(OSError):
            daemon.shutdown(socket.SHUT_WR)

    # Nothing interrupts a read of stdin, so this thread is left to the end of the process.
    threading.Thread(target=upward, name="stdin", daemon=True).start()
    while data := _received(daemon):
        try:
            _write_all(sink, data)
        except OSError:
            return False
    return not source_over.is_set()


def _received(daemon: socket.socket) -> bytes:
    try:
        return daemon.recv(_READ_BYTES)
    except OSError:
        return b""


def _write_all(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]
