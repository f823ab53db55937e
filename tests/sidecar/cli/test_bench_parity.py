from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
import typer

from engine import EngineError, ParityCase
from sidecar.cli import bench_parity
from sidecar.cli.bench_parity import figures_of, parity

SAME = ParityCase(name="full", rounds=5, tokens=35)
LOOP = ParityCase(name="loop", rounds=5, tokens=9, accepted=4)
OTHER = ParityCase(name="mixed", rounds=5, tokens=35, token_differences=2)
LENGTHS = ParityCase(name="loop", rounds=5, tokens=9, accepted=4, accepted_length_differences=1)
HYBRID = ParityCase(name="hybrid", counts=False, rounds=5, tokens=9, token_differences=9)


@pytest.fixture
def results(monkeypatch):
    """Sets what the comparing process prints, and its exit code."""

    def print_(*cases: ParityCase, code: int = 0) -> None:
        lines = b"\n".join(msgspec.json.encode(case) for case in cases).decode()
        program = f"import sys; print({lines!r}); sys.exit({code})"
        monkeypatch.setattr(
            bench_parity, "parity_command", lambda rounds: [sys.executable, "-c", program]
        )

    return print_


def test_equal_drafts(results, tmp_path: Path, capsys) -> None:
    results(SAME, LOOP, HYBRID)
    parity(5, tmp_path / "parity.json")
    report = json.loads((tmp_path / "parity.json").read_text())
    assert report["figures"] == {
        "cases": 2,
        "rounds": 10,
        "draft_tokens": 44,
        "draft_token_differences": 0,
        "accepted_length_differences": 0,
        "uncounted_token_differences": 9,
    }
    assert [case["name"] for case in report["cases"]] == ["full", "loop", "hybrid"]
    assert "not counted" in capsys.readouterr().out


@pytest.mark.parametrize("case", [OTHER, LENGTHS])
def test_a_difference_fails(results, case, capsys) -> None:
    results(SAME, case)
    with pytest.raises(typer.Exit) as ended:
        parity(5, None)
    assert ended.value.exit_code == 1
    assert "do not draft what the official ones do" in capsys.readouterr().err


def test_a_comparison_that_gives_up_says_why(results) -> None:
    results(SAME, ParityCase(error="pip could not install dflash"))
    with pytest.raises(EngineError, match="pip could not install"):
        parity(5, None)
    results(SAME, code=3)
    with pytest.raises(EngineError, match="exit code 3"):
        parity(5, None)


def test_figures_of_nothing() -> None:
    assert figures_of([])["rounds"] == 0
