"""What goes back to one client: framed, in order, bounded, and never an exception."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from sidecar.lsp.framing import frame

MAX_UNSENT_BYTES = 8 << 20
_CLOSE_SECONDS = 2.0

log = logging.getLogger(__name__)


class Outbox:
    """Owns the writing half of a connection.

    Writes are synchronous, so answers keep their order and a late one costs nothing. The bound
    replaces waiting: a client that does not read is cut off when `max_unsent` bytes wait for it,
    before it can grow the daemon's memory.
    """

    def __init__(self, writer: asyncio.StreamWriter, *, max_unsent: int = MAX_UNSENT_BYTES) -> None:
        self._writer = writer
        self._max_unsent = max_unsent
        self._open = True

    def send(self, body: bytes) -> None:
        """Queue one message; dropped when the client is gone."""
        if not self._open or self._writer.is_closing():
            return
        unsent = self._writer.transport.get_write_buffer_size()
        if unsent > self._max_unsent:
            log.warning("a client does not read: %d bytes wait for it; closing it", unsent)
            self.abort()
            return
        try:
            self._writer.write(frame(body))
        except (OSError, RuntimeError):  # the transport closed under us
            self._open = False

    def abort(self) -> None:
        """Close at once; what was not sent is lost. The reading half sees the end too."""
        self._open = False
        self._writer.transport.abort()

    async def close(self) -> None:
        """Send what is queued, then close. A client that does not read it in time loses it."""
        self._open = False
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()
        except (OSError, RuntimeError):
            pass  # gone already
