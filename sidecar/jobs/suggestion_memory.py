"""What was suggested lately, so that typing it, or taking a part of it, needs no model. Pure."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator

from msgspec import Struct

from sidecar.jobs.suggestion import Gap, settle

KEPT = 64
"""Suggestions of one client; each holds two stretches of its document."""
_ANCHOR = 64
# What an editor closes by itself, also on a line of its own.
_CLOSED = re.compile(r"""[\s)\]}>"'`;]{1,64}""")


class Answer(Struct, frozen=True, kw_only=True):
    """texts: what to insert at the cursor, the likeliest first; none where nothing was worth it.
    asked: how many alternatives were looked for."""

    texts: tuple[str, ...]
    asked: int


class _Entry(Struct, frozen=True, kw_only=True):
    prefix: str
    suffix: str
    context: object
    answer: Answer


class SuggestionMemory:
    """Least recently used ones are forgotten first.

    reach: how many characters on each side of the cursor decide what is suggested; only those are
    compared.
    """

    def __init__(self, reach: int) -> None:
        self._reach = reach
        self._entries: OrderedDict[tuple[str, str, str], _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def remember(
        self, document: str, prefix: str, suffix: str, answer: Answer, context: object = None
    ) -> None:
        """context: what else the answer was made from."""
        prefix, suffix = prefix[-self._reach :], suffix[: self._reach]
        key = document, prefix, suffix
        self._entries.pop(key, None)
        self._entries[key] = _Entry(prefix=prefix, suffix=suffix, context=context, answer=answer)
        if len(self._entries) > KEPT:
            self._entries.popitem(last=False)

    def recall(
        self, document: str, prefix: str, suffix: str, context: object = None
    ) -> Answer | None:
        """What is left of a suggestion that was begun, or was made here from the same context.
        None where none is known."""
        prefix, suffix = prefix[-self._reach :], suffix[: self._reach]
        for key in reversed(self._entries):
            if key[0] != document:
                continue
            entry = self._entries[key]
            found = self._left_of(entry, prefix, suffix, context)
            if found is not None:
                self._entries.move_to_end(key)
                return found
        return None

    def forget(self, document: str) -> None:
        for key in [key for key in self._entries if key[0] == document]:
            del self._entries[key]

    def _left_of(self, entry: _Entry, prefix: str, suffix: str, context: object) -> Answer | None:
        closed = _closed(entry.suffix, suffix, self._reach)
        if closed is None:
            return None
        longest = max(map(len, entry.answer.texts), default=0)
        for typed in _typed(entry.prefix, prefix, longest, self._reach):
            if (entry.prefix + typed)[-self._reach :] != prefix:
                continue
            if not typed and not closed:
                if entry.context != context:
                    continue
                return entry.answer
            left = [text[len(typed) :] for text in entry.answer.texts if text.startswith(typed)]
            if closed:
                # What the editor closed stands behind the cursor now.
                gap = Gap(prefix, suffix, "always")
                left = [settle(text, gap, "stop").text for text in left]
            kept = tuple(dict.fromkeys(text for text in left if text.strip()))
            if kept:
                return Answer(texts=kept, asked=entry.answer.asked)
        return None


def _typed(before: str, now: str, longest: int, reach: int) -> Iterator[str]:
    """What may have been typed between two prefixes, of which only the last `reach` are known."""
    if len(before) < reach and len(now) < reach:
        typed = len(now) - len(before)
        if 0 <= typed <= longest:
            yield now[len(before) :]
        return
    anchor, end = before[-min(_ANCHOR, reach // 2) :], len(now)
    while True:
        at = now.rfind(anchor, max(len(now) - longest - len(anchor), 0), end)
        if at < 0:
            return
        yield now[at + len(anchor) :]
        end = at + len(anchor) - 1


def _closed(before: str, now: str, reach: int) -> str | None:
    """What an editor put behind the cursor, often nothing; None where the suffix is another."""
    if now == before:
        return ""
    could = _CLOSED.match(now)
    for length in range(1, len(could[0]) + 1 if could else 1):
        if now.startswith(before[:_ANCHOR], length) and now == (now[:length] + before)[:reach]:
            return now[:length]
    return None
