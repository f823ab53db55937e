"""What was suggested lately, so that typing it, or taking a part of it, needs no model. Pure."""

from __future__ import annotations

import itertools
import re

import msgspec
from msgspec import Struct

from sidecar.jobs.suggestion import Gap, settle

KEPT = 64
"""Suggestions of one client; each holds two stretches of its document."""
_NEAR = 64
_LINE_END = re.compile(r"\r\n|\n|\r")
# What an editor closes by itself, also on a line of its own.
_CLOSED = re.compile(r"""[\s)\]}>"'`;]{1,64}""")


class Answer(Struct, frozen=True, kw_only=True):
    """texts: what to insert at the cursor, the likeliest first; none where nothing was worth it.
    asked: how many alternatives were looked for."""

    texts: tuple[str, ...]
    asked: int


class Cursor(Struct, frozen=True, kw_only=True):
    """A place in a document, and what is around it. line, column: zero-based, in code points.
    context: what else an answer is made from."""

    document: str
    line: int
    column: int
    prefix: str
    suffix: str
    context: object = None

    def behind(self, text: str) -> Cursor:
        """Where the cursor is when `text` was inserted."""
        ends = list(_LINE_END.finditer(text))
        column = len(text) - ends[-1].end() if ends else self.column + len(text)
        return msgspec.structs.replace(
            self, line=self.line + len(ends), column=column, prefix=self.prefix + text
        )


# The lines from the cursor to the end of the longest text, the cursor's column, the characters that
# the texts begin with: of most entries no more is looked at.
_Entry = tuple[int, int, int, str, Cursor, Answer]


class SuggestionMemory:
    """Least recently used ones are forgotten first.

    reach: how many characters on each side of the cursor decide what is suggested; only those are
    compared.
    """

    def __init__(self, reach: int) -> None:
        self._reach = reach
        self._entries: dict[int, _Entry] = {}
        self._keys = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def remember(self, cursor: Cursor, answer: Answer) -> None:
        cursor = self._within_reach(cursor)
        lines = max((len(_LINE_END.findall(text)) for text in answer.texts), default=0)
        first = "".join([text[:1] for text in answer.texts])
        entry = cursor.line, cursor.line + lines, cursor.column, first, cursor, answer
        self._entries[next(self._keys)] = entry
        if len(self._entries) > KEPT:
            del self._entries[next(iter(self._entries))]

    def recall(self, cursor: Cursor) -> Answer | None:
        """What is left of a suggestion that was begun, or made here from the same context. None
        where none is known."""
        cursor = self._within_reach(cursor)
        line, column, prefix = cursor.line, cursor.column, cursor.prefix
        for key, (top, bottom, left, first, then, answer) in reversed(self._entries.items()):
            if not top <= line <= bottom:
                continue
            # Most that are left are of the same line, and of another text.
            if line == top:
                at = left - column
                if at > 0 or (at and prefix[at : at + 1 or None] not in first):
                    continue
            if then.document != cursor.document:
                continue
            found = self._left_of(then, answer, cursor)
            if found is not None:
                self._entries[next(self._keys)] = self._entries.pop(key)
                return found
        return None

    def forget(self, document: str) -> None:
        for key, (*_, cursor, _answer) in list(self._entries.items()):
            if cursor.document == document:
                del self._entries[key]

    def _within_reach(self, cursor: Cursor) -> Cursor:
        if len(cursor.prefix) <= self._reach and len(cursor.suffix) <= self._reach:
            return cursor
        return msgspec.structs.replace(
            cursor, prefix=cursor.prefix[-self._reach :], suffix=cursor.suffix[: self._reach]
        )

    def _left_of(self, then: Cursor, answer: Answer, now: Cursor) -> Answer | None:
        if _same_place(then, now):
            same = then.prefix == now.prefix and then.suffix == now.suffix
            return answer if same and then.context == now.context else None
        left = [text for text in answer.texts if self._is_typed(then, text, now)]
        if not left:
            return None
        closed = _closed(then.suffix, now.suffix, self._reach)
        if closed is None:
            return None
        left = [text[_typed(then, text, now) :] for text in left]
        if closed:
            # What the editor closed stands behind the cursor now.
            gap = Gap(now.prefix, now.suffix, "always")
            left = [settle(text, gap, "stop").text for text in left]
        kept = tuple(dict.fromkeys(text for text in left if text.strip()))
        return Answer(texts=kept, asked=answer.asked) if kept else None

    def _is_typed(self, then: Cursor, text: str, now: Cursor) -> bool:
        length = _typed(then, text, now)
        if not 0 < length <= len(text):
            return False
        typed = text[:length]
        return now.prefix.endswith(typed) and (then.prefix + typed)[-self._reach :] == now.prefix


def _same_place(one: Cursor, other: Cursor) -> bool:
    return (one.line, one.column, one.document) == (other.line, other.column, other.document)


def _typed(then: Cursor, text: str, now: Cursor) -> int:
    """How much of `text` is between the two places, if it is what was typed; else nothing."""
    if now.line == then.line:
        return now.column - then.column
    ends = itertools.islice(_LINE_END.finditer(text), now.line - then.line - 1, None)
    end = next(ends, None)
    return end.end() + now.column if end is not None else 0


def _closed(before: str, now: str, reach: int) -> str | None:
    """What an editor put behind the cursor, often nothing; None where the suffix is another."""
    if now == before:
        return ""
    could = _CLOSED.match(now)
    for length in range(1, len(could[0]) + 1 if could else 1):
        if now.startswith(before[:_NEAR], length) and now == (now[:length] + before)[:reach]:
            return now[:length]
    return None
