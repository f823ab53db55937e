"""What the loop does for the surplus controller: costs are followed, and measured again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from loops import VOCABULARY, LoopUnderTest, says

from engine.decoding.cost_curve import CostCurve, Grid
from engine.decoding.costs import Costs
from engine.decoding.looks import Key
from engine.decoding.surplus import SurplusController
from engine.doubles import ScriptedTarget
from engine.messages import GenerateRequest

PROMPT = b"\x00"
REPLY = "one two three one two three one two three one two three one two three."


def curve(second: float) -> CostCurve:
    row = tuple(second * (1 + 0.1 * n) for n in range(8))
    return CostCurve(forward=Grid(contexts=(0,), counts=tuple(range(1, 9)), seconds=(row,)))


class Measurement:
    """Takes three rounds and finds that they take `second` each."""

    def __init__(self, second: float) -> None:
        self.second = second
        self.steps = 0

    def step(self) -> bool:
        self.steps += 1
        return self.steps <= 3

    def curve(self) -> CostCurve:
        return curve(self.second)


def loop_of(second: float, again: list[Measurement]) -> LoopUnderTest:
    def measure() -> Measurement:
        again.append(Measurement(7.0))
        return again[-1]

    return LoopUnderTest(
        ScriptedTarget(says(REPLY), VOCABULARY),
        surplus=SurplusController(Costs(curve(second))),
        measurement=measure,
        audit=False,
    )


def test_a_machine_that_changed_is_measured_again_in_idle_time() -> None:
    """The curve says 1000 s a round, and they take microseconds."""
    again: list[Measurement] = []
    loop = loop_of(1000.0, again)
    loop.open(GenerateRequest(id="a", prompt=tuple(PROMPT)))
    while loop.active or loop.queued:
        assert again == [], "measured while somebody waits"
        loop.turn()
    costs = loop.surplus.costs
    assert costs.stale
    loop.until_idle()
    assert [one.steps for one in again] == [4]
    assert costs.curve == curve(7.0)
    assert not costs.stale


def test_a_request_does_not_wait_for_the_measuring() -> None:
    again: list[Measurement] = []
    loop = loop_of(1000.0, again)
    loop.reply(PROMPT, id="a", max_tokens=1)
    loop.surplus.costs.drift = 2.0
    loop.turn()
    loop.turn()
    assert again[0].steps == 2
    loop.open(GenerateRequest(id="b", prompt=tuple(PROMPT), max_tokens=20))
    while loop.active or loop.queued:
        loop.turn()
    assert again[0].steps == 2


def test_a_machine_as_measured_is_not_measured_again() -> None:
    again: list[Measurement] = []
    loop = loop_of(1000.0, again)
    loop.reply(PROMPT, max_tokens=1)
    assert again == []


@pytest.mark.parametrize("second", [1e-6, 1e3])
def test_what_a_reply_teaches_is_there_for_the_next_one(second: float) -> None:
    loop = loop_of(second, [])
    assert loop.surplus.learnt() == {}
    finished = loop.reply(PROMPT)
    keys = list(loop.surplus.learnt())
    assert {key.drafter for key in keys} == {"copy"}
    assert isinstance(keys[0], Key)
    # By kind of text, in the reply and since the start.
    assert [one.regime for one in finished.regimes] == [one.regime for one in loop.regimes]
    assert sum(one.tokens for one in loop.regimes) == len(finished.tokens) - 1
