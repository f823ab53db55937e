"""The GPU that kernels are chosen for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

import metal
from metal.chip import Chip
from metal.kernel import Compiler


def _as_it_is(module: nn.Module) -> nn.Module:
    return module


@dataclass(frozen=True)
class Device:
    """name: for reports. compiler: MLX's unless given. stock: a stock module as the device runs it;
    tests let it run MLX's Metal kernels where there is no Metal."""

    name: str
    chip: Chip
    compiler: Compiler | None = None
    stock: Callable[[nn.Module], nn.Module] = _as_it_is

    @classmethod
    def here(cls) -> Device | None:
        """This machine's Apple GPU, if it has one that is known."""
        if not metal.available() or (chip := Chip.here()) is None:
            return None
        return cls(str(mx.device_info().get("device_name", "Apple GPU")), chip)
