"""On a CPU nothing is compiled, and no library loaded from a shared folder, while decoding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

PROGRAM = """
import mlx.core as mx
from engine import EngineOptions
from engine.loading.load import load

model = load(EngineOptions(), lambda what, share: None).model
mx.eval(model(mx.array([[1, 2, 3]])))
"""


@pytest.mark.skipif(
    mx.default_device().type != mx.DeviceType.cpu, reason="a GPU compiles inside its driver"
)
def test_a_forward_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
    assert list(tmp_path.rglob("*")) == []
