"""What a kernel is worth at one shape on this machine: its values, its bits, its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from engine.gpu.modules import RowKernel
from metal.race import LENGTH, REPEATS, Findings, race
from metal.verify_matmul import MOST_ROWS, TILINGS, Tiling

# Two orders of summation often round to the same bfloat16: only many values show that they differ
# (one in five thousand did).
VALUES = 100_000
MOST_TRIALS = 8
# One block of keys, both passes of MLX's attention, and a long prompt, where attention is what a
# forward spends its time on.
CONTEXTS = (300, 1200, 8192)
# Of the largest value: rounding of sums and of a result.
TOLERANCE = {mx.float32: 1e-4, mx.float16: 4e-3, mx.bfloat16: 2e-2}


@dataclass(frozen=True)
class Trials:
    """How much is tried. rows: the widest forward. timed: numbers of rows that are timed.

    values: outputs whose bits are compared, at least. contexts: keys before the rows that attention
    is compared with, and timed with; the last of them only timed. clock: seconds.
    """

    rows: int = MOST_ROWS
    timed: Sequence[int] = (1, 2, 4, 6, 8, 12, 16)
    values: int = VALUES
    contexts: Sequence[int] = CONTEXTS
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


def _compare_bits(kernel: RowKernel, trials: Trials) -> Findings:
    like_stock = True
    stock_exact = dict.fromkeys(range(2, trials.rows + 1), True)
    outputs = trials.rows * kernel.shape.n
    for trial in range(max(1, min(MOST_TRIALS, -(-trials.values // outputs)))):
        rows = kernel.rows(trials.rows, trial)
        ours = _row_by_row(kernel, kernel, rows)
        stock = _row_by_row(kernel, kernel.inner, rows)
        wide = stock.astype(mx.float32)
        off = float(mx.abs(ours.astype(mx.float32) - wide).max())
        allowed = TOLERANCE[ours.dtype] * max(1.0, float(mx.abs(wide).max()))
        if not off <= allowed:
            return Findings(fault=f"values are off by {off:.2g}")
        like_stock = like_stock and _same(ours, stock)
        for count in stock_exact:
            if not _same(kernel.run(kernel, rows[:, :count]), ours[:, :count]):
                return Findings(fault=f"{count} rows differ from the same one by one")
            theirs = kernel.run(kernel.inner, rows[:, :count])
            stock_exact[count] = stock_exact[count] and _same(theirs, stock[:, :count])
    return Findings(like_stock=like_stock, stock_exact=stock_exact)


def _row_by_row(kernel: RowKernel, module: object, rows: mx.array) -> mx.array:
    count = rows.shape[1]
    return mx.concatenate([kernel.run(module, rows[:, i : i + 1]) for i in range(count)], axis=1)


def _same(one: mx.array, other: mx.array) -> bool:
    return bool(mx.array_equal(one, other).item())
