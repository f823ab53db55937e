"""Which Apple GPU this is, as far as kernels are chosen by it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import mlx.core as mx

# What Metal calls the GPU: generation and size. M1 is 13 ... M5 is 17; g is the base chip, s a Pro
# or Max, d an Ultra (MLX, mlx/backend/metal/device.cpp).
_ARCHITECTURE = re.compile(r"applegpu_g(\d+)([a-z])")
M1, M2, M3, M4, M5 = range(13, 18)


@dataclass(frozen=True)
class Chip:
    """generation: 13 for M1 up to 17 for M5. size: ``g`` base, ``s`` Pro or Max, ``d`` Ultra."""

    generation: int
    size: str

    @classmethod
    def of(cls, architecture: str) -> Chip | None:
        """Of ``applegpu_g16s`` and the like; None for anything else."""
        found = _ARCHITECTURE.fullmatch(architecture)
        return cls(int(found[1]), found[2]) if found else None

    @classmethod
    def here(cls) -> Chip | None:
        """This machine's, if MLX runs on an Apple GPU."""
        if not mx.metal.is_available():
            return None
        return cls.of(str(mx.device_info().get("architecture", "")))
