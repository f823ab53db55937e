"""The kernels under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.cpu.build import INSTRUCTION_SETS, SOURCES, BuildError, compiler

FLAGS = ["-std=c++20", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.mark.slow
def test_kernels_stay_inside_their_buffers(tmp_path: Path) -> None:
    try:
        command = [compiler(), *FLAGS, f"-I{SOURCES}"]
    except BuildError as error:
        pytest.skip(f"no kernels here: {error}")
    objects = []
    for name, flags in INSTRUCTION_SETS.items():
        objects.append(str(tmp_path / f"{name}.o"))
        source = str(SOURCES / f"{name}.cpp")
        subprocess.run([*command, *flags, "-c", source, "-o", objects[-1]], check=True)
    program = tmp_path / "sanitized_kernels"
    driver = Path(__file__).with_name("sanitized_kernels.cpp")
    # The driver itself needs F16C, to make half-precision scales.
    subprocess.run([*command, "-mf16c", str(driver), *objects, "-o", str(program)], check=True)
    ran = subprocess.run([program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[0] == "avx2"
