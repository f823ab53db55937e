from __future__ import annotations

from engine.drafters.copy import CopyDrafter
from engine.drafters.grammar import GrammarDrafter
from engine.drafters.portfolio import Portfolio


class Half:
    """A grammar that forces 1, 2, 3 every other time it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def forced(self, limit: int) -> list[int]:
        self.asked += 1
        return [1, 2, 3][:limit] if self.asked % 2 else []


def test_forced_text_is_drafted_before_anybody_is_asked():
    portfolio = Portfolio(CopyDrafter(), None)
    portfolio.grammar = GrammarDrafter(Half())
    portfolio.commit([7, 8, 9] * 4)
    assert portfolio.propose(2) == [1, 2]
    assert portfolio.propose(2) == [7, 8]


def test_no_room_needs_no_grammar():
    half = Half()
    drafter = GrammarDrafter(half)
    assert drafter.propose(0) == []
    assert half.asked == 0
    drafter.commit([1])
