"""What a user installs: our three packages with their data, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from source_tree import PACKAGES, ROOT, files

from engine.cpu.build import MODULE


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_module(wheel_names: set[str]) -> None:
    assert {path.as_posix() for path in files(*PACKAGES)} <= wheel_names


def test_the_wheel_holds_the_builtin_model(wheel_names: set[str]) -> None:
    manifest = (ROOT / "engine/builtin/SHA256SUMS").read_text()
    listed = {f"engine/builtin/{line.split()[1]}" for line in manifest.splitlines()}
    assert any(name.endswith(".safetensors") for name in listed)
    assert listed <= wheel_names


def test_the_wheel_holds_the_dashboard(wheel_names: set[str]) -> None:
    folder = ROOT / "sidecar/http/dashboard/assets"
    assets = {path.relative_to(ROOT).as_posix() for path in folder.iterdir()}
    assert len(assets) > 5
    assert assets <= wheel_names


def test_the_wheel_holds_nothing_else(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    compiled = {name for name in wheel_names if Path(name).suffix in {".pyc", ".so"}}
    # Kernels that were built here; elsewhere the wheel is pure.
    assert compiled <= {f"engine/cpu/{MODULE.name}"}
