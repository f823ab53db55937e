from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from engine.errors import ModelError
from engine.loading.peer_weights import write_float32


def test_the_copy_has_wider_scales_and_the_same_values(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    packed = mx.array([[0xDEADBEEF, 7]], dtype=mx.uint32)
    scales = mx.array([0.1, -2.5e-4], dtype=mx.float16)
    mx.save_safetensors(str(source / "model.safetensors"), {"w": packed, "scales": scales})
    (source / "config.json").write_text('{"model_type": "llama"}')
    folder = tmp_path / "peers" / "copy"

    write_float32(source, folder)

    arrays: Any = mx.load(str(folder / "model.safetensors"))
    assert arrays["w"].dtype == mx.uint32
    assert arrays["w"].tolist() == packed.tolist()
    assert arrays["scales"].dtype == mx.float32
    assert arrays["scales"].tolist() == scales.astype(mx.float32).tolist()
    assert (folder / "config.json").read_text() == '{"model_type": "llama"}'
    assert [path.name for path in folder.parent.iterdir()] == ["copy"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match="file"):
        write_float32(tmp_path, tmp_path / "file" / "copy")
