"""The command itself: its verbs, its errors, its exit codes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pillion_command import Pillion

from engine import EngineError, ModelError, PillionError, RequestError
from sidecar.cli import VERBS, _exit_code, _one_line, load_verb
from sidecar.metrics import version


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_loads_and_explains_itself(pillion: Pillion, verb: str) -> None:
    assert load_verb(verb).name == verb
    done = pillion(verb, "--help")
    assert done.code == 0
    assert f"Usage: pillion {verb}" in done.out


def test_help_lists_every_verb(pillion: Pillion) -> None:
    done = pillion("--help")
    assert all(f"  {verb} " in done.out and summary in done.out for verb, summary in VERBS.items())


def test_version(pillion: Pillion) -> None:
    assert pillion("--version").out == f"pillion {version()}\n"


def test_mistyped_verb(pillion: Pillion) -> None:
    done = pillion("servr")
    assert done.code == 2
    assert "Did you mean 'serve'?" in done.err


def test_exit_codes_say_whose_fault_it_was() -> None:
    assert _exit_code(RequestError("x")) == 2
    assert _exit_code(EngineError("x")) == 3
    assert _exit_code(ModelError("x")) == 1
    assert _exit_code(PillionError("x")) == 1
    assert _exit_code(OSError("x")) == 1


def test_other_errors_are_one_line_too() -> None:
    assert _one_line(FileNotFoundError(2, "No such file", "f.py")) == "f.py: No such file"
    assert _one_line(ValueError("odd")) == "ValueError: odd (PILLION_DEBUG=1 shows where)"


def test_one_line_without_traceback(pillion: Pillion, home: Path) -> None:
    file = home / "bad.toml"
    file.write_text("[http]\nport = -1\n")
    done = pillion("status", "--config", str(file))
    assert done.code == 2
    assert done.err == f"error: {file}: [http] port: must be from 0 to 65535, got -1\n"


def test_traceback_on_demand(pillion: Pillion, monkeypatch: pytest.MonkeyPatch) -> None:
    from sidecar.cli import main

    monkeypatch.setenv("PILLION_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["pillion", "generate", "hi"])
    with pytest.raises(PillionError, match="no daemon is running"):
        main()
