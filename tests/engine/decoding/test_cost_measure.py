from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_drafters import tiny_drafter
from tiny_models import tiny

from engine.decoding.cost_curve import CostCurve, Grid
from engine.decoding.cost_measure import FEWEST_REPEATS, REPEATS, CostMeasurement
from engine.targets.target import bind


class Rounds:
    """A clock by which a forward or a proposal takes as long as it has rows, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-9
        return self.now


def measured(family: str, width: int, *, drafter: bool, slow: float) -> CostMeasurement:
    model, config = tiny(family)
    target, clock, tapped = bind(model, config), Rounds(), None
    if drafter:
        tapped = tiny_drafter("v1", len(model.layers))
        target.tap(tapped.config.target_layer_ids)
    forward = target.forward

    def timed(tokens: list[int], caches: object) -> mx.array:
        clock.now += slow * len(tokens)
        return forward(tokens, caches)

    target.forward = timed
    return CostMeasurement(target, 261, 512, width, tapped, clock=clock)


def test_measures_every_width_at_every_context_that_fits() -> None:
    measurement = measured("qwen3", 4, drafter=False, slow=0.001)
    assert measurement.share == 0
    steps = 0
    while measurement.step():
        steps += 1
    assert measurement.share == 1
    assert steps == 1 + 4 * REPEATS
    curve = measurement.curve()
    assert curve.forward.contexts == (64,)
    assert [round(s, 6) for s in curve.forward.row(64)] == [0.001, 0.002, 0.003, 0.004]
    assert curve.drafters == {}
    assert not measurement.step()


def test_slow_machines_are_measured_less_often() -> None:
    measurement = measured("qwen3", 2, drafter=False, slow=10.0)
    assert sum(iter(measurement.step, False)) == 1 + 2 * FEWEST_REPEATS


def test_a_recurrent_target_and_its_drafter_are_measured_too() -> None:
    measurement = measured("qwen3_5", 3, drafter=True, slow=0.001)
    while measurement.step():
        pass
    curve = measurement.curve()
    assert curve.drafters["dflash"].counts == (1, 2)
    assert all(seconds > 0 for seconds in curve.drafters["dflash"].seconds[0])
    assert curve.reading["dflash"] >= 0


@pytest.mark.parametrize(
    ("known", "holds"),
    [((0.001, 0.002, 0.003), True), ((0.001, 0.002, 0.002), False), ((0.01, 0.02, 0.03), False)],
)
def test_a_curve_is_confirmed_by_a_few_rounds(known: tuple[float, ...], holds: bool) -> None:
    forward = Grid(contexts=(64,), counts=(1, 2, 3), seconds=(known,))
    measurement = measured("qwen3", 3, drafter=False, slow=0.001)
    assert measurement.confirms(CostCurve(forward=forward)) is holds
    # It can still be measured behind that.
    while measurement.step():
        pass
    assert [round(s, 6) for s in measurement.curve().forward.row(64)] == [0.001, 0.002, 0.003]


def test_a_drafter_is_confirmed_too() -> None:
    forward = Grid(contexts=(64,), counts=(1, 2, 3), seconds=((0.001, 0.002, 0.003),))
    for seconds in (1e-9, 1e9):
        drafts = Grid(contexts=(64,), counts=(1, 2), seconds=((seconds, seconds),))
        measurement = measured("qwen3_5", 3, drafter=True, slow=0.001)
        curve = CostCurve(forward=forward, drafters={"dflash": drafts})
        assert measurement.confirms(curve) is (seconds == 1e-9)
