"""The documents one client has open: immutable snapshots, kept in step by its changes.

Nothing here reads a disk: what the client did not open is not known.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from sidecar.workspace.positions import (
    Encoding,
    Position,
    Range,
    column_of,
    split_lines,
    without_end,
)

_ENDS = re.compile(r"[\r\n]")

log = logging.getLogger(__name__)

_BLOCK = 256
"""Lines are joined so many at a time."""


class Change(Struct, frozen=True):
    """`text` replaces `range`, or the whole document where there is no range."""

    text: str
    range: Range | None = None


class _Around:
    """The text above and below one line, joined once while that line is typed: versions of a
    document that differ in it only have the same."""

    __slots__ = ("_above", "_below", "line", "reach")

    def __init__(self, line: int, reach: int) -> None:
        self.line = line
        self.reach = reach
        self._above: str | None = None
        self._below: str | None = None

    def above(self, lines: tuple[str, ...]) -> str:
        """Whole lines, at least `reach` code points or all, and of each no more than that."""
        if self._above is None:
            parts, have, line, reach = list[str](), 0, self.line, self.reach
            while line > 0 and have < reach:
                start = max(line - _BLOCK, 0)
                parts.append("".join([one[-reach:] for one in lines[start:line]]))
                have += len(parts[-1])
                line = start
            self._above = "".join(reversed(parts))
        return self._above

    def below(self, lines: tuple[str, ...]) -> str:
        """Like `above`."""
        if self._below is None:
            parts, have, line, reach = list[str](), 0, self.line + 1, self.reach
            while line < len(lines) and have < reach:
                parts.append("".join([one[:reach] for one in lines[line : line + _BLOCK]]))
                have += len(parts[-1])
                line += _BLOCK
            self._below = "".join(parts)
        return self._below


_NOWHERE = _Around(-1, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One version of one open document. `lines` keep their ends (see `split_lines`).

    While a line is typed, only that line is another one in each version: all lines are put together
    when somebody asks for more than one of them, and a key costs the same in a file of any length.
    """

    uri: str
    version: int
    language: str
    _lines: tuple[str, ...]
    _typed: tuple[int, str] | None = None
    _around: _Around = field(default=_NOWHERE, repr=False)

    @classmethod
    def of(cls, text: str, *, uri: str = "", version: int = 0, language: str = "") -> Document:
        return cls(uri, version, language, split_lines(text))

    @property
    def lines(self) -> tuple[str, ...]:
        """All of them, each with its end."""
        # Another thread may ask, too: where nothing is typed, the lines are whole.
        if (typed := self._typed) is not None:
            at, line = typed
            lines = self._lines
            object.__setattr__(self, "_lines", (*lines[:at], line, *lines[at + 1 :]))
            object.__setattr__(self, "_typed", None)
        return self._lines

    @property
    def height(self) -> int:
        """How many lines there are."""
        return len(self._lines)

    def line(self, number: int) -> str:
        """One of `lines`."""
        typed = self._typed
        return typed[1] if typed is not None and typed[0] == number else self._lines[number]

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def locate(self, position: Position, encoding: Encoding) -> tuple[int, int]:
        """(line, code point) of `position`, clamped into the document."""
        if position.line >= self.height:
            return self.height - 1, len(without_end(self.line(self.height - 1)))
        line = without_end(self.line(position.line))
        return position.line, column_of(line, position.character, encoding)

    def before(self, line: int, column: int, reach: int) -> str:
        """The text that ends at (line, column): whole lines, at least `reach` code points or to
        the document's start, and never more of one long line than `reach`."""
        above = self._text_around(line, reach).above(self._others(line))
        text = above + self.line(line)[:column][-reach:]
        return text[text.rfind("\n", 0, max(len(text) - reach, 0)) + 1 :]

    def after(self, line: int, column: int, reach: int) -> str:
        """The text that starts at (line, column), bounded like `before`."""
        below = self._text_around(line, reach).below(self._others(line))
        text = self.line(line)[column:][:reach] + below
        end = text.find("\n", max(reach - 1, 0))
        return text[: end + 1] if end >= 0 else text

    def end_of_change(self, before: Document) -> tuple[int, int]:
        """Where this version last differs from an earlier one: the end of that line."""
        ours, theirs = self.lines, before.lines
        same, step = 0, _BLOCK
        # In blocks, because a key near the top of a long file comes through here, too.
        while step:
            end, other = len(ours) - same, len(theirs) - same
            if step <= min(end, other) and ours[end - step : end] == theirs[other - step : other]:
                same += step
            else:
                step //= 2
        line = max(len(ours) - 1 - same, 0)
        return line, len(without_end(self.lines[line]))

    def changed(self, change: Change, encoding: Encoding) -> Document:
        """This document after `change`, with the same version."""
        if change.range is None:
            return Document(self.uri, self.version, self.language, split_lines(change.text))
        first, last = sorted(
            (self.locate(change.range.start, encoding), self.locate(change.range.end, encoding))
        )
        start, end = first[0], last[0] + 1
        middle = self.line(start)[: first[1]] + change.text + self.line(last[0])[last[1] :]
        if start == last[0] and not _ENDS.search(change.text) and not middle.startswith("\n"):
            around = self._around if self._around.line == start else _NOWHERE
            others, typed = self._others(start), (start, middle)
            return Document(self.uri, self.version, self.language, others, typed, around)
        # A \r and a \n that the change brings together are one line end.
        if start > 0 and middle.startswith("\n") and self.lines[start - 1].endswith("\r"):
            start -= 1
            middle = self.lines[start] + middle
        # A middle that ends a line takes the place of whole lines; otherwise it is the last one.
        spliced = split_lines(middle)
        if end < len(self.lines):
            if middle.endswith("\r") and self.lines[end].startswith("\n"):
                spliced = split_lines(middle + self.lines[end])
                end += 1
            if spliced[-1] == "" and end < len(self.lines):
                spliced = spliced[:-1]
        lines = self.lines[:start] + spliced + self.lines[end:]
        return Document(self.uri, self.version, self.language, lines)

    def at_version(self, version: int) -> Document:
        """The same with another version."""
        typed = self._typed  # before the lines, which may be put together meanwhile
        return Document(self.uri, version, self.language, self._lines, typed, self._around)

    def _others(self, line: int) -> tuple[str, ...]:
        """All lines, of which the one may be another."""
        typed = self._typed
        return self._lines if typed is not None and typed[0] == line else self.lines

    def _text_around(self, line: int, reach: int) -> _Around:
        if self._around.line != line or self._around.reach != reach:
            object.__setattr__(self, "_around", _Around(line, reach))
        return self._around


class Documents:
    """What one client has open. Broken synchronisation is logged and ignored, never raised."""

    def __init__(self) -> None:
        self._open: dict[str, Document] = {}

    def __iter__(self) -> Iterator[Document]:
        return iter(self._open.values())

    def get(self, uri: str) -> Document | None:
        """The snapshot of an open document; None for everything else."""
        return self._open.get(uri)

    def open(self, uri: str, language: str, version: int, text: str) -> None:
        if uri in self._open:
            log.warning("%s was opened twice; taking the second text", uri)
        self._open[uri] = Document(uri, version, language, split_lines(text))

    def change(
        self, uri: str, version: int | None, changes: Sequence[Change], encoding: Encoding
    ) -> bool:
        """Apply `changes` in order. Returns whether the document moved."""
        document = self._open.get(uri)
        if document is None:
            log.warning("a change to %s, which is not open, was ignored", uri)
            return False
        if version is None:
            version = document.version + 1
        if version < document.version:
            log.warning(
                "a change of %s to version %d after version %d was ignored",
                uri,
                version,
                document.version,
            )
            return False
        for change in changes:
            document = document.changed(change, encoding)
        self._open[uri] = document.at_version(version)
        return True

    def close(self, uri: str) -> None:
        if self._open.pop(uri, None) is None:
            log.warning("%s was closed but is not open", uri)
