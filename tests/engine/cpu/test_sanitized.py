"""The kernels on buffers of exactly their size: under the sanitizers, and on Arm in an emulator.

`make test-sanitized` runs just this.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from engine.cpu.build import EXACT, INSTRUCTION_SETS, SOURCES, BuildError, compiler

SANITIZED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
DRIVER = Path(__file__).with_name("sanitized_kernels.cpp")
ARM_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


def build(command: list[str], machine: str, driver_flags: list[str], folder: Path) -> Path:
    command = [*command, "-std=c++20", f"-I{SOURCES}"]
    objects = []
    for name, flags in INSTRUCTION_SETS[machine].items():
        objects.append(str(folder / f"{name}.o"))
        source = str(SOURCES / f"{name}.cpp")
        subprocess.run([*command, *flags, "-c", source, "-o", objects[-1]], check=True)
    program = folder / "sanitized_kernels"
    subprocess.run([*command, *driver_flags, str(DRIVER), *objects, "-o", str(program)], check=True)
    return program


def run(command: list[str | Path]) -> list[str]:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.slow
def test_kernels_stay_inside_their_buffers(tmp_path: Path) -> None:
    try:
        command = [compiler(), *EXACT, *SANITIZED]
    except BuildError as error:
        pytest.skip(f"no kernels here: {error}")
    # The driver itself needs F16C, to make half-precision scales.
    program = build(command, "x86_64", ["-mf16c"], tmp_path)
    assert run([program])[0] == "avx2"


@pytest.mark.slow
def test_rows_keep_their_bits_on_arm(tmp_path: Path) -> None:
    for program in (ARM_COMPILER, EMULATOR):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: g++-aarch64-linux-gnu, qemu-user)")
    command = [ARM_COMPILER, *EXACT, "-static"]
    assert run([EMULATOR, build(command, "aarch64", [], tmp_path)]) == ["neon"]
