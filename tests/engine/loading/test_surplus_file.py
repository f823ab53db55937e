"""What was measured and learnt, from start to start."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_models import tiny

from engine.decoding.acceptance import Learnt
from engine.decoding.cost_curve import CostCurve, Grid
from engine.decoding.looks import Key
from engine.loading import surplus_file
from engine.loading.measured import Measured, measured
from engine.loading.surplus_file import SurplusFile
from engine.targets.target import bind
from engine.testing import fake_model

CURVE = CostCurve(forward=Grid(contexts=(64,), counts=(1, 2), seconds=((1.0, 1.5),)))
LEARNT = {Key("code", "copy", 4): Learnt(accepted=(3.0, 1.0), tried=(4.0, 3.0))}


def start(said: list[str], width: int = 2, *, confirmed: bool = True) -> Measured:
    model, config = tiny("qwen3")
    return measured(
        bind(model, config),
        fake_model(512),
        width,
        None,
        "",
        lambda what, _: said.append(what),
        confirms=lambda *_: confirmed,
    )


def test_the_second_start_measures_nothing_and_knows_what_was_learnt() -> None:
    said: list[str] = []
    first = start(said)
    assert said
    first.controller.acceptance(Key("code", "copy", 4)).observe(2, 3)
    first.keep(now=True)
    said.clear()
    second = start(said)
    assert said == []
    assert second.controller.costs.curve == first.controller.costs.curve
    assert second.controller.learnt() == first.controller.learnt()


def test_a_curve_that_no_longer_holds_is_measured_again_and_what_was_learnt_is_kept() -> None:
    start([]).file.write(CURVE, LEARNT)
    said: list[str] = []
    again = start(said, confirmed=False)
    assert said
    assert again.controller.costs.curve != CURVE
    assert again.controller.learnt() == LEARNT


def test_other_widths_are_measured_and_what_was_learnt_is_kept() -> None:
    start([])
    SurplusFile(fake_model(), "").write(CURVE, LEARNT)
    said: list[str] = []
    assert start(said, width=3).controller.learnt() == LEARNT
    assert said


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b'{"machine": 1}',
        b'{"machine":"x","mlx":"y","curve":{"forward":{"contexts":[0],"counts":[2],"seconds":[[1]]}}}',
    ],
)
def test_a_damaged_file_is_as_good_as_none(damage: bytes) -> None:
    file = SurplusFile(fake_model(), "")
    file.write(CURVE, LEARNT)
    assert file.read() is not None
    file.path.write_bytes(damage)
    assert file.read() is None
    assert start([]).controller.learnt() == {}
    assert file.read() is not None


def test_a_curve_of_another_machine_or_mlx_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    file = SurplusFile(fake_model(), "")
    file.write(CURVE, LEARNT)
    kept = file.read()
    assert file.curve(kept, 2, set()) == CURVE
    assert file.curve(kept, 3, set()) is None
    assert file.curve(kept, 2, {"dflash"}) is None
    assert file.curve(None, 2, set()) is None
    monkeypatch.setattr(surplus_file, "machine", lambda: "another one")
    assert file.curve(kept, 2, set()) is None


def test_the_file_is_the_users_alone_and_has_a_safe_name() -> None:
    file = SurplusFile(fake_model(), "../org/drafter")
    file.write(CURVE, LEARNT)
    assert file.path.parent.name == "surplus"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]


def test_a_place_that_cannot_be_written_costs_no_start(home: Path) -> None:
    (home / "cache" / "pillion").mkdir()
    (home / "cache" / "pillion" / "surplus").write_text("in the way")
    assert start([]).controller.account == 0
