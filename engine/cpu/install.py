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
from mlx.utils import tree_flatten, tree_map

from engine.cpu import Unavailable, describe, use
from engine.cpu.draft_layers import DRAFT_KINDS
from engine.cpu.function_checks import CheckedFunction
from engine.cpu.functions import Named, names_in
from engine.cpu.layers import FusedLayer
from engine.cpu.modules import DTYPES, KINDS, Kernel
from engine.errors import RequestError
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
            name = kind if isinstance(kind, str) else kind.__name__
            said += f"; not for {name} {' '.join(map(str, shape))}: {why}"
        return said


def install(model: nn.Module, asked: str) -> str:
    """Use kernels in `model`, bound to a target before; says what is used or why nothing is.

    asked: ``auto``, ``off`` or an instruction set. Takes a fraction of a second. Raises
    RequestError where the processor lacks the instruction set.
    """
    if asked == "off":
        return "stock MLX: kernels are turned off"
    try:
        use(asked)
    except Unavailable as reason:
        if asked != "auto":
            raise RequestError(
                f"kernels: {asked} cannot be used: {reason}", field="kernels"
            ) from None
        return f"stock MLX: {reason}"
    installed = Installed()
    verdicts: dict[tuple[Any, ...], str] = {}
    replace_parts(model, lambda module: _kernel_for(module, installed, verdicts))
    return str(installed)


def replace_parts(module: nn.Module, choose: Callable[[nn.Module], nn.Module]) -> None:
    """Give every module below `module` the one that `choose` says, from the innermost out."""

    def chosen(value: Any) -> Any:
        if not isinstance(value, nn.Module):
            return value
        # A recorded layer's own code is run by what records it.
        replace_parts(value.layer if isinstance(value, RecordingGatedDelta) else value, choose)
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
        module.run_with(_approved(module.layer, installed, verdicts))
        return module
    kinds: tuple[type[Kernel], ...] = (*KINDS, FusedLayer, *DRAFT_KINDS)
    for kind in kinds:
        if kind.fits(module):
            return _if_better(kind(module), installed, verdicts)
    names = _approved(module, installed, verdicts)
    return Named(module, names) if names else module


def _approved(
    module: nn.Module, installed: Installed, verdicts: dict[tuple[Any, ...], str]
) -> dict[str, Callable[..., Any]]:
    """The kernels for functions that the module's code calls, without those that fail a check."""
    names = names_in(module)
    floats = (x.dtype for _, x in tree_flatten(module.parameters()) if x.dtype in DTYPES)
    dtype = next(floats, mx.float32)
    for name, (stock, kernel) in list(names.items()):
        checked = CheckedFunction(name, stock, kernel, dtype)
        key = checked.key()
        if key not in verdicts:
            verdicts[key] = fault(checked) or slower(checked)
        if verdicts[key]:
            installed.refused[key] = verdicts[key]
            del names[name]
    installed.functions |= names.keys()
    return {name: kernel for name, (_, kernel) in names.items()}


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
    kernel.accepted()
    return kernel


def fault(kernel: Kernel | CheckedFunction) -> str:
    """What is wrong with the kernel's values or bits; empty if nothing."""
    rows = kernel.rows(MOST_ROWS)
    try:
        together = kernel.run(kernel, rows)
        mx.eval(together)
    except (ValueError, RuntimeError, TypeError) as error:
        return str(error)
    inner: Any = kernel.inner
    expected = kernel.run(inner, rows).astype(mx.float32)
    off = float(mx.abs(together.astype(mx.float32) - expected).max())
    allowed = kernel.tolerance[together.dtype] * max(1.0, float(mx.abs(expected).max()))
    if not off <= allowed:
        return f"values are off by {off:.2g}"
    more = rows.shape[1] - MOST_ROWS
    for count in ROWS if kernel.row_exact else ():
        some = kernel.run(kernel, rows[:, : count + more])
        if not mx.array_equal(some, together[:, :count]).item():
            return f"{count} rows differ from the same among {MOST_ROWS}"
    return ""


def slower(kernel: Kernel | CheckedFunction) -> str:
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


def _seconds(kernel: Any, module: Any, rows: mx.array) -> float:
    began = time.perf_counter()
    mx.eval(kernel.run(module, rows))
    return time.perf_counter() - began
