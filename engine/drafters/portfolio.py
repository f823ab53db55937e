"""The drafters of one sequence; one of them is asked each round.

No mlx here: what a drafter computes with is its own business.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

from engine.drafters.copy import CopyDrafter
from engine.drafters.drafter import Drafter

# Copying is free and nearly always right behind a match this long; a shorter match loses to a
# trained drafter (other implementations use 6 to 8).
LONG_MATCH = 8


class ContextDrafter(Drafter, Protocol):
    """A drafter that reads the target's hidden states (DFlash)."""

    def observe(self, hidden: Any) -> None:
        """Take in the tapped rows, (n, taps * H), of the next n tokens in the target's cache."""

    def rows(self, length: int) -> Any:
        """What it knows of the first `length` tokens, for a prefix snapshot."""

    def restore(self, context: Any) -> None:
        """Begin again from such a snapshot."""


def pick(copy_match: int, has_context_drafter: bool) -> str:
    """The drafter to ask: ``copy`` behind a long match or when it is alone, else ``dflash``.

    copy_match: tokens of the longest suffix of the text that occurred before.
    """
    return "copy" if copy_match >= LONG_MATCH or not has_context_drafter else "dflash"


class Portfolio:
    """A `Drafter` made of a copy drafter and, where the target has one, a context drafter.

    Whoever does not draft stays in step: both see every committed token, and the context drafter
    every row that enters the target's cache.

    turns: see `GenerateRequest.drafters`.
    grammar: drafts what the reply's grammar forces, before anybody is asked. Set for a reply that
    is held to one.
    """

    name = "portfolio"

    def __init__(
        self,
        copy: CopyDrafter | None,
        context: ContextDrafter | None,
        turns: Sequence[str] = (),
    ) -> None:
        self.context = context
        self.grammar: Drafter | None = None
        self._copy = copy
        self._turns = itertools.cycle(turns) if turns else None

    def propose(self, limit: int) -> list[int]:
        if self.grammar is not None and (forced := self.grammar.propose(limit)):
            return forced
        if self._turns is not None:
            asked = {"copy": self._copy, "dflash": self.context}.get(next(self._turns))
            return asked.propose(limit) if asked is not None else []
        match = self._copy.match if self._copy is not None else 0
        chosen: Drafter | None = self._copy
        if self.context is not None and (
            self._copy is None or pick(match, has_context_drafter=True) == "dflash"
        ):
            chosen = self.context
        return chosen.propose(limit) if chosen is not None else []

    def commit(self, tokens: Sequence[int]) -> None:
        for drafter in (self._copy, self.context):
            if drafter is not None:
                drafter.commit(tokens)

    def observe(self, hidden: Any) -> None:
        """Hand the rows of tokens that are now in the target's cache to whoever reads them."""
        if self.context is not None:
            self.context.observe(hidden)
