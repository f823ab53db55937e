from __future__ import annotations

from engine.drafters.copy import CopyDrafter
from engine.drafters.portfolio import LONG_MATCH, Portfolio, pick


class Recorder:
    """A context drafter that proposes 7s and remembers what it was shown."""

    name = "recorder"

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.hidden: list[str] = []

    def propose(self, limit: int) -> list[int]:
        return [7] * limit

    def commit(self, tokens) -> None:
        self.tokens += tokens

    def observe(self, hidden) -> None:
        self.hidden.append(hidden)

    def rows(self, length: int) -> int:
        return length

    def restore(self, context) -> None:
        self.hidden = [context]


def test_copying_wins_behind_a_long_match_only():
    assert pick(LONG_MATCH, has_context_drafter=True) == "copy"
    assert pick(LONG_MATCH - 1, has_context_drafter=True) == "dflash"
    assert pick(0, has_context_drafter=False) == "copy"


def test_each_round_asks_the_drafter_that_the_rule_picks():
    portfolio = Portfolio(CopyDrafter(), Recorder())
    portfolio.commit([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    assert portfolio.propose(3) == [7, 7, 7]
    portfolio.commit([1, 2, 3, 4, 5, 6, 7, 8])
    assert portfolio.propose(3) == [9, 10, 11]


def test_whoever_does_not_draft_stays_in_step():
    recorder = Recorder()
    copy = CopyDrafter()
    portfolio = Portfolio(copy, recorder)
    portfolio.commit([1, 2])
    portfolio.observe("row")
    assert (recorder.tokens, recorder.hidden) == ([1, 2], ["row"])
    portfolio.commit([1, 2])
    assert copy.match == 2


def test_alone_or_without_anyone():
    assert Portfolio(None, Recorder()).propose(2) == [7, 7]
    assert Portfolio(None, None).propose(2) == []
    Portfolio(CopyDrafter(), None).observe("nobody reads it")
