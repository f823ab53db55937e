"""LSP's base protocol: `Content-Length` headers around JSON bodies, read with bounds.

Source: Language Server Protocol 3.18, "Base Protocol". Clients in the wild write header names in
any case, and a stray client may speak HTTP or nothing known, so a broken header is answered and
never waited on.
"""

from __future__ import annotations

import asyncio
import re

MAX_HEADER_BYTES = 16 << 10
MAX_BODY_BYTES = 64 << 20
_READ_BYTES = 64 << 10
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


class FramingError(Exception):
    """The byte stream is not framed as LSP; `resync` tells whether the next frame is findable."""

    def __init__(self, message: str, *, resync: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.resync = resync


class FrameReader:
    """Cuts a stream into message bodies. Holds at most one header, one body and one read."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        *,
        max_header: int = MAX_HEADER_BYTES,
        max_body: int = MAX_BODY_BYTES,
    ) -> None:
        self._reader = reader
        self._max_header = max_header
        self._max_body = max_body
        self._buffer = bytearray()

    async def next(self) -> bytes | None:
        """The next body; None when the stream ended between two frames.

        Raises FramingError. With `resync` only that frame is lost and the next call goes on;
        without, nothing that follows can be told from noise and the connection should close.
        """
        header = await self._header()
        if header is None:
            return None
        length = _content_length(header)
        if length > self._max_body:
            raise FramingError(
                f"Content-Length: {length} bytes is over the limit of {self._max_body}"
            )
        body = await self._body(length)
        _check_header(header)
        return body

    async def _header(self) -> bytes | None:
        while True:
            # Blank lines between frames are harmless, and some clients send them.
            while self._buffer.startswith((b"\r", b"\n")):
                del self._buffer[:1]
            found = _BLANK_LINE.search(self._buffer)
            if (found.start() if found else len(self._buffer)) > self._max_header:
                raise FramingError(f"the header is over the limit of {self._max_header} bytes")
            if found:
                header = bytes(self._buffer[: found.start()])
                del self._buffer[: found.end()]
                return header
            if not await self._fill():
                if self._buffer:
                    raise FramingError("the connection ended inside a header")
                return None

    async def _body(self, length: int) -> bytes:
        while len(self._buffer) < length:
            if not await self._fill():
                raise FramingError(
                    f"the connection ended inside a body: {len(self._buffer)} of {length} bytes"
                )
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    async def _fill(self) -> bool:
        data = await self._reader.read(_READ_BYTES)
        self._buffer += data
        return bool(data)


def frame(body: bytes) -> bytes:
    """`body` with the header LSP wants in front of it."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _fields(header: bytes) -> list[tuple[bytes, bytes]]:
    """(lower-case name, value) of each line; a line without a colon has an empty name."""
    fields = []
    for line in header.splitlines():
        name, colon, value = line.partition(b":")
        fields.append((name.strip().lower() if colon else b"", value.strip() if colon else line))
    return fields


def _content_length(header: bytes) -> int:
    values = {value for name, value in _fields(header) if name == b"content-length"}
    if not values:
        raise FramingError("the header has no Content-Length")
    value = values.pop()
    # int() alone would take "+5", "1_0" and other scripts' digits.
    if values or not re.fullmatch(rb"[0-9]{1,18}", value):
        raise FramingError(f"Content-Length is not one number of bytes: {_shown(value)}")
    return int(value)


def _check_header(header: bytes) -> None:
    """Refuse a frame whose body was found but whose header says something we cannot honour."""
    for name, value in _fields(header):
        if not name:
            raise FramingError(f"not a header line: {_shown(value)}", resync=True)
        if name == b"content-type":
            charset = re.search(rb"charset\s*=\s*\"?([\w-]+)", value, re.IGNORECASE)
            if charset and charset[1].lower() not in (b"utf-8", b"utf8"):
                raise FramingError(
                    f"Content-Type: the charset must be utf-8, got {_shown(charset[1])}",
                    resync=True,
                )


def _shown(value: bytes) -> str:
    return repr(value[:40].decode("ascii", "replace"))
