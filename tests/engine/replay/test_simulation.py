"""The promises of the surplus controller, in simulated and so exact time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.decoding.costs import Costs
from engine.decoding.surplus import INHERITED, SAVED_UP, SHARE, Choice, SurplusController
from engine.drafters.drafter import Offer
from engine.replay.adversaries import ADVERSARIES, Adversary
from engine.replay.machines import MACHINES, curve
from engine.replay.simulation import Outcome, decode, hindsight
from engine.replay.trace import (
    HOPELESS,
    KINDS,
    NEW_CODE,
    PROSE,
    REASONING,
    REWRITE,
    TOOL_CALL,
    Kind,
    assembled,
    stationary,
    switching,
)

M4, FLAT = MACHINES["M4, 4 bit"], MACHINES["flat"]
# The account counts rounds, whose time grows a little with the context.
BOUND = 1 + SHARE + 1e-3
TOKENS = 16_000


def controller_for(machine: str) -> SurplusController:
    return SurplusController(Costs(MACHINES[machine]))


def block_of(machine: str) -> int:
    return MACHINES[machine].forward.counts[-1] - 1


def decoded(machine: str, kind: Kind, tokens: int = TOKENS) -> tuple[Outcome, float]:
    """What the controller took, and that against the best fixed choice in hindsight."""
    text = stationary("", kind, tokens, block_of(machine), seed=1).text()
    outcome = decode(text, MACHINES[machine], controller_for(machine))
    best = min(hindsight(text, MACHINES[machine])[0].values())
    return outcome, outcome.seconds / best


@pytest.mark.parametrize(
    ("machine", "kind"),
    [("M4, 4 bit", "new code"), ("CPU, fp32", "reasoning"), ("H200, bf16", "rewrite")],
)
def test_within_two_percent_of_the_best_fixed_choice(machine: str, kind: str) -> None:
    outcome, against_best = decoded(machine, KINDS[kind])
    assert against_best <= 1.02
    assert outcome.slowest <= BOUND


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", KINDS)
def test_within_two_percent_everywhere(machine: str, kind: str) -> None:
    outcome, against_best = decoded(machine, KINDS[kind])
    assert against_best <= 1.02
    assert outcome.slowest <= BOUND


@pytest.mark.parametrize("machine", ["M4, 4 bit", "CPU, fp32"])
def test_switching_within_five_percent_of_the_best_choice_for_each_regime(machine: str) -> None:
    kinds = [REWRITE, NEW_CODE, PROSE, TOOL_CALL, REASONING]
    text = switching("", kinds, 8_000, block_of(machine), seed=1).text()
    outcome = decode(text, MACHINES[machine], controller_for(machine))
    by_regime = hindsight(text, MACHINES[machine])[1]
    best = sum(min(arms.values()) for arms in by_regime.values())
    assert outcome.seconds <= 1.05 * best
    assert outcome.slowest <= BOUND


@pytest.mark.parametrize("kind", ["new code", "reasoning"])
def test_the_steps_of_a_curve_decide_about_the_width(kind: str) -> None:
    assert 3 <= decoded("M4, 4 bit", KINDS[kind], 2_000)[0].usual_width <= 5
    assert decoded("flat", KINDS[kind], 2_000)[0].usual_width == 8


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: adversary.name)
def test_no_adversary_makes_it_two_percent_slower(machine: str, adversary: type[Adversary]) -> None:
    text = adversary(1_000, block_of(machine))
    outcome = decode(text, MACHINES[machine], controller_for(machine))
    # Of the whole reply and of everything that it began with.
    assert outcome.slowest <= BOUND


class AnyText:
    """Whatever hypothesis comes up with, over and over."""

    name = "any"

    def __init__(self, rows: list[tuple[int, int, int, int]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return 60

    def regime(self, position: int) -> str:
        return "ab"[self._row(position)[0]]

    def offers(self, position: int) -> list[Offer]:
        _, drafts, confidence, _ = self._row(position)
        return [Offer("dflash", drafts, confidence), Offer("copy", drafts // 2)]

    def right(self, position: int, offer: Offer, choice: Choice | None) -> int:
        return min(offer.drafts, self._row(position)[3])

    def _row(self, position: int) -> tuple[int, int, int, int]:
        return self._rows[position % len(self._rows)]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 2), st.integers(0, 7)),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from(sorted(MACHINES)),
)
def test_no_text_makes_it_two_percent_slower(
    rows: list[tuple[int, int, int, int]], machine: str
) -> None:
    outcome = decode(AnyText(rows), MACHINES[machine], controller_for(machine))
    assert outcome.slowest <= BOUND


def test_a_reply_loses_little_of_what_others_gained() -> None:
    controller = SurplusController(Costs(M4))
    good = stationary("", REWRITE, 2_000, 7, seed=2).text()
    assert decode(good, M4, controller).seconds < 0.5 * 2_000 * M4.forward.row(0)[0]
    assert controller.account > 100
    bad = decode(ADVERSARIES[-1](1_000, 7), M4, controller)
    assert bad.seconds <= BOUND * bad.target_only + INHERITED * M4.forward.row(1_000)[0]


def test_what_was_learnt_is_a_start() -> None:
    text = stationary("", HOPELESS, 300, 7, seed=3).text()
    first = SurplusController(Costs(M4))
    cold = decode(text, M4, first)
    again = SurplusController(Costs(M4), first.learnt())
    assert again.learnt() == first.learnt()
    warm = decode(text, M4, again)
    assert warm.seconds < cold.seconds
    assert warm.drafted.get("dflash", 0) == 0


@pytest.mark.parametrize("seed", range(6))
def test_two_rounds_after_a_text_turned_bad_it_is_target_only(seed: int) -> None:
    """A turn that no parser sees, after a text in which drafts were nearly always right."""
    sure, lost = Kind("code", (0.97,), bogus=0.0), Kind("code", (0.0,), bogus=0.0)
    text = assembled("", [(sure, 400), (lost, 100)], 7, seed).text()
    rounds: list[Choice] = []
    decode(text, M4, SurplusController(Costs(M4)), watch=lambda choice, _: rounds.append(choice))
    after = [choice for choice in rounds if choice.context >= 400]
    assert all(choice.drafts > 0 for choice in rounds if 300 < choice.context < 395)
    assert [choice.drafts for choice in after if choice.drafts][2:] == []


def test_it_comes_back_when_drafting_pays_again() -> None:
    """Within a few tokens after a short bad spell, and after a long one too."""
    sure, lost = Kind("code", (0.97,)), Kind("code", (0.0,))
    for bad in (20, 2_000):
        text = assembled("", [(sure, 300), (lost, bad), (sure, 400)], 7, seed=4).text()
        rounds: list[Choice] = []
        decode(
            text,
            M4,
            SurplusController(Costs(M4)),
            watch=lambda choice, _, r=rounds: r.append(choice),
        )
        back = next(c.context for c in rounds if c.context >= 300 + bad and c.drafts)
        assert back - (300 + bad) <= (20 if bad == 20 else 140)


def test_a_known_regime_is_entered_with_what_is_known_of_it() -> None:
    spans = [(NEW_CODE, 200), (TOOL_CALL, 60)] * 8
    text = assembled("", spans, 7, seed=5).text()
    rounds: list[Choice] = []
    decode(text, M4, SurplusController(Costs(M4)), watch=lambda choice, _: rounds.append(choice))
    last_call = [c for c in rounds if c.context >= 7 * 260 + 200]
    assert not any(c.drafter == "dflash" for c in last_call)
    last_code = [c for c in rounds if 7 * 260 <= c.context < 7 * 260 + 200]
    assert last_code[0].drafter == "dflash"


def test_a_machine_that_slows_down_is_followed() -> None:
    """By half within the reply, with a tenth of noise on every round."""
    chance = random.Random(6)
    for kind in (NEW_CODE, HOPELESS):
        text = stationary("", kind, 4_000, 7, seed=6).text()
        controller = SurplusController(Costs(M4))
        outcome = decode(
            text,
            M4,
            controller,
            slowdown=lambda seconds: min(1 + seconds / 60, 1.5) * chance.gauss(1, 0.1),
        )
        assert 1.3 < controller.costs.drift < 1.7
        assert outcome.seconds <= 1.02 * outcome.target_only
    fixed = hindsight(text, M4)[0]
    assert outcome.seconds <= 1.6 * min(fixed.values())


def test_a_wrong_curve_is_corrected() -> None:
    """The curve says that rows are free; on the machine they are not."""
    text = stationary("", PROSE, 3_000, 7, seed=7).text()
    outcome = decode(text, M4, SurplusController(Costs(FLAT)))
    assert outcome.usual_width <= 4
    assert outcome.seconds < outcome.target_only


class Copied(Adversary):
    """`copied` tokens can be copied everywhere; dflash offers a whole block, and two are right."""

    def __init__(self, tokens: int, copied: int) -> None:
        super().__init__(tokens, 7)
        self._copied = copied

    def offers(self, position: int) -> list[Offer]:
        return [Offer("copy", self._copied), Offer("dflash", 7)]

    def right(self, position: int, offer: Offer, choice: Choice | None) -> int:
        return offer.drafts if offer.drafter == "copy" else min(2, offer.drafts)


@pytest.mark.parametrize(("copied", "share"), [(7, 0.0), (3, 0.01)])
def test_looks_take_a_hundredth_of_the_time_of_a_fast_reply(copied: int, share: float) -> None:
    """Not of target-only time; and nothing where dflash could not win by being always right."""
    machine, looks, seconds = curve(0.020, [1.0] * 8, draft=0.8), 0, 0.0
    controller = SurplusController(Costs(machine))

    def watch(choice: Choice, committed: int) -> None:
        nonlocal looks
        looks += sum(ask.drafter == "dflash" != choice.drafter for ask in choice.asks)

    # Each begins anew to look at what it does not use.
    for _ in range(50):
        outcome = decode(Copied(80, copied), machine, controller, watch=watch)
        seconds += outcome.seconds
    assert looks * 0.8 <= share * seconds / 0.020 + SAVED_UP
