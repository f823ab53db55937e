"""The choice of tokens as one operation: a few passes over a row, no sort, noise for whom it can
make the winner."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from engine.messages import Sampling

# (logits (M, V), keys of the noise, temperature, ...) -> (M,) int32, lazily.
ChooseKernel = Callable[..., mx.array]
_FLOATS = (mx.float32, mx.bfloat16, mx.float16)
_CHECKED = (
    Sampling(),
    Sampling(temperature=0.9),
    Sampling(temperature=0.7, top_p=0.9, min_p=0.01),
    Sampling(temperature=1.2, top_k=30, top_p=0.95),
)


def choose_kernel() -> ChooseKernel | None:
    """The kernel of the instruction set in use; None where stock MLX computes, or where it was
    found to choose otherwise."""
    module: Any = sys.modules.get("engine.cpu._kernels")
    name = module.used() if module is not None else ""
    return module.choose if name and _agrees(name) else None


def chosen_by(
    choose: ChooseKernel, x: mx.array, keys: Sequence[int], sampling: Sampling, coldest: float
) -> mx.array:
    """Tokens (M,) int32 of x (M, V), which has bias and masks already."""
    if x.dtype not in _FLOATS:
        x = x.astype(mx.float32)
    if sampling.greedy:
        return choose(x, keys)
    least = math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf
    temperature = max(sampling.temperature, coldest)
    return choose(x, keys, temperature, sampling.top_k, sampling.top_p, least)


@functools.cache
def _agrees(name: str) -> bool:
    """Whether this instruction set's kernel chooses what MLX's operations do."""
    from engine.decoding.sampling import COLDEST, chosen_by_operations, noise_keys

    choose = sys.modules["engine.cpu._kernels"].choose
    logits = 3 * mx.random.normal((4, 1031), key=mx.random.key(0))
    positions = range(7, 11)
    keys = noise_keys(1, positions)
    return all(
        mx.array_equal(
            chosen_by(choose, logits, keys, sampling, COLDEST),
            chosen_by_operations(logits, positions, sampling, 1),
        ).item()
        for sampling in _CHECKED
    )
