"""What the verbs show of drafting: status, generate --explain, doctor --costs."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from pillion_command import Pillion
from reported_surplus import CALL, CODE, COSTS, TIMELINE, report

from engine import CostCurve, EngineClient, Grid, Step
from engine.testing import FakeEngine
from sidecar.cli import costs, status, surplus
from sidecar.cli.private_daemon import daemon_in_thread
from sidecar.config import Config
from sidecar.runtime_dir import Address


def test_status_says_what_was_saved() -> None:
    rows = dict(status.rows(report()))
    assert rows["surplus"] == (
        "drafting saved 1.24 s against target-only; code +13.9 ms/token, tool_call -2.0 ms/token; "
        "rounds take 1.30 times what was measured"
    )
    assert dict(status.rows(report(regimes=(), slowdown=1.0)))["surplus"] == ""


@pytest.fixture
def backend() -> FakeEngine:
    facts = {"regimes": (CODE, CALL), "timeline": TIMELINE}
    return FakeEngine("a reply", facts=facts, costs=COSTS)


def test_generate_explains_on_stderr(
    pillion: Pillion, daemon: Address, backend: FakeEngine
) -> None:
    done = pillion("generate", "hello", "--explain")
    assert backend.seen[-1].explain
    assert done.out == "a reply\n"
    for said in (
        "copy in 20 rounds: 80% 50%",
        "0.50 s: said",
        "1:10 5:20",
        "+13.89 ms/token",
        "drafting saved 1.24 s",
        "[code] target/1x10 copy/5x20 [tool_call] target/1x5",
    ):
        assert said in done.err
    assert not pillion("generate", "hello").err
    assert not backend.seen[-1].explain


def test_a_long_timeline_is_cut() -> None:
    spans = list(surplus.spans(msgspec.to_builtins(TIMELINE) * 100))
    assert spans[-1] == f"and {300 - surplus.MOST_SPANS} more"


@pytest.mark.parametrize(
    ("rows", "metal", "why"),
    [
        (2, False, costs.ROW_BY_ROW),
        (6, False, costs.UNKNOWN),
        (2, True, costs.EVERY_ROW),
        (6, True, costs.WEIGHTS_AGAIN),
        (9, True, costs.ATTENTION),
        (13, True, costs.MATRIX_KERNEL),
    ],
)
def test_what_a_step_means(rows: int, metal: bool, why: str) -> None:
    assert costs.meaning(Step(rows=rows, share=0.5, times=1.5), metal=metal) == why


def test_steps_are_explained() -> None:
    (line,) = costs.explained(COSTS, metal=True)
    assert line.startswith("step at 6 rows: 1.50 times what 5 cost, 0.75 of a target-only round")
    flat = CostCurve(forward=Grid(contexts=(0,), counts=(1, 2), seconds=((1.0, 1.1),)))
    assert next(costs.explained(flat, metal=True)).startswith("no steps")


def test_doctor_shows_the_running_daemons_costs(pillion: Pillion, daemon: Address) -> None:
    done = pillion("doctor", "--costs")
    assert done.code == 0
    for said in ("90.00 ms", "2.25", "one proposal of dflash", "25 us a token", "step at 6"):
        assert said in done.out
    plain = pillion("doctor", "--costs", "--json").json["costs"]
    assert msgspec.convert(plain, CostCurve) == COSTS


def test_a_model_without_costs_says_why(pillion: Pillion, settings: Config) -> None:
    with daemon_in_thread(settings, EngineClient(FakeEngine())):
        done = pillion("doctor", "--costs")
    assert done.code == 2
    assert "only decoded target-only" in done.err
