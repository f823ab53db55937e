from __future__ import annotations

from pathlib import Path

import pytest

from engine import ModelError
from sidecar.jobs import held_out_code as module
from sidecar.jobs.held_out_code import EACH, PACKAGES, begun_functions, held_out_code

FUNCTION = '''\
import os


def {name}(value):
    """What it does."""
    first = value
{body}    return first


def short(value):
    return value
'''


def package(folder: Path, files: int) -> Path:
    folder.mkdir(parents=True)
    for number in range(files):
        body = "    first += 1\n" * 8
        text = FUNCTION.format(name=f"function_{number}", body=body)
        (folder / f"m{number:02}.py").write_text(text)
    return folder


def test_functions_are_begun_and_spread_over_the_package(tmp_path: Path) -> None:
    prompts = begun_functions("p", package(tmp_path / "p", 8))
    assert [prompt.name for prompt in prompts] == [
        f"p/m{number:02}.py:function_{number}" for number in (0, 2, 4, 6)
    ]
    assert prompts[0].text == ('import os\n\n\ndef function_0(value):\n    """What it does."""\n')


def test_a_package_without_long_functions_gives_none(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "m.py").write_text("def f():\n    return 1\n")
    assert begun_functions("p", tmp_path / "p") == []


def unpacked(folder: Path):
    def fetch(requirement: str, sha256: str) -> Path:
        assert PACKAGES[requirement] == sha256
        name = requirement.partition("==")[0]
        if not (folder / name).is_dir():
            package(folder / name, 5)
        return folder

    return fetch


def refuse(requirement: str, sha256: str) -> Path:
    raise ModelError("no index")


def test_pinned_packages_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "unpacked_wheel", unpacked(tmp_path))
    found = held_out_code()
    assert found.source == ", ".join(PACKAGES)
    assert len(found.prompts) == EACH * len(PACKAGES)


def test_then_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path / "flask", 4)
    (tmp_path / "flask" / "__init__.py").write_text("raise SystemExit('it ran')")
    monkeypatch.setattr(module, "unpacked_wheel", refuse)
    monkeypatch.setattr(
        module, "_installed", lambda name: tmp_path / name if name == "flask" else None
    )
    found = held_out_code()
    assert found.source == "flask as installed"
    assert len(found.prompts) == EACH


def test_installed_packages_are_found() -> None:
    folder = module._installed("typer")
    assert folder is not None
    assert (folder / "__init__.py").is_file()
    assert module._installed("no_such_package_here") is None


def test_else_our_own_prompts_which_are_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "unpacked_wheel", refuse)
    monkeypatch.setattr(module, "_installed", lambda name: None)
    found = held_out_code()
    assert "own prompts" in found.source
    assert {prompt.regime for prompt in found.prompts} == {"new code"}
    assert all("@name@" not in prompt.user + prompt.text for prompt in found.prompts)
