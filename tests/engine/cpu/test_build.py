"""Where the kernels cannot be built Pillion is installed all the same, and says why."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import engine.cpu as cpu
from engine.cpu import build

CPU = Path(cpu.__file__).parent


class Said:
    """Stands for hatchling's application."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def display_info(self, message: str) -> None:
        pass

    def display_warning(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def unbuilt(tmp_path: Path) -> ModuleType:
    """The build hook in a tree where nothing has been built."""
    for name in ("build.py", "build_hook.py"):
        shutil.copy(CPU / name, tmp_path)
    shutil.copytree(CPU / "kernels", tmp_path / "kernels")
    spec = importlib.util.spec_from_file_location("hook", tmp_path / "build_hook.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


@pytest.mark.skipif(sys.platform != "linux", reason="there is nothing to build elsewhere")
@pytest.mark.parametrize(
    ("compiler", "why"),
    [("/bin/false", "false: exit code 1"), ("no-such-compiler", "no C++ compiler (no-such-")],
)
def test_without_a_compiler_that_works_there_are_no_kernels(unbuilt, monkeypatch, compiler, why):
    monkeypatch.setenv("CXX", compiler)
    app, data = Said(), {"artifacts": [], "pure_python": True}
    hook: Any = unbuilt.KernelsHook("", {}, None, None, "", "wheel", app)
    hook.initialize("standard", data)
    assert data == {"artifacts": [], "pure_python": True}
    (warning,) = app.warnings
    assert warning.startswith("no CPU kernels: ")
    assert why in warning


def test_another_platform_is_named(monkeypatch):
    monkeypatch.setattr(build.sys, "platform", "darwin")
    with pytest.raises(build.BuildError, match="the kernels are for Linux"):
        build.compiler()


def test_what_is_missing_is_said_where_the_kernels_are_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "MODULE", tmp_path / "_kernels.so")
    monkeypatch.setenv("CXX", "no-such-compiler")
    cpu.extension.cache_clear()
    try:
        with pytest.raises(cpu.Unavailable, match="no-such-compiler"):
            cpu.extension()
        monkeypatch.delenv("CXX")
        if sys.platform == "linux" and shutil.which("g++"):
            with pytest.raises(cpu.Unavailable, match=r"python\S* -m engine.cpu builds them"):
                cpu.describe()
    finally:
        cpu.extension.cache_clear()
