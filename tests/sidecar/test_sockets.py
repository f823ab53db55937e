"""Binding the Unix socket and the HTTP port."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from sidecar import tcp_socket, unix_socket
from sidecar.config import HttpConfig
from sidecar.tcp_socket import PortError
from sidecar.unix_socket import LONGEST_PATH, SocketError


@pytest.fixture
def path(home: Path) -> Path:
    return home / "s.sock"


def test_private_from_its_first_moment_and_removed(path: Path) -> None:
    before = os.umask(0)
    try:
        with unix_socket.bound(path):
            assert stat.S_IMODE(path.lstat().st_mode) == 0o600
            assert unix_socket.answers(path)
    finally:
        assert os.umask(before) == 0
    assert not path.exists()


def test_removed_after_a_failure_too(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), unix_socket.bound(path):
        raise ZeroDivisionError
    assert not path.exists()


def test_stale_socket_is_taken_over(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(path))
    assert path.exists()
    assert not unix_socket.answers(path)
    with unix_socket.bound(path):
        assert unix_socket.answers(path)


def test_live_socket_is_left_alone(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(SocketError, match="another program listens on"):
            with unix_socket.bound(path):
                pass
        assert unix_socket.answers(path)


def test_a_file_in_the_way_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(SocketError, match="is not a socket"), unix_socket.bound(path):
        pass
    assert path.read_text() == "precious"


def test_a_link_in_the_way_is_not_followed(path: Path, home: Path) -> None:
    target = home / "t.sock"
    with unix_socket.bound(target):
        path.symlink_to(target)
        with pytest.raises(SocketError, match="is not a socket"), unix_socket.bound(path):
            pass
        assert unix_socket.answers(target)


def test_longest_path(home: Path) -> None:
    fits = home / ("s" * (LONGEST_PATH - len(str(home)) - 1))
    assert len(os.fsencode(fits)) == LONGEST_PATH
    with unix_socket.bound(fits):
        assert unix_socket.answers(fits)
    with pytest.raises(SocketError, match=f"may have {LONGEST_PATH}; name a shorter folder"):
        with unix_socket.bound(Path(f"{fits}x")):
            pass


def test_missing_folder(home: Path) -> None:
    with pytest.raises(SocketError, match="cannot listen here: No such file"):
        with unix_socket.bound(home / "none" / "s"):
            pass


def test_port_zero_picks_one() -> None:
    with tcp_socket.listen(HttpConfig(port=0)) as listener:
        port = listener.getsockname()[1]
        assert port > 0
        assert tcp_socket.url_of(listener) == f"http://127.0.0.1:{port}"


def test_taken_port() -> None:
    with tcp_socket.listen(HttpConfig(port=0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortError, match=f"port {port} on 127.0.0.1 is taken.*--port"):
            tcp_socket.listen(HttpConfig(port=port))


def test_wildcard_is_reached_through_loopback() -> None:
    with tcp_socket.listen(HttpConfig(host="0.0.0.0", port=0)) as listener:
        assert tcp_socket.url_of(listener).startswith("http://127.0.0.1:")
