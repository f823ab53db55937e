"""The source distribution, installed where no compiler is: it works and says what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LACKS = """
import engine.cpu
try:
    engine.cpu.describe()
except engine.cpu.Unavailable as reason:
    print(reason)
import sys
from sidecar.cli import main
sys.argv = ["pillion", "--version"]
main()
"""


def run(*command: str, cwd: Path, **more: str) -> str:
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": ""} | more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_without_a_compiler_it_installs_and_says_so(tmp_path: Path) -> None:
    made = tmp_path / "made"
    run("-m", "hatchling", "build", "-t", "sdist", "-d", str(made), cwd=ROOT)
    (archive,) = made.iterdir()
    with tarfile.open(archive) as source:
        source.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.glob("pillion-*")
    assert not list(folder.glob("engine/cpu/_kernels*"))
    into = tmp_path / "installed"
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    alone = ("--no-deps", "--no-build-isolation", "--target", str(into), str(folder))
    run(*pip, *alone, cwd=tmp_path, CXX="no-such-compiler")
    assert not list(into.glob("engine/cpu/_kernels*"))
    said = run("-c", LACKS, cwd=tmp_path, PYTHONPATH=str(into), CXX="no-such-compiler")
    assert "no C++ compiler (no-such-compiler) was found" in said
    assert said.splitlines()[-1].startswith("pillion ")
