"""What a kernel is worth at one shape on this machine: its values, its bits, its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from engine.gpu.modules import RowKernel
from metal.race import LENGTH, REPEATS, Findings, race
from metal.verify_matmul import MOST_ROWS, TILINGS, Tiling

# Two orders of summation often round to the same bfloat16: only many values show that they differ
# (one in five thousand did).
VALUES = 100_000
# For a matrix with few outputs, of which many rows are drawn; and how many draws are evaluated at
# once: waiting for each would take most of the time.
MOST_TRIALS = 1000
BATCH = 16
# One block of keys, both passes of MLX's attention, and a long prompt, where attention is what a
# forward spends its time on.
CONTEXTS = (300, 1200, 8192)
# Just before MLX's attention takes two passes: from 1024 keys on chips with many cores, from 4096
# on others where heads share keys; and behind both.
EDGES = (1016, 4088, 4200)
# Of the largest value: rounding of sums and of a result.
TOLERANCE = {mx.float32: 1e-4, mx.float16: 4e-3, mx.bfloat16: 2e-2}
# Of all terms of a float32 sum: what its order may change, where the terms nearly cancel.
SUMS = 2.0**-20


@dataclass(frozen=True)
class Trials:
    """How much is tried. rows: the widest forward. timed: numbers of rows that are timed.

    values: outputs whose bits are compared, at least. contexts: keys before the rows that attention
    is compared with, and timed with; the last of them only timed. edges: likewise, only compared.
    clock: seconds.
    """

    rows: int = MOST_ROWS
    timed: Sequence[int] = (1, 2, 4, 6, 8, 12, 16)
    values: int = VALUES
    contexts: Sequence[int] = CONTEXTS
    edges: Sequence[int] = EDGES
    length: int = LENGTH
    repeats: int = REPEATS
    tilings: Sequence[Tiling] = TILINGS
    clock: Callable[[], float] = time.perf_counter

    def upto(self, widest: int | None) -> Trials:
        """As much, with no more rows than `widest` in a forward."""
        rows = min(self.rows, widest or self.rows)
        timed = sorted({*self.timed, rows} & {*range(1, rows + 1)})
        return replace(self, rows=rows, timed=tuple(timed))


def examine(kernel: RowKernel, trials: Trials) -> Findings:
    """Try `kernel` beside the stock module it holds, and leave it with its quickest tiling."""
    try:
        _pick_tiling(kernel, trials)
        findings = _compare_bits(kernel, trials)
    except (ValueError, RuntimeError, TypeError) as error:
        return Findings(fault=str(error).strip().split("\n", 1)[0])
    if findings.fault:
        return findings
    ours, stock = {}, {}
    for rows in trials.timed:
        seconds = race(
            {"ours": kernel_step(kernel, kernel), "stock": kernel_step(kernel, kernel.inner)},
            kernel.rows(rows),
            length=trials.length,
            repeats=trials.repeats,
            clock=trials.clock,
        )
        ours[rows], stock[rows] = seconds["ours"], seconds["stock"]
    return replace(findings, ours=ours, stock=stock)


def kernel_step(kernel: RowKernel, module: object) -> Callable[[mx.array], mx.array]:
    """What the race calls: `module`, ours or the stock one, on rows as the kernel has them."""
    return lambda rows: kernel.run(module, rows)


def _pick_tiling(kernel: RowKernel, trials: Trials) -> None:
    if len(trials.tilings) == 1:
        kernel.tiling = trials.tilings[0]
        return
    steps = {str(index): _tiled(kernel, tiling) for index, tiling in enumerate(trials.tilings)}
    seconds = race(
        steps, kernel.rows(min(8, trials.rows)), length=trials.length, clock=trials.clock
    )
    kernel.tiling = trials.tilings[int(min(seconds, key=seconds.__getitem__))]


def _tiled(kernel: RowKernel, tiling: Tiling) -> Callable[[mx.array], mx.array]:
    def step(rows: mx.array) -> mx.array:
        # The kernel reads it when it is called, which is now.
        kernel.tiling = tiling
        return kernel.run(kernel, rows)

    return step


def draws(values: int, outputs: int) -> int:
    """How often rows are drawn for that many values, of which a draw has `outputs`."""
    return max(1, min(MOST_TRIALS, -(-values // outputs)))


def off_by(ours: mx.array, stock: mx.array) -> str:
    """What is wrong with the values of `ours`, compared in float32; empty if nothing is."""
    off, largest = (float(number) for number in _distance(ours, stock))
    return _fault(off, TOLERANCE[ours.dtype] * largest)


def _distance(ours: mx.array, stock: mx.array) -> tuple[mx.array, mx.array]:
    """The largest difference, and the largest value of `stock`."""
    wide = stock.astype(mx.float32)
    return mx.abs(ours.astype(mx.float32) - wide).max(), mx.abs(wide).max()


def _fault(off: float, allowed: float) -> str:
    # Not a number is off, too.
    return "" if off <= allowed else f"values are off by {off:.2g}"


def _compare_bits(kernel: RowKernel, trials: Trials) -> Findings:
    like_stock = True
    counts = range(2, trials.rows + 1)
    stock_exact = dict.fromkeys(counts, True)
    tolerance, weight = TOLERANCE[kernel.inner.scales.dtype], kernel.largest_weight()
    total = draws(trials.values, trials.rows * kernel.shape.n)
    for first in range(0, total, BATCH):
        seeds = range(first, min(total, first + BATCH))
        drawn = [_drawn(kernel, trials.rows, seed) for seed in seeds]
        found: Any = mx.stack(drawn).tolist()
        for off, largest, terms, like, *same in found:
            if fault := _fault(off, tolerance * largest + SUMS * terms * weight):
                return Findings(fault=fault)
            like_stock = like_stock and bool(like)
            for count, ours, theirs in zip(counts, same[::2], same[1::2], strict=True):
                if not ours:
                    return Findings(fault=f"{count} rows differ from the same one by one")
                stock_exact[count] = stock_exact[count] and bool(theirs)
    return Findings(like_stock=like_stock, stock_exact=stock_exact)


def _drawn(kernel: RowKernel, most: int, seed: int) -> mx.array:
    """What random rows show, not evaluated yet: how far ours are off, the largest value, the sum of
    the magnitudes of a row, whether single rows are those of stock MLX, and for each number of rows
    whether ours, and stock MLX's, are the same one by one."""
    rows = kernel.rows(most, seed)
    ours = _row_by_row(kernel, kernel, rows)
    stock = _row_by_row(kernel, kernel.inner, rows)
    terms = mx.abs(rows.astype(mx.float32)).sum(-1).max()
    found = [*_distance(ours, stock), terms, mx.array_equal(ours, stock)]
    for count in range(2, most + 1):
        for module, alone in ((kernel, ours), (kernel.inner, stock)):
            found.append(mx.array_equal(kernel.run(module, rows[:, :count]), alone[:, :count]))
    return mx.stack([each.astype(mx.float32) for each in found])


def _row_by_row(kernel: RowKernel, module: object, rows: mx.array) -> mx.array:
    count = rows.shape[1]
    return mx.concatenate([kernel.run(module, rows[:, i : i + 1]) for i in range(count)], axis=1)
