from __future__ import annotations

import itertools
from collections import Counter

import msgspec
import pytest

from engine import acceptance_trace, simulate_surplus, simulated_timeline, surplus_figures
from engine.decoding.cost_curve import CostCurve, Grid
from engine.decoding.round_log import Round
from engine.drafters.drafter import Offer
from engine.errors import ModelError
from engine.replay import lab
from engine.replay.trace import Drafted, Trace, joined, switching

CURVE = CostCurve(
    forward=Grid(contexts=(0,), counts=(1, 2, 3, 4), seconds=((0.01, 0.011, 0.012, 0.013),))
)


def test_a_lab_on_this_machines_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "TOKENS", dict.fromkeys(lab.TOKENS, 600))
    rows = list(simulate_surplus(CURVE))
    assert {row.machine for row in rows} == {"this machine"}
    assert {row.kind for row in rows} >= {lab.STATIONARY, lab.SWITCHING, lab.ADVERSARIAL}
    assert all(row.tokens == 600 for row in rows if row.kind != lab.RECORDED)
    assert all(row.slowest <= 1.02 for row in rows)
    assert {row.vs_best for row in rows if row.kind == lab.ADVERSARIAL} == {0.0}
    found = surplus_figures(rows)
    assert found.sim_worst_vs_target_only == max(row.slowest for row in rows)
    stationary = [row.vs_best for row in rows if row.kind == lab.STATIONARY]
    assert found.sim_stationary_worst_vs_best_fixed == max(stationary)


@pytest.mark.slow
def test_the_whole_lab_keeps_its_promises() -> None:
    found = surplus_figures(simulate_surplus())
    assert found.sim_stationary_worst_vs_best_fixed <= 1.02
    assert found.sim_switching_worst_vs_best_per_regime <= 1.05
    assert found.sim_worst_vs_target_only <= 1.02


def test_kinds_of_text_switch_every_50_to_400_tokens() -> None:
    trace = switching("", list(lab.KINDS.values()), 5_000, 7, seed=1)
    assert len(trace) == 5_000
    assert all(50 <= tokens <= 400 for _, tokens in trace.regimes[:-1])


def watched(*right: int) -> list[Round]:
    """Rounds of a watched reply in which dflash offered three drafts and copy a half of the time
    two."""
    rounds = []
    for number, count in enumerate(right):
        asks = [Offer("dflash", 3)]
        if number % 2:
            asks.append(Offer("copy", 2, 5))
        given = tuple(ask.drafts for ask in asks)
        rights = tuple(min(count, ask.drafts) for ask in asks)
        regime = "code" if number < 2 else "prose"
        rounds.append(
            Round(regime, number, 9, tuple(asks), "", 0, tuple(asks), given, rights, 1, 0.1)
        )
    return rounds


def test_a_watched_reply_becomes_a_trace() -> None:
    trace = acceptance_trace("a", watched(3, 1, 0, 2))
    assert trace.regimes == (("code", 2), ("prose", 2))
    assert trace.drafters["dflash"] == Drafted(offered="3333", right="3102", confidence="0000")
    assert trace.drafters["copy"] == Drafted(offered="0202", right="0102", confidence="0505")
    text = trace.text()
    assert text.offers(1) == [Offer("copy", 2, 5), Offer("dflash", 3)]
    assert text.right(3, Offer("dflash", 1), None) == 1


def test_a_reply_that_was_not_watched_is_no_trace() -> None:
    (one,) = watched(1)
    with pytest.raises(ModelError, match="committed 2 tokens"):
        acceptance_trace("a", [msgspec.structs.replace(one, committed=2)])


def test_a_damaged_trace_is_refused() -> None:
    with pytest.raises(ModelError, match="must have 3 digits"):
        Trace(
            name="a", regimes=(("code", 3),), drafters={"copy": Drafted(offered="00", right="000")}
        )


def test_texts_one_behind_the_other() -> None:
    one = Trace(
        name="a", regimes=(("code", 2),), drafters={"copy": Drafted(offered="12", right="01")}
    )
    other = Trace(
        name="b",
        regimes=(("prose", 1),),
        drafters={"dflash": Drafted(offered="7", right="3", confidence="1")},
    )
    both = joined("ab", [one, other])
    assert both.regimes == (("code", 2), ("prose", 1))
    assert both.drafters["copy"] == Drafted(offered="120", right="010", confidence="000")
    assert both.drafters["dflash"] == Drafted(offered="007", right="003", confidence="001")


def test_the_recorded_replies_are_of_every_kind_and_both_drafters() -> None:
    trace = lab.recorded()
    assert {regime for regime, _ in trace.regimes} >= {"prose", "code", "tool_call"}
    assert {"copy", "dflash"} <= set(trace.drafters)
    assert len(trace) > 5_000


def test_in_a_tool_call_that_does_not_pay_drafting_stops_and_resumes_behind_it() -> None:
    spans = simulated_timeline()
    regimes = [regime for regime, _ in itertools.groupby(span.regime for span in spans)]
    assert regimes == ["prose", "code", "tool_call", "prose", "code"]
    rounds = Counter[str](), Counter[str]()
    for span in spans:
        rounds[span.regime == "tool_call"][span.drafter] += span.rounds
    outside, call = rounds
    assert call["dflash"] == 0
    assert call[""] > 3 * call["copy"]
    assert outside["dflash"] > 10 * outside[""]
