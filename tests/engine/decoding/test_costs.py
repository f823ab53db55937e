from __future__ import annotations

import msgspec
import pytest

from engine.decoding.cost_curve import CostCurve, Grid
from engine.decoding.costs import Costs
from engine.drafters.drafter import Offer

CURVE = CostCurve(
    forward=Grid(contexts=(0, 1280), counts=(1, 2, 3), seconds=((1.0, 1.5, 3.0), (2.0, 2.5, 4.0))),
    drafters={"dflash": Grid(contexts=(0,), counts=(1, 2), seconds=((0.25, 0.5),))},
)


def test_predicts_what_the_curve_says() -> None:
    costs = Costs(CURVE)
    assert costs.target(0) == 1.0
    assert costs.target(1280) == 2.0
    assert costs.verify("dflash", 0, 0) == 1.0
    assert costs.verify("dflash", 2, 0) == 3.0
    assert costs.draft("dflash", 1, 0) == 0.25
    assert costs.proposals("dflash", 0) == [0.0, 0.25, 0.5]
    assert costs.rounds("dflash", 0) == [1.75, 3.5]
    assert costs.rounds("dflash", 1280)[0] == (2.5 + 0.25) / 2.0


def test_a_drafter_without_a_curve_costs_nothing() -> None:
    costs = Costs(CURVE)
    assert costs.draft("copy", 2, 0) == 0.0
    assert costs.rounds("copy", 0) == [1.5, 3.0]


def test_more_than_was_measured_costs_as_much_as_the_most() -> None:
    costs = Costs(CURVE)
    assert costs.draft("dflash", 9, 0) == 0.5
    assert costs.verify("dflash", 9, 0) == 3.0
    assert len(costs.rounds("dflash", 0)) == 2


def test_follows_a_machine_that_slows_down() -> None:
    costs = Costs(CURVE)
    for _ in range(40):
        costs.observe("", 0, 0, 0, 1.4)
    assert costs.target(0) == pytest.approx(1.4, rel=0.01)
    assert costs.rounds("dflash", 0)[0] == 1.75
    assert costs.stale
    for _ in range(40):
        costs.observe("", 0, 0, 0, 1.0)
    assert not costs.stale


def test_one_round_that_was_interrupted_changes_little() -> None:
    costs = Costs(CURVE)
    costs.observe("", 0, 0, 0, 900.0)
    assert costs.drift < 1.1


def test_a_width_that_costs_more_than_its_curve_is_told_from_a_slow_machine() -> None:
    """Target-only rounds stay as quick as they were."""
    costs = Costs(CURVE)
    for _ in range(200):
        costs.observe("dflash", 2, 2, 0, 4.5)
        costs.observe("", 0, 0, 0, 1.0)
    assert costs.target(0) == pytest.approx(1.0, rel=0.1)
    assert costs.rounds("dflash", 0)[1] == pytest.approx(4.5, rel=0.1)
    assert costs.rounds("dflash", 0)[0] == pytest.approx(1.75, rel=0.1)


def test_drafted_rounds_that_slow_down_call_for_a_target_only_one() -> None:
    costs = Costs(CURVE)
    assert not costs.unconfirmed
    for _ in range(60):
        costs.observe("dflash", 1, 1, 0, 1.75 * 1.4)
    assert costs.unconfirmed
    costs.observe("", 0, 0, 0, 1.4)
    assert not costs.unconfirmed


def test_reading_what_a_drafter_is_behind() -> None:
    costs = Costs(msgspec.structs.replace(CURVE, reading={"dflash": 0.01}))
    assert costs.reading("dflash", 16, 0) == 0.0
    assert costs.reading("dflash", 116, 0) == pytest.approx(1.0)
    assert costs.reading("dflash", 116, 1280) == pytest.approx(0.5)
    assert costs.reading("copy", 116, 0) == 0.0


def test_what_reading_takes_is_learnt() -> None:
    costs = Costs(msgspec.structs.replace(CURVE, reading={"dflash": 0.01}))
    reader = Offer("dflash", 3, behind=116)
    rest = costs.verify("", 0, 0) + costs.draft("dflash", 3, 0)
    for _ in range(20):
        costs.observe_reading("", 0, reader, 0, rest + 100 * 0.03)
    assert costs.reading("dflash", 116, 0) == pytest.approx(3.0, rel=0.01)
    # However long a round takes, not more than four times that is believed of it.
    costs.observe_reading("", 0, reader, 0, 1e6)
    assert costs.reading("dflash", 116, 0) < 6.0
    for _ in range(40):
        costs.observe_reading("", 0, reader, 0, rest - 0.1)
    assert costs.reading("dflash", 116, 0) == pytest.approx(0.0, abs=0.01)
    costs.renew(costs.curve)
    assert costs.reading("dflash", 116, 0) == pytest.approx(1.0)
