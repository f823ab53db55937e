from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from engine import EngineError, EngineOptions, RoundProfile, profile_command
from sidecar.cli import bench_profile
from sidecar.cli.bench_profile import profile
from sidecar.config import load_config

ROUND = RoundProfile(
    model="tiny", round="8 rows, drafted", sampling="greedy", wait_ms=1.5, cpu_ms=2.25, waits=1
)


def printing(monkeypatch: pytest.MonkeyPatch, *rounds: RoundProfile, code: int = 0) -> None:
    lines = b"\n".join(msgspec.json.encode(one) for one in rounds).decode()
    program = f"import sys; print({lines!r}); sys.exit({code})"
    monkeypatch.setattr(
        bench_profile, "profile_command", lambda options: [sys.executable, "-c", program]
    )


def test_rounds_are_shown_and_written(monkeypatch, tmp_path: Path, capsys) -> None:
    printing(monkeypatch, ROUND)
    profile([EngineOptions(), EngineOptions()], tmp_path / "profile.json")
    report = json.loads((tmp_path / "profile.json").read_text())
    assert report["figures"] == {"rounds": 2}
    assert report["profile"] == [msgspec.to_builtins(ROUND)] * 2
    assert "2.25" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rounds", "code", "why"),
    [([RoundProfile(error="no such model")], 0, "no such model"), ([ROUND], 3, "exit code 3")],
)
def test_a_process_that_gives_up_says_why(monkeypatch, rounds, code, why) -> None:
    printing(monkeypatch, *rounds, code=code)
    with pytest.raises(EngineError, match=why):
        profile([EngineOptions()], None)


def test_the_process_gets_the_engine_s_options_alone() -> None:
    options = load_config({"engine.kernels": "off"}).engine
    asked = json.loads(profile_command(options)[-1])
    assert asked["kernels"] == "off"
    assert msgspec.convert(asked, EngineOptions).model == options.model
