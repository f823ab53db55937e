"""`pillion lsp` between its two ends: bytes, hang-ups, and what a child process inherits."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.cli.background import child_environment
from sidecar.cli.lsp import bridge


class Ends:
    """editor_in / editor_out: the editor's ends of stdin and stdout; `daemon`: the daemon's end
    of the socket."""

    def __init__(self) -> None:
        source, self.editor_in = os.pipe()
        self.editor_out, sink = os.pipe()
        self.daemon, ours = socket.socketpair()
        self.daemon.settimeout(10)
        self.lost: bool | None = None
        self._open = {source, sink, self.editor_in, self.editor_out}

        def run() -> None:
            with ours:
                self.lost = bridge(ours, source, sink)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def over(self) -> bool | None:
        """What `bridge` returned, once it has."""
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.lost

    def shut(self, descriptor: int) -> None:
        self._open.remove(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        self.daemon.close()
        self._thread.join(10)
        for descriptor in list(self._open):
            self.shut(descriptor)


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def received(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(1 << 16):
        data += piece
    return data


def test_bytes_pass_unchanged_both_ways(ends: Ends) -> None:
    sent = os.urandom(1 << 20)

    def write() -> None:
        view = memoryview(sent)
        while view:
            view = view[os.write(ends.editor_in, view) :]
        ends.shut(ends.editor_in)

    writer = threading.Thread(target=write)
    writer.start()
    assert received(ends.daemon) == sent
    writer.join()
    # The editor's end of input leaves the way back open: the last answers are still to come.
    ends.daemon.sendall(b"\x00answer\r\n")
    assert os.read(ends.editor_out, 100) == b"\x00answer\r\n"
    ends.daemon.close()
    assert ends.over() is False


def test_a_daemon_that_hangs_up_is_noticed_at_once(ends: Ends) -> None:
    ends.daemon.close()
    assert ends.over() is True


def test_an_editor_that_stops_reading_ends_it(ends: Ends) -> None:
    ends.shut(ends.editor_out)
    ends.daemon.sendall(b"x")
    assert ends.over() is False


def test_a_child_inherits_nothing_of_the_working_directory(home: Path) -> None:
    environ = {"PYTHONPATH": f":.:{home}:lib", "PILLION_CACHE": "cache", "OTHER": "kept"}
    child = child_environment(environ, {"http.api_key": "k", "engine.fast": True}, Path("c.toml"))
    assert child["PYTHONPATH"] == str(home)
    assert child["PYTHONSAFEPATH"] == "1"
    assert child["PILLION_HTTP_API_KEY"] == "k"
    assert child["PILLION_ENGINE_FAST"] == "true"
    assert child["PILLION_CONFIG"] == str(Path.cwd() / "c.toml")
    assert child["PILLION_CACHE"] == str(Path.cwd() / "cache")
    assert child["OTHER"] == "kept"
    assert "PYTHONPATH" not in child_environment({"PYTHONPATH": ""}, {}, None)
