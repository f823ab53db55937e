from __future__ import annotations

from engine.decoding.acceptance import Learnt
from engine.decoding.cost_curve import CostCurve, Grid
from engine.decoding.costs import Costs
from engine.decoding.looks import Key
from engine.decoding.policies import LONG_MATCH, Always, BySurplus, Never, Switching
from engine.decoding.surplus import SurplusController
from engine.drafters.drafter import Offer
from engine.drafters.portfolio import Portfolio

DFLASH, SHORT, LONG = (
    Offer("dflash", 7),
    Offer("copy", 4, LONG_MATCH - 1),
    Offer("copy", 7, LONG_MATCH),
)
GRAMMAR = Offer("grammar", 3)
CURVE = CostCurve(forward=Grid(contexts=(0,), counts=(1, 2), seconds=((1.0, 1.1),)))


def drafters(policy: Always, *offers: Offer) -> str:
    return policy.choose("code", 0, offers, 8).drafter


def test_always_copies_behind_a_long_match_only() -> None:
    assert drafters(Always(), LONG, DFLASH) == "copy"
    assert drafters(Always(), SHORT, DFLASH) == "dflash"
    assert drafters(Always(), SHORT) == "copy"
    assert drafters(Always(), GRAMMAR) == "grammar"
    assert drafters(Always()) == ""


def test_always_drafts_the_prediction_where_its_place_is_sure() -> None:
    sure, unsure = Offer("prediction", 7, LONG_MATCH), Offer("prediction", 7, 1)
    assert drafters(Always(), sure, LONG, DFLASH) == "prediction"
    assert drafters(Always(), unsure, LONG, DFLASH) == "copy"
    assert drafters(Always(), unsure, SHORT, DFLASH) == "dflash"
    assert drafters(Always(), unsure, SHORT) == "prediction"


def test_always_drafts_all_there_is_room_for() -> None:
    assert Always().choose("code", 0, [DFLASH], 99).drafts == 7
    choice = Always().choose("code", 9, [DFLASH], 3)
    assert (choice.drafts, choice.asks, choice.context) == (2, (Offer("dflash", 2),), 9)
    assert Always().choose("code", 0, [DFLASH], 1).drafts == 0


def test_turns_go_round() -> None:
    policy = Always(("copy", "none", "dflash"))
    turns = [drafters(policy, LONG, DFLASH) for _ in range(6)]
    assert turns == ["copy", "", "dflash"] * 2


def test_what_a_grammar_forces_is_drafted_whoever_has_the_turn() -> None:
    assert drafters(Always(("none",)), GRAMMAR) == "grammar"


def test_switching_tries_everything_and_repeats_itself_with_its_seed() -> None:
    def choices(seed: int) -> list[tuple[str, int, int]]:
        policy = Switching(seed)
        rounds = [policy.choose("code", n, [LONG, DFLASH], 8) for n in range(200)]
        return [(choice.drafter, choice.drafts, len(choice.asks)) for choice in rounds]

    seen = choices(1)
    assert {drafter for drafter, _, _ in seen} == {"", "copy", "dflash"}
    assert {drafts for _, drafts, _ in seen} == set(range(8))
    # Also looks at whom it does not use.
    assert any(asks > (drafts > 0) for _, drafts, asks in seen)
    assert choices(1) == seen
    assert choices(2) != seen


def test_never_drafts_and_learns_what_target_only_takes() -> None:
    costs = Costs(CURVE)
    policy = Never("asked not to draft", costs)
    choice = policy.choose("code", 0, [DFLASH], 8)
    assert (choice.drafts, choice.reason) == (0, "asked not to draft")
    for _ in range(30):
        policy.settle(choice, {}, [1], ended=False, seconds=2.0)
    assert costs.drift > 1.8


def test_by_surplus_asks_the_controller() -> None:
    controller = SurplusController(Costs(CURVE))
    controller.account = 50.0
    policy = BySurplus(controller)
    assert controller.account < 5
    choice = policy.choose("code", 0, [DFLASH], 8)
    assert choice.drafts == 1
    policy.settle(choice, {"dflash": [1, -1]}, [1, 2], ended=False, seconds=1.1)
    assert controller.learnt()


class Reading:
    """A context drafter."""

    name = "dflash"


def test_a_drafter_that_is_not_worth_it_is_left_out_of_a_reply() -> None:
    wrong = {Key("code", "dflash", 0): Learnt(accepted=(0.0,), tried=(90.0,))}
    left_out = Portfolio(None, Reading())
    BySurplus(SurplusController(Costs(CURVE), wrong)).thin_out(left_out, 1, 0)
    assert left_out.context is None
    kept = Portfolio(None, Reading())
    BySurplus(SurplusController(Costs(CURVE))).thin_out(kept, 1, 0)
    assert kept.context is not None
    BySurplus(SurplusController(Costs(CURVE))).thin_out(Portfolio(None, None), 1, 0)
