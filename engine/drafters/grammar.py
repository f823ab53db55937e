"""Drafts what a grammar leaves no choice about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.drafters.drafter import Offer


class Forced(Protocol):
    """A grammar that knows how a reply must go on (`engine.text.constraints.Constraint`)."""

    def forced(self, limit: int) -> list[int]:
        """At most `limit` tokens that spell the text which has to come next; often none."""


class GrammarDrafter:
    """Proposes forced text for nothing: there is nothing to compute, and little to be wrong about.

    Only the text is certain. Where it could be cut into other tokens the target chooses, as it
    does without drafts.
    """

    name = "grammar"

    def __init__(self, constraint: Forced) -> None:
        self._constraint = constraint

    def offer(self, limit: int) -> Offer:
        return Offer(self.name, len(self.propose(limit)))

    def propose(self, limit: int) -> list[int]:
        return self._constraint.forced(limit) if limit > 0 else []

    def commit(self, tokens: Sequence[int]) -> None:
        """The sequence has already shown the grammar its tokens."""
