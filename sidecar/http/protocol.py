"""uvicorn's HTTP/1.1 connection, with an end to patience.

uvicorn waits for ever for a request's head and answers broken HTTP in plain text. This adds a
deadline, so that idle connections cannot use up the daemon's, and an OpenAI error object.
"""

from __future__ import annotations

import asyncio

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from engine import RequestError
from sidecar.http.errors import error_body


class BoundedProtocol(H11Protocol):
    """Closes a connection on which nothing has been in progress for `patience` seconds or more
    (at most twice that)."""

    patience = 30.0

    # uvicorn narrows asyncio's signature, so this has to.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock with the connection."""
        super().connection_made(transport)
        # The exchange that was over when the reaper last looked (None before the first one).
        self._over: RequestResponseCycle | None = None
        self._reaper = self.loop.call_later(self.patience, self._reap)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reaper.cancel()
        super().connection_lost(exc)

    def _reap(self) -> None:
        if self.transport.is_closing():
            # Closed, yet the client does not take what is still buffered for it.
            self.transport.abort()
            return
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._over is self.cycle:
            self.transport.close()
        self._over = self.cycle if idle else None
        self._reaper = self.loop.call_later(self.patience, self._reap)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, unless an answer is already under way."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            error = RequestError("this is not a valid HTTP/1.1 request", code="invalid_http")
            body = msgspec.json.encode(error_body(error))
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            # The head was good and its application may be running: it has nobody to answer now.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
