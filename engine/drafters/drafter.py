"""What every drafter does. A portfolio of them sits behind this one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Offer(NamedTuple):
    """That many drafts of a drafter. Its acceptance is kept apart by `confidence`, which is of
    its own scale (the copy drafter's grows with its match). behind: tokens of the text that it
    has yet to read before it can propose."""

    drafter: str
    drafts: int
    confidence: int = 0
    behind: int = 0


class Drafter(Protocol):
    """Guesses what the target will choose next in one sequence.

    A wrong guess costs time, never exactness: what a drafter proposes is verified.
    """

    name: str

    def offer(self, limit: int) -> Offer:
        """What `propose` would give at most. Costs next to nothing."""

    def propose(self, limit: int) -> list[int]:
        """At most `limit` tokens that may follow everything committed so far, best guess first.

        Changes nothing. An empty list says that this round is better decoded target-only.
        """

    def commit(self, tokens: Sequence[int]) -> None:
        """Take in tokens that are now part of the text: prompt chunks, then each round's run.

        Called for every committed token in order, also in rounds that drafted nothing.
        """
