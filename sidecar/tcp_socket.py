"""Binding the HTTP door's port."""

from __future__ import annotations

import errno
import socket

from engine import PillionError
from sidecar.config import HttpConfig


class PortError(PillionError):
    """The port cannot be had; the message names it and the flag."""

    code = "port"


def listen(config: HttpConfig) -> socket.socket:
    """A bound, listening TCP socket. Raises PortError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM
        )[0]
    except OSError as error:
        raise PortError(
            f"{config.host} is not an address here ({error.strerror}); correct [http] host (--host)"
        ) from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        why = (
            "is taken by another program"
            if error.errno == errno.EADDRINUSE
            else f"cannot be used: {error.strerror}"
        )
        raise PortError(
            f"port {config.port} on {config.host} {why}; choose another with --port "
            "(0 picks a free one) or [http] port"
        ) from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """``http://host:port`` at which this machine reaches the listener."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
