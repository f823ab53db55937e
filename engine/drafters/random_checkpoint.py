"""Checkpoints with random weights in the published layouts, for benchmarks and tests."""

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
    """A DFlash drafter with the config.json `raw` in `folder`, which is made; returns `folder`.

    dtype: F32 or BF16. The scales make hidden states neither vanish nor explode, and attention
    sharp, so that the rows of a block, which differ in their position only, draft different tokens.
    Written tensor by tensor: the memory needed does not grow with the checkpoint.
    """
    config = DFlashConfig.parse(raw, folder / "config.json")
    _write(folder, raw, config.tensor_shapes(), seed, dtype)
    return folder


def write_random_target(folder: Path, raw: Mapping[str, Any], *, seed: int = 0) -> Path:
    """A dense Qwen3 model, without a tokenizer and in float32, with the config.json `raw`.

    A first-version drafter's stack is such a model's, so its tensors are those of one.
    """
    stack = {"num_target_layers": 1, "mask_token_id": 0, "target_layer_ids": [0]}
    config = DFlashConfig.parse({**raw, **stack}, folder / "config.json")
    table = (config.vocab_size, config.hidden_size)
    shapes = {"model.embed_tokens.weight": table, "lm_head.weight": table} | {
        f"model.{name}": shape
        for name, shape in config.tensor_shapes().items()
        if name not in ("fc.weight", "hidden_norm.weight")
    }
    _write(folder, raw, shapes, seed, "F32")
    return folder


def _write(
    folder: Path,
    raw: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    seed: int,
    dtype: str,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(raw)))
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


def _scaled(uniform: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return np.float32(3.0) + np.float32(0.1) * uniform
    if "norm" in name:
        return np.float32(1.0) + np.float32(0.1) * uniform
    if "codebook" in name or "embed_tokens" in name:
        # The product of three codebook rows summed over the rank is then as large as a logit.
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
