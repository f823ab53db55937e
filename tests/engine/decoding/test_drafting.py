from __future__ import annotations

import msgspec
import pytest

from engine.decoding.cost_curve import CostCurve, Grid
from engine.decoding.costs import Costs
from engine.decoding.drafting import Drafting
from engine.decoding.policies import Always, BySurplus, Never, Policy
from engine.decoding.round_log import Round, choose_again
from engine.decoding.surplus import Choice, SurplusController
from engine.decoding.surplus_report import Span, Tally
from engine.drafters.copy import CopyDrafter
from engine.drafters.drafter import Offer
from engine.drafters.portfolio import Portfolio
from engine.testing import ScriptedDrafter
from engine.text.regimes import RegimeParser

CURVE = CostCurve(
    forward=Grid(
        contexts=(0,), counts=tuple(range(1, 9)), seconds=(tuple(1 + 0.1 * n for n in range(8)),)
    )
)


class Clock:
    """Every look at it is half a second later."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def drafting(portfolio: Portfolio | None, policy: Policy, **options: object) -> Drafting:
    parser = RegimeParser({1: "<|im_start|>", 5: "<tool_call>", 6: "</tool_call>"}, [1])
    return Drafting(portfolio, policy, parser, Costs(CURVE), clock=Clock(), **options)


def scripted(script: list[int]) -> Portfolio:
    return Portfolio(ScriptedDrafter(script), None)


def test_a_round_is_counted_by_regime_drafter_and_position() -> None:
    made = drafting(scripted([10, 11, 12, 13, 14, 15]), Always(), explain=True)
    assert made.propose(0, 4) == [10, 11, 12]
    made.settle(3, [10, 11, 99], ended=False)
    made.regimes.feed(5, "")
    assert made.propose(3, 2) == [10]
    made.settle(1, [10, 11], ended=False)
    prose, call = made.tally.report()
    assert (prose.regime, prose.rounds, prose.tokens, prose.seconds) == ("prose", 1, 3, 0.5)
    assert (prose.tok_s, prose.saved, prose.surplus_ms) == (
        6.0,
        2.5,
        pytest.approx(2500 / 3, abs=1e-3),
    )
    assert (prose.widths, prose.target_only) == ({4: 1}, {})
    (drafter,) = prose.drafters
    assert (drafter.drafter, drafter.tried, drafter.accepted) == ("scripted", (1, 1, 1), (1, 1, 0))
    assert (call.regime, call.drafters[0].accepted) == ("tool_call", (1,))
    assert made.timeline is not None
    assert made.timeline.spans()[0] == Span(
        regime="prose", drafter="scripted", width=4, rounds=1, tokens=3, seconds=0.5
    )


def test_target_only_rounds_say_why() -> None:
    made = drafting(None, Never("asked not to draft"))
    assert made.propose(0, 8) == []
    made.settle(0, [7], ended=True)
    (prose,) = made.tally.report()
    assert (prose.target_only, prose.widths, prose.drafters) == (
        {"asked not to draft": 0.5},
        {1: 1},
        (),
    )


def test_tallies_add_up() -> None:
    made = drafting(scripted([10, 11, 12]), Always())
    made.propose(0, 3)
    made.settle(2, [10, 99], ended=False)
    total = Tally()
    total.include(made.tally)
    assert total.report() == made.tally.report()
    total.include(made.tally)
    (twice,) = total.report()
    assert (twice.rounds, twice.tokens, twice.widths) == (2, 4, {3: 2})
    assert (twice.drafters[0].tried, twice.drafters[0].accepted) == ((2, 2), (2, 0))


def test_a_machine_that_stalls_counts_neither_for_nor_against_drafting() -> None:
    tally = Tally()
    drafted = Choice("code", 9, "copy", 3, (Offer("copy", 3),), "")
    alone = Choice("code", 9, "", 0, (), "why")
    looked = alone._replace(asks=(Offer("dflash", 7),))
    for number in range(20):
        tally.add(drafted, 3, 4, 90.0 if number in (3, 9) else 2.0, 1.0)
        tally.add(alone, 0, 1, 50.0 if number == 5 else 1.0, 1.0)
    # One kind of round that is rare, and takes longer each time.
    tally.add(looked, 0, 1, 3.0, 1.0)
    (code,) = tally.report()
    assert code.saved == pytest.approx(20 * (4 - 2) + 0 - 2)
    assert code.seconds == pytest.approx(18 * 2 + 2 * 90 + 19 + 50 + 3)
    total = Tally()
    total.include(tally)
    assert total.report() == (code,)


def test_rounds_alike_are_one_span() -> None:
    made = drafting(scripted([10] * 50), Always(), explain=True)
    for number in range(4):
        made.propose(2 * number, 2)
        made.settle(1, [10, 10], ended=False)
    assert made.timeline is not None
    (span,) = made.timeline.spans()
    assert (span.rounds, span.tokens, span.seconds) == (4, 8, 2.0)


def test_without_explain_nothing_is_kept() -> None:
    made = drafting(None, Never(""))
    made.propose(0, 1)
    made.settle(0, [1], ended=False)
    assert made.timeline is None
    assert made.log is None


def logged_reply(tokens: list[int], prompt: int) -> tuple[Round, ...]:
    """A reply that repeats its prompt, decoded with a controller and the copy drafter."""
    controller = SurplusController(Costs(CURVE))
    portfolio = Portfolio(CopyDrafter(tokens[:prompt]), None)
    made = drafting(portfolio, BySurplus(controller), explain=True)
    at = prompt
    while at < len(tokens):
        drafts = made.propose(at, min(8, len(tokens) - at))
        right = 0
        while right < len(drafts) and drafts[right] == tokens[at + right]:
            right += 1
        run = tokens[at : at + right + 1]
        portfolio.commit(run)
        at += len(run)
        made.settle(len(drafts), run, ended=at == len(tokens))
    assert made.log is not None
    return made.log.rounds(tokens)


def test_a_log_is_enough_to_make_the_same_choices_again() -> None:
    tokens = [*range(40), *range(20), 99, *range(21, 40), *range(5, 35)]
    rounds = logged_reply(tokens, 40)
    assert sum(one.drafts for one in rounds) > 20
    assert any(r < g for one in rounds for r, g in zip(one.right, one.given, strict=True))
    sent = msgspec.json.decode(msgspec.json.encode(rounds), type=tuple[Round, ...])
    again = choose_again(sent, SurplusController(Costs(CURVE)))
    assert [(c.drafter, c.drafts, c.asks) for c in again] == [
        (one.drafter, one.drafts, one.asks) for one in rounds
    ]


def test_a_log_is_compact() -> None:
    tokens = [*range(40), *range(40)]
    rounds = logged_reply(tokens, 40)
    assert len(msgspec.json.encode(rounds)) < 150 * len(rounds)
