"""Which numbers of rows are worth timing on this machine's GPU: those beside the steps of MLX's
dispatch. Between them a forward's cost goes on evenly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.gpu.modules import RowKernel
from metal.chip import Chip
from metal.cliffs import rows_to_time

# The names under which mlx-lm's attention layers keep their heads, and those of keys.
HEADS = (("n_heads", "n_kv_heads"), ("num_attention_heads", "num_key_value_heads"))


def rows_worth_timing(model: nn.Module, widest: int, chip: Chip | None = None) -> list[int] | None:
    """Ascending, from 1 to `widest`; None where the GPU (`chip`, or this one) is not known."""
    gpu = chip or Chip.here()
    if gpu is None:
        return None
    modules = list(model.modules())
    groups = max((_groups(module) for module in modules), default=1)
    # Also where a kernel of ours serves fewer rows than all.
    served = [module.served for module in modules if isinstance(module, RowKernel)]
    steps = {
        row for rows in served for row in range(2, widest + 1) if (row in rows) != (row - 1 in rows)
    }
    counts = {*rows_to_time(gpu, _weights(modules), groups, widest), *steps}
    return sorted(counts | {row - 1 for row in steps})


def _weights(modules: list[Any]) -> Iterator[tuple[int, int]]:
    """(k, n) of every quantised matrix."""
    for module in modules:
        scales = module.get("scales")
        if isinstance(scales, mx.array):
            yield scales.shape[-1] * module.group_size, scales.shape[-2]


def _groups(module: Any) -> int:
    """Query heads that share a key head; 1 for what is no attention layer."""
    for heads, key_heads in HEADS:
        if hasattr(module, heads) and hasattr(module, key_heads):
            return int(getattr(module, heads)) // int(getattr(module, key_heads))
    return 1
