"""Whether there is Metal is asked in one place, and the answer is MLX's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import metal


def test_available_agrees_with_the_device_that_mlx_takes() -> None:
    import mlx.core as mx

    assert metal.available() is (
        mx.default_device().type == mx.DeviceType.gpu and mx.metal.is_available()
    )


def test_no_metal_off_a_mac() -> None:
    assert sys.platform == "darwin" or not metal.available()


def test_importing_metal_loads_no_mlx() -> None:
    code = "import metal, sys; sys.exit(any(name.split('.')[0] == 'mlx' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sources_are_what_mlx_can_hand_to_metal_and_say_whose_they_were() -> None:
    texts = {file.stem: file.read_text() for file in Path(metal.__file__).parent.glob("*.metal")}
    assert len(texts) == 6
    # MLX passes the text of a kernel on as ASCII.
    assert all(text.isascii() for text in texts.values())
    for name in ("verify_matmul", "gated_delta"):
        assert "Copyright (c) 2023" in texts[name]
        assert "this permission notice shall be included in all" in texts[name]
