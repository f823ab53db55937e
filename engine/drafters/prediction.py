"""The prediction drafter: the reply is the predicted text, but for what is changed in it.

An edit and OpenAI's `prediction` say beforehand what the reply will nearly be. This drafter keeps
its place in that text and drafts what follows there. Behind a change it goes on at the first token
that fits, where copying needs a longer match, and a change that was made before is drafted where
it can be made again: a name that was replaced in one line will be replaced in the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.drafters.drafter import Offer

WINDOW = 48
"""Tokens behind the beginning of a change, and beyond its length, in which it may end. What is
further away is copied (`engine.drafters.copy`)."""

SETTLED = 3
"""Tokens that must fit before a change counts as over."""

LONGEST_CHANGE = 16
"""Tokens of a change that is made again: of what goes and of what comes."""

# Confidence: behind a change that is not settled as many tokens fit, then by how many do since the
# last one (in bits), and where a change is being made again.
_SETTLED, _SURE, _AGAIN = 3, 7, 8


class _Change(NamedTuple):
    """Tokens that are replaced, and by what."""

    old: tuple[int, ...]
    new: tuple[int, ...]


class PredictionDrafter:
    """Drafts on from its place in the prediction, and nothing inside a change that is new.

    behind: tokens of the prompt, which are committed before the reply is.
    """

    name = "prediction"

    def __init__(self, prediction: Sequence[int], behind: int = 0) -> None:
        self._text = tuple(prediction)
        self._behind = behind
        # Where the text goes on, if the last `_fitted` tokens are what they seem.
        self._at = self._fitted = 0
        # Where in the text the change begins that is being written, and what is written of it.
        self._from: int | None = None
        self._written: list[int] = []
        # The change that was made before and that this one is so far.
        self._again: _Change | None = None
        # Made before, by the first token that goes.
        self._changes: dict[int, _Change] = {}

    def offer(self, limit: int) -> Offer:
        left = len(self._text) - self._at
        # Changes that are made again may lengthen what is left, or shorten it.
        drafts = len(self.propose(limit)) if self._changes or self._from is not None else left
        drafts = max(0, min(drafts, limit))
        return Offer(self.name, drafts, self._confidence() if drafts else 0)

    def propose(self, limit: int) -> list[int]:
        text, at, drafts = self._text, self._at, list[int]()
        if self._from is not None:
            if self._again is not None:
                drafts += self._again.new[len(self._written) :]
                at = self._from + len(self._again.old)
            elif not self._fitted:
                return drafts
        if not self._changes:
            return list(text[at : at + max(0, limit)])
        while len(drafts) < limit and at < len(text):
            change = self._change_at(at)
            if change is None:
                drafts.append(text[at])
                at += 1
            else:
                drafts += change.new
                at += len(change.old)
        return drafts[: max(0, limit)]

    def commit(self, tokens: Sequence[int]) -> None:
        known = min(self._behind, len(tokens))
        self._behind -= known
        for token in tokens[known:]:
            self._take(token)

    def _confidence(self) -> int:
        if self._again is not None:
            return _AGAIN
        if self._from is not None:
            return self._fitted
        return min(_SETTLED + self._fitted.bit_length(), _SURE)

    def _take(self, token: int) -> None:
        if self._from is None:
            if self._at < len(self._text) and self._text[self._at] == token:
                if self._change_at(self._at) is not None:
                    # It is not made everywhere.
                    del self._changes[token]
                self._at += 1
                self._fitted += 1
                return
            self._from, self._written = self._at, []
        self._written.append(token)
        self._again, self._fitted = None, 0
        if not self._repeats(self._from):
            self._find(self._from)

    def _repeats(self, start: int) -> bool:
        """Whether what is written from `start` on is a change that was made before."""
        change, written = self._change_at(start), tuple(self._written)
        if change is None or written != change.new[: len(written)]:
            return False
        if written == change.new:
            self._at, self._from = start + len(change.old), None
        else:
            self._again = change
        return True

    def _find(self, start: int) -> None:
        """Where the text goes on behind a change from `start` on: where most of what is written
        last fits, and of such places at the first."""
        text, written = self._text, self._written
        # A longer change is none that is made again, and what it was is not needed.
        del written[: -2 * WINDOW]
        last, best, at = len(written) - 1, 0, 0
        for place in range(start, min(len(text), start + len(written) + WINDOW)):
            fitted, most = 0, min(len(written), place - start + 1)
            while fitted < most and text[place - fitted] == written[last - fitted]:
                fitted += 1
            if fitted > best:
                best, at = fitted, place + 1
        # Somewhere any token fits, if one only writes for long enough.
        if best < SETTLED and len(written) > WINDOW:
            return
        self._at, self._fitted = at, best
        if best >= SETTLED:
            self._learn(start, at - best, written[: len(written) - best])
            self._from = None

    def _learn(self, start: int, end: int, written: Sequence[int]) -> None:
        """A change is over: text[start:end] became `written`."""
        old, new = self._text[start:end], tuple(written)
        if not old:
            # What is put in is put in before what follows.
            old = self._text[start : start + 1]
            new += old
        if old and 0 < len(new) <= LONGEST_CHANGE and len(old) <= LONGEST_CHANGE:
            self._changes[old[0]] = _Change(old, new)

    def _change_at(self, place: int) -> _Change | None:
        """What was changed before and stands there again."""
        if place >= len(self._text):
            return None
        change = self._changes.get(self._text[place])
        if change is None or self._text[place : place + len(change.old)] != change.old:
            return None
        return change
