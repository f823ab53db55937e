from __future__ import annotations

from engine.drafters.copy import CopyDrafter
from engine.drafters.drafter import Offer
from engine.drafters.grammar import GrammarDrafter
from engine.drafters.portfolio import Portfolio


class Forcing:
    """A grammar that has these tokens left to force."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.asked = 0

    def forced(self, limit: int) -> list[int]:
        self.asked += 1
        return self.tokens[:limit]


def test_where_text_is_forced_nobody_else_is_asked():
    grammar = Forcing([1, 2, 3])
    portfolio = Portfolio(CopyDrafter(), None)
    portfolio.grammar = GrammarDrafter(grammar)
    portfolio.commit([7, 8, 9] * 4)
    assert portfolio.offers(2) == [Offer("grammar", 2)]
    assert portfolio.propose("grammar", 2) == [1, 2]
    grammar.tokens = []
    assert [offer.drafter for offer in portfolio.offers(2)] == ["copy"]
    assert portfolio.propose("copy", 2) == [7, 8]
    assert portfolio.propose("grammar", 2) == []


def test_no_room_needs_no_grammar():
    grammar = Forcing([1])
    drafter = GrammarDrafter(grammar)
    assert drafter.propose(0) == []
    assert drafter.offer(0) == Offer("grammar", 0)
    assert grammar.asked == 0
    drafter.commit([1])
