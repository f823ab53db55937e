"""Where a round's time goes, by a clock that only what is asked for moves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_drafters import tiny_drafter
from tiny_models import tiny

from engine.decoding.profile import Profiler
from engine.targets.target import bind


class Clock:
    """Every look at it takes a millisecond."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


@pytest.mark.parametrize("drafting", [False, True])
def test_a_round_is_taken_apart(drafting: bool) -> None:
    model, config = tiny("qwen3")
    target = bind(model, config)
    drafter = tiny_drafter("v2", len(model.layers))
    target.tap(drafter.config.target_layer_ids)
    profiler = Profiler(target, "tiny", drafter, rounds=3, clock=Clock(), busy=Clock())
    found = profiler.profile(4, "T 0.7", drafting=drafting)
    assert (found.model, found.sampling) == ("tiny", "T 0.7")
    assert found.round == ("4 rows, drafted" if drafting else "4 rows")
    parts = (found.draft_ms, found.build_ms, found.choice_ms, found.wait_ms, found.rest_ms)
    assert parts == (1.0,) * 5
    assert found.cpu_ms == pytest.approx(1 / 3, abs=1e-3)
    # A drafter that is a graph has to be waited for, too.
    assert found.waits == (2 if drafting else 1)
