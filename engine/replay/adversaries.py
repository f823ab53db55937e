"""Texts made to cost a controller as much as they can; each knows what it chose."""

from __future__ import annotations

from engine.decoding.surplus import Choice
from engine.drafters.drafter import Offer


class Adversary:
    """Offers a whole block at every token. `verified`: rounds in a row that verified drafts, the
    present one included."""

    name = "never right"

    def __init__(self, tokens: int, block: int) -> None:
        self._tokens = tokens
        self._block = block
        self.verified = 0

    def __len__(self) -> int:
        return self._tokens

    def regime(self, position: int) -> str:
        return "code"

    def offers(self, position: int) -> list[Offer]:
        return [Offer("dflash", self._block)]

    def right(self, position: int, offer: Offer, choice: Choice | None) -> int:
        verifies = choice is not None and choice.drafts > 0
        self.verified = self.verified + 1 if verifies else 0
        return offer.drafts if self.is_right(verifies) else 0

    def is_right(self, verifies: bool) -> bool:
        return False


class CollapsesAfterProbe(Adversary):
    """Right when looked at and in the first round that is verified, then wrong."""

    name = "collapses after each probe"

    def is_right(self, verifies: bool) -> bool:
        return self.verified <= 1


class LooksLie(Adversary):
    """Right whenever it is looked at, wrong whenever it is verified."""

    name = "right until verified"

    def is_right(self, verifies: bool) -> bool:
        return not verifies


class Baits(Adversary):
    """Right for thirty rounds, then wrong until the controller has given up and come back."""

    name = "baits for thirty rounds"

    def is_right(self, verifies: bool) -> bool:
        return self.verified <= 30


class FlipsRegime(Adversary):
    """Another regime after every third token, and never right."""

    name = "a regime change every three tokens"

    def regime(self, position: int) -> str:
        return ("code", "prose", "reasoning", "tool_call")[position // 3 % 4]


class AlwaysUnknown(Adversary):
    """No offer is like one before it, so there is nothing to learn from; never right."""

    name = "nothing like before"

    def offers(self, position: int) -> list[Offer]:
        return [Offer("dflash", self._block, confidence=position)]


ADVERSARIES = (
    Adversary,
    CollapsesAfterProbe,
    LooksLie,
    Baits,
    FlipsRegime,
    AlwaysUnknown,
)
