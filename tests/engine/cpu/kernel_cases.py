"""What the kernel tests share: the extension on one instruction set, and bits."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from engine.cpu import Unavailable, extension

try:
    KERNELS: Any = extension()
    SETS: list[str] = KERNELS.instruction_sets()
    MISSING = ""
except Unavailable as reason:
    KERNELS, SETS, MISSING = None, [], str(reason)

TYPES = (mx.float32, mx.bfloat16)
# Of the largest value: float32 sums in another order; one rounding to bfloat16.
TOLERANCE = {mx.float32: 1e-5, mx.bfloat16: 5e-3}


def normal(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def wide(array: mx.array) -> np.ndarray:
    """In float64."""
    return np.array(array.astype(mx.float32)).astype(np.float64)


def bits(array: mx.array) -> np.ndarray:
    return np.array(array.view(mx.uint16 if array.dtype == mx.bfloat16 else mx.uint32))


def assert_close(array: mx.array, expected: np.ndarray) -> None:
    allowed = TOLERANCE[array.dtype] * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(wide(array), expected, rtol=0, atol=allowed)


def assert_same_bits(some: mx.array, others: mx.array) -> None:
    np.testing.assert_array_equal(bits(some), bits(others))
