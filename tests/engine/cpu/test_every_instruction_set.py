"""`pillion verify` on each instruction set of this processor, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_cases import SETS


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS or ["none"])
def test_replies_do_not_depend_on_drafting(name: str, tmp_path: Path) -> None:
    if name == "none":
        pytest.skip("no kernels here")
    file = tmp_path / "verify.json"
    program = "from sidecar.cli import main; main()"
    command = [sys.executable, "-c", program, "verify", "--model", "builtin"]
    ran = subprocess.run(
        [*command, "--max-tokens", "4", "--json", str(file)],
        env=os.environ | {"PILLION_ENGINE_KERNELS": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads(file.read_text())["figures"]["differences"] == 0
