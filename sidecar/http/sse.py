"""Server-sent events: the outgoing half of a streamed reply."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.types import Send

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """One open stream. Every method waits while the client's receive window is full and raises
    TimeoutError once the client has read nothing for `stall` seconds."""

    def __init__(self, send: Send, *, stall: float) -> None:
        self._send = send
        self._stall = stall

    async def open(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def data(self, content: object, event: str = "") -> None:
        """Send `content` as the JSON of one event, with its name where it has one."""
        named = f"event: {event}\n".encode() if event else b""
        await self._write(named + b"data: " + msgspec.json.encode(content) + b"\n\n")

    async def comment(self, text: str) -> None:
        """Send what every client skips: it keeps the connection alive and tells people."""
        await self._write(f": {text}\n\n".encode())

    async def done(self) -> None:
        """Send the mark that OpenAI ends its streams with."""
        await self._write(b"data: [DONE]\n\n")

    async def close(self) -> None:
        await self._write(b"", more=False)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._stall):
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
