"""Binding the daemon's Unix socket: private from its first moment, and never another's."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from engine import PillionError

# sizeof(sockaddr_un.sun_path), less the closing NUL: unix(7); sys/un.h on macOS.
LONGEST_PATH = 103 if sys.platform == "darwin" else 107


class SocketError(PillionError):
    """The socket cannot be bound; the message names its path."""

    code = "socket"


@contextlib.contextmanager
def bound(path: Path) -> Iterator[socket.socket]:
    """A listening socket at `path` with mode 0600, removed again afterwards.

    The caller holds the daemon's lock, so a socket file that nobody listens on was left by a
    crash and is replaced. One that answers, and any other kind of file, is left alone. Raises
    SocketError.
    """
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise SocketError(
            f"{path} is {len(os.fsencode(path))} bytes long and a socket's path may have "
            f"{LONGEST_PATH}; name a shorter folder in [daemon] runtime_dir "
            "(PILLION_DAEMON_RUNTIME_DIR)"
        )
    _clear(path)
    listener = _listen(path)
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise SocketError(f"{path}: cannot listen here: {error.strerror}") from None
    finally:
        os.umask(before)
    listener.setblocking(False)
    return listener


def _clear(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketError(f"{path} is in the way and is not a socket; move it elsewhere")
    if answers(path):
        raise SocketError(f"another program listens on {path}; end it first")
    path.unlink(missing_ok=True)


def answers(path: Path) -> bool:
    """Whether somebody listens on the socket at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(os.fspath(path))
        except TimeoutError:
            return True
        except OSError:
            return False
    return True
