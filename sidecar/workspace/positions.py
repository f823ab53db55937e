"""Where something is in a text, as a client counts (LSP 3.18, "Position" and "Range").

A client counts a line's characters in the units of its own position encoding; we count code
points. Lines end at ``\\n``, ``\\r\\n`` or ``\\r`` and nowhere else (`str.splitlines` would also
split at form feeds and U+2028, and every later line number would be off).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

Encoding = Literal["utf-8", "utf-16", "utf-32"]
UInteger = Annotated[int, Meta(ge=0, le=2**31 - 1)]

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)")


class Position(Struct, frozen=True):
    """Zero-based; `character` is in units of the connection's encoding."""

    line: UInteger
    character: UInteger


class Range(Struct, frozen=True):
    start: Position
    end: Position


def split_lines(text: str) -> tuple[str, ...]:
    """Lines with their ends. The last has none, so there is always at least one (maybe empty)."""
    if "\r" not in text:
        *whole, last = text.split("\n")
        return (*[line + "\n" for line in whole], last)
    lines = _LINE.findall(text)
    return (*lines, text[sum(map(len, lines)) :])


def without_end(line: str) -> str:
    """`line` without its line end."""
    if line.endswith("\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(("\n", "\r")) else line


def column_of(line: str, units: int, encoding: Encoding) -> int:
    """The code point at `units` into `line` (which has no end).

    Beyond the line is its end, and inside a character is its start, as LSP defaults.
    """
    if encoding == "utf-32" or line.isascii():
        return min(units, len(line))
    if encoding == "utf-8":
        return len(line.encode()[:units].decode(errors="ignore"))
    return len(line.encode("utf-16-le")[: 2 * units].decode("utf-16-le", errors="ignore"))


def units_of(text: str, encoding: Encoding) -> int:
    """How many units of `encoding` the characters of `text` take."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-8":
        return len(text.encode())
    return len(text.encode("utf-16-le")) // 2
