from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.decoding.cost_curve import CostCurve, Grid
from engine.errors import ModelError


def grid(*rows: tuple[float, ...], contexts: tuple[int, ...] = (0, 1000)) -> Grid:
    counts = tuple(range(1, len(rows[0]) + 1))
    return Grid(contexts=contexts[: len(rows)], counts=counts, seconds=rows)


def test_linear_between_contexts_and_on_behind_the_last() -> None:
    measured = grid((1.0, 2.0), (2.0, 2.0))
    assert measured.row(-5) == measured.row(0) == [1.0, 2.0]
    assert measured.row(500) == [1.5, 2.0]
    assert measured.row(3000) == [4.0, 2.0]


def test_noise_does_not_make_long_contexts_cheap() -> None:
    assert grid((1.0,), (0.9,)).row(20_000) == [0.9]


def test_linear_between_counts() -> None:
    measured = Grid(contexts=(0,), counts=(1, 2, 4, 8), seconds=((1.0, 2.0, 3.0, 7.0),))
    assert measured.row(10) == [1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"counts": (2, 3)}, "begin with 1"),
        ({"counts": ()}, "begin with 1"),
        ({"contexts": ()}, "begin with 1"),
        ({"contexts": (5, 5)}, "does not ascend"),
        ({"counts": (1, 1)}, "does not ascend"),
        ({"seconds": ((1.0,), (1.0,))}, "must be 2 x 2"),
        ({"seconds": ((1.0, 2.0),)}, "must be 2 x 2"),
        ({"seconds": ((1.0, 2.0), (1.0, 0.0))}, "positive and finite"),
        ({"seconds": ((1.0, 2.0), (1.0, float("nan")))}, "positive and finite"),
        ({"seconds": ((1.0, 2.0), (1.0, float("inf")))}, "positive and finite"),
    ],
)
def test_a_damaged_grid_is_refused(fields: dict[str, Any], message: str) -> None:
    sound: dict[str, Any] = {
        "contexts": (0, 9),
        "counts": (1, 2),
        "seconds": ((1.0, 2.0), (1.0, 2.0)),
    }
    Grid(**sound)
    with pytest.raises(ModelError, match=message):
        Grid(**sound | fields)


def test_a_curve_survives_json() -> None:
    curve = CostCurve(forward=grid((1.0, 2.0)), drafters={"dflash": grid((0.25,))})
    assert msgspec.json.decode(msgspec.json.encode(curve), type=CostCurve) == curve


def test_steps_are_rows_that_cost_much_more_than_the_one_before() -> None:
    curve = CostCurve(forward=grid((1.0, 1.05, 1.17, 1.35, 1.5, 2.25, 2.5, 2.75)))
    assert [(step.rows, round(step.share, 2), round(step.times, 2)) for step in curve.steps(0)] == [
        (6, 0.75, 1.5)
    ]
    assert CostCurve(forward=grid((1.0,) * 8)).steps(0) == []
    linear = CostCurve(forward=grid(tuple(1.0 + 0.4 * n for n in range(8))))
    assert [step.rows for step in linear.steps(0)] == [2]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_reading_takes_time(seconds: float) -> None:
    with pytest.raises(ModelError, match="positive and finite"):
        CostCurve(forward=grid((1.0,)), reading={"dflash": seconds})
