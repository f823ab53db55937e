"""Puts kernels into a loaded model, where they are right, exact by row, and faster than stock MLX.

For each shape that a model has: the values are compared with the stock module in float32, the bits
of each row with those of the same row among others, and the time with the stock module's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from engine.cpu import Unavailable, describe
from engine.cpu.functions import Named, names_in
from engine.cpu.layers import FusedLayer
from engine.cpu.modules import KINDS, Kernel
from engine.targets.gated_delta import RecordingGatedDelta

# How many rows a forward is tried with: every tile of the kernels, and more than one of them.
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17)
MOST_ROWS = 32
RACE_ROWS = (1, 8)
RACE_REPEATS = 7
# Stock MLX has to win clearly: where the two are equal, chance must not choose the bits.
CLEARLY = 1.3


@dataclass
class Installed:
    """What runs on kernels in a model. refused: why not, by kind and shape."""

    modules: int = 0
    functions: set[str] = field(default_factory=set)
    refused: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def __str__(self) -> str:
        said = f"{describe()} kernels in {self.modules} modules"
        if self.functions:
            said += f" and for {', '.join(sorted(self.functions))}"
        for key, why in self.refused.items():
            kind, *shape = key
            said += f"; not for {kind.__name__} {' '.join(map(str, shape))}: {why}"
        return said


def install(model: nn.Module, asked: str) -> str:
    """Use kernels in `model`, bound to a target before; says what is used or why nothing is.

    asked: ``auto`` or ``off``. Takes a fraction of a second.
    """
    if asked == "off":
        return "stock MLX: kernels are turned off"
    try:
        describe()
    except Unavailable as reason:
        return f"stock MLX: {reason}"
    installed = Installed()
    verdicts: dict[tuple[Any, ...], str] = {}
    _replace_parts(model, lambda module: _kernel_for(module, installed, verdicts))
    return str(installed)


def _replace_parts(module: nn.Module, choose: Callable[[nn.Module], nn.Module]) -> None:
    """Give every module below `module` the one that `choose` says, from the innermost out."""

    def chosen(value: Any) -> Any:
        if not isinstance(value, nn.Module):
            return value
        # A recorded layer's own code is run by what records it.
        _replace_parts(value.layer if isinstance(value, RecordingGatedDelta) else value, choose)
        return choose(value)

    for name, value in list(module.items()):
        if isinstance(value, nn.Module | list | dict):
            replaced = tree_map(chosen, value, is_leaf=lambda leaf: isinstance(leaf, nn.Module))
            if isinstance(value, list):
                # The model may hold the same list elsewhere too.
                value[:] = replaced
            else:
                setattr(module, name, replaced)


def _kernel_for(
    module: nn.Module, installed: Installed, verdicts: dict[tuple[Any, ...], str]
) -> nn.Module:
    if isinstance(module, RecordingGatedDelta):
        names = names_in(module.layer)
        module.run_with(names)
        installed.functions |= names.keys()
        return module
    kinds: tuple[type[Kernel], ...] = (*KINDS, FusedLayer)
    for kind in kinds:
        if kind.fits(module):
            return _if_better(kind(module), installed, verdicts)
    names = names_in(module)
    if not names:
        return module
    installed.functions |= names.keys()
    return Named(module, names)


def _if_better(
    kernel: Kernel, installed: Installed, verdicts: dict[tuple[Any, ...], str]
) -> nn.Module:
    key = kernel.key()
    if key not in verdicts:
        verdicts[key] = fault(kernel) or slower(kernel)
    if verdicts[key]:
        installed.refused[key] = verdicts[key]
        return kernel.inner
    installed.modules += 1
    return kernel


def fault(kernel: Kernel) -> str:
    """What is wrong with the kernel's values or bits; empty if nothing."""
    rows = kernel.rows(MOST_ROWS)
    try:
        together = kernel.run(kernel, rows)
        mx.eval(together)
    except (ValueError, RuntimeError, TypeError) as error:
        return str(error)
    expected = kernel.run(kernel.inner, rows).astype(mx.float32)
    off = float(mx.abs(together.astype(mx.float32) - expected).max())
    allowed = kernel.tolerance[together.dtype] * max(1.0, float(mx.abs(expected).max()))
    if not off <= allowed:
        return f"values are off by {off:.2g}"
    more = rows.shape[1] - MOST_ROWS
    for count in ROWS:
        some = kernel.run(kernel, rows[:, : count + more])
        if not mx.array_equal(some, together[:, :count]).item():
            return f"{count} rows differ from the same among {MOST_ROWS}"
    return ""


def slower(kernel: Kernel) -> str:
    """Empty unless stock MLX is clearly faster, over a step and a verify forward."""
    ours = theirs = 0.0
    for count in RACE_ROWS:
        rows = kernel.rows(count)
        mx.eval(rows)
        times = [
            (_seconds(kernel, kernel, rows), _seconds(kernel, kernel.inner, rows))
            for _ in range(RACE_REPEATS)
        ]
        ours += min(ours_once for ours_once, _ in times)
        theirs += min(theirs_once for _, theirs_once in times)
    if ours <= theirs * CLEARLY:
        return ""
    return f"stock MLX is {ours / theirs:.1f} times as fast"


def _seconds(kernel: Kernel, module: nn.Module, rows: mx.array) -> float:
    began = time.perf_counter()
    mx.eval(kernel.run(module, rows))
    return time.perf_counter() - began
