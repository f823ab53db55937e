"""What every drafter does. A portfolio of them sits behind this one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Guesses what the target will choose next in one sequence.

    A wrong guess costs time, never exactness: what a drafter proposes is verified.
    """

    name: str

    def propose(self, limit: int) -> list[int]:
        """At most `limit` tokens that may follow everything committed so far, best guess first.

        Changes nothing. An empty list says that this round is better decoded target-only.
        """

    def commit(self, tokens: Sequence[int]) -> None:
        """Take in tokens that are now part of the text: prompt chunks, then each round's run.

        Called for every committed token in order, also in rounds that drafted nothing.
        """
