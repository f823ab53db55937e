"""Drafter checkpoints with random weights in the published layout, for benchmarks and tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from engine.drafters.dflash_config import DFlashConfig

# Values are drawn once and repeated: a real drafter has two billion.
POOL = 1 << 20


def write_random_drafter(
    folder: Path, raw: Mapping[str, Any], *, seed: int = 0, dtype: str = "F32"
) -> Path:
    """A drafter with the config.json `raw` in `folder`, which is made; returns `folder`.

    dtype: F32 or BF16. The scales make hidden states neither vanish nor explode, and attention
    sharp, so that the rows of a block, which differ in their position only, draft different tokens.
    Written tensor by tensor: the memory needed does not grow with the checkpoint.
    """
    config = DFlashConfig.parse(raw, folder / "config.json")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(raw)))
    shapes = config.tensor_shapes()
    size = {"F32": 4, "BF16": 2}[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + size * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)
    noise = np.random.default_rng(seed)
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, shape in shapes.items():
            count = math.prod(shape)
            pool = noise.uniform(-1.0, 1.0, size=min(count, POOL)).astype(np.float32)
            values = _encoded(_scaled(pool, name, shape), dtype)
            for left in range(count, 0, -len(pool)):
                stream.write(values[:left].tobytes())
    return folder


def _scaled(uniform: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return np.float32(3.0) + np.float32(0.1) * uniform
    if "norm" in name:
        return np.float32(1.0) + np.float32(0.1) * uniform
    if "codebook" in name:
        # The product of three rows summed over the rank is then about as large as a logit.
        return uniform * np.float32(1.7)
    if "base_kernel" in name:
        return uniform
    # Of variance 1 / fan-in, and four times that behind attention, which averages.
    return uniform * np.float32(math.sqrt((12.0 if "o_proj" in name else 3.0) / shape[-1]))


def _encoded(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "F32":
        return values
    # bfloat16 is the upper half of a float32.
    return (values.view(np.uint32) >> 16).astype(np.uint16)
