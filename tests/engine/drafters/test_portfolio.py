from __future__ import annotations

from engine.drafters.copy import CopyDrafter
from engine.drafters.drafter import Offer
from engine.drafters.portfolio import Portfolio
from engine.drafters.prediction import PredictionDrafter
from engine.testing import ScriptedDrafter


class Recorder:
    """A context drafter that proposes 7s and remembers what it was shown."""

    name = "recorder"

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.hidden: list[str] = []

    def offer(self, limit: int) -> Offer:
        return Offer(self.name, min(limit, 5))

    def propose(self, limit: int) -> list[int]:
        return [7] * limit

    def commit(self, tokens) -> None:
        self.tokens += tokens

    def observe(self, hidden) -> None:
        self.hidden.append(hidden)

    def catch_up(self) -> None:
        self.hidden.append("caught up")

    def rows(self, length: int) -> int:
        return length

    def restore(self, context) -> None:
        self.hidden = [context]

    def read_on(self) -> None:
        self.hidden.append("read on")


def test_offers_what_each_could_draft():
    portfolio = Portfolio(CopyDrafter(), Recorder())
    portfolio.commit([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    assert portfolio.offers(8) == [Offer("recorder", 5)]
    portfolio.commit([1, 2, 3, 4])
    assert portfolio.offers(8) == [Offer("copy", 4, 3), Offer("recorder", 5)]
    assert portfolio.offers(2) == [Offer("copy", 2, 3), Offer("recorder", 2)]
    assert portfolio.offers(0) == []


def test_proposes_by_name():
    portfolio = Portfolio(CopyDrafter([1, 2, 3, 4, 1, 2, 3]), Recorder())
    assert portfolio.propose("copy", 3) == [4, 1, 2]
    assert portfolio.propose("recorder", 2) == [7, 7]
    assert portfolio.propose("nobody", 2) == []


def test_a_prediction_is_drafted_before_copies():
    portfolio = Portfolio(CopyDrafter(), None, PredictionDrafter([1, 2, 3, 4], behind=2))
    # Out of the cache, a prompt is read when it is needed.
    portfolio.resume([8, 9], None)
    portfolio.commit([1])
    portfolio.read_on()
    assert portfolio.offers(8) == [Offer("prediction", 3, 4)]
    portfolio.commit([2, 3, 1, 2, 3])
    assert [offer.drafter for offer in portfolio.offers(8)] == ["copy"]
    assert portfolio.propose("prediction", 8) == []
    assert portfolio.propose("copy", 8) == [1, 2, 3]


def test_what_a_grammar_forces_is_offered_alone():
    portfolio = Portfolio(CopyDrafter([1, 2, 3, 4, 1, 2, 3]), Recorder())
    portfolio.grammar = ScriptedDrafter([5, 6])
    assert portfolio.offers(8) == [Offer("scripted", 2)]
    portfolio.grammar = ScriptedDrafter([])
    assert [offer.drafter for offer in portfolio.offers(8)] == ["copy", "recorder"]


def test_whoever_does_not_draft_stays_in_step():
    recorder = Recorder()
    copy = CopyDrafter()
    portfolio = Portfolio(copy, recorder)
    portfolio.commit([1, 2])
    portfolio.observe("row")
    portfolio.catch_up()
    assert (recorder.tokens, recorder.hidden) == ([1, 2], ["row", "caught up"])
    portfolio.commit([1, 2])
    assert copy.match == 2


def test_alone_or_without_anyone():
    assert Portfolio(None, Recorder()).offers(2) == [Offer("recorder", 2)]
    assert Portfolio(None, None).offers(2) == []
    alone = Portfolio(CopyDrafter(), None)
    alone.observe("nobody reads it")
    alone.catch_up()


def test_a_known_prompt_is_read_before_the_first_draft_and_not_before_the_first_token():
    context = Recorder()
    portfolio = Portfolio(CopyDrafter(), context)
    portfolio.resume([1, 2, 3, 4], "snapshot")
    portfolio.commit([1, 2, 3])
    assert portfolio.propose("copy", 3) == []
    assert context.tokens == [1, 2, 3, 4, 1, 2, 3]
    assert context.hidden == ["snapshot"]
    portfolio.read_on()
    portfolio.read_on()
    assert portfolio.propose("copy", 3) == [4, 1, 2]
    portfolio.commit([4])
    assert portfolio.propose("copy", 2) == [1, 2]
    assert context.hidden == ["snapshot", "read on"]
