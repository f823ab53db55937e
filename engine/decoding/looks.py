"""Looking at drafters that are not in use, without verifying what they say.

Drafts that were made and not verified are compared with what the target then says by itself. That
shows what verifying them would have shown, for the price of the draft alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Rounds from one look at a drafter to the next: at first, and twice as many after each look, up to
# the first of these while it may pay as far as is known, else up to the second.
FIRST_LOOK, HOPEFUL_LOOK, LAST_LOOK = 1, 16, 128
# Rounds between looks at what lies behind the width in use.
LOOK_BEYOND = 16


class Key(NamedTuple):
    """What acceptance is kept apart by; `confidence` is the drafter's own."""

    regime: str
    drafter: str
    confidence: int


@dataclass
class Look:
    """Drafts from position `start` of their block on; those before `at` turned out right."""

    key: Key
    drafts: list[int]
    start: int
    at: int = 0

    @property
    def over(self) -> bool:
        return self.at == len(self.drafts)

    def follow(self, run: Sequence[int]) -> tuple[int, int]:
        """(right, tried) among the drafts that the committed tokens of `run` decide about."""
        right = 0
        for token in run:
            if self.over:
                break
            if self.drafts[self.at] != token:
                self.at = len(self.drafts)
                return right, right + 1
            self.at += 1
            right += 1
        return right, right


@dataclass
class Watch:
    """How one reply keeps an eye on one drafter.

    wait, beyond: rounds until a look is due, at the drafter while it is idle and behind the width
    while it is used. hopeful: whether it may commit more than what is chosen, as far as is
    known.
    """

    interval: int = FIRST_LOOK
    wait: int = 0
    beyond: int = 0
    hopeful: bool = True
    look: Look | None = None

    def pass_round(self) -> None:
        self.wait -= 1
        self.beyond -= 1

    def due(self, used: int) -> bool:
        return self.look is None and (self.beyond if used else self.wait) <= 0

    def used(self, beyond: bool) -> None:
        """It drafted a round; `beyond`: with a look behind the width."""
        self.interval, self.wait = FIRST_LOOK, 0
        if beyond:
            self.beyond = LOOK_BEYOND

    def looked(self) -> None:
        self.wait = self.interval - 1
        self.interval = min(2 * self.interval, HOPEFUL_LOOK if self.hopeful else LAST_LOOK)

    def look_soon(self) -> None:
        """The text may have changed."""
        self.interval = FIRST_LOOK
        self.wait = min(self.wait, FIRST_LOOK)
