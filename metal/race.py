"""Whether a kernel takes the place of stock MLX, decided on the machine by bits and by time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import mlx.core as mx

Step = Callable[[mx.array], mx.array]

# Calls in one chain, and chains of which the median counts.
LENGTH, REPEATS = 16, 5
# What a kernel must save to take the place of one that is as exact: chance should not decide.
CLEARLY = 0.95
# What a single row may cost more where only our kernel makes several rows exact.
ONE_ROW = 1.05


def race(
    steps: Mapping[str, Step],
    x: mx.array,
    *,
    length: int = LENGTH,
    repeats: int = REPEATS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds a call of each step takes on `x`, by name.

    Every call waits for the one before, as a layer waits for the layer below; calls that do not
    depend on each other overlap on a GPU, and mislead. The steps take turns, so that what disturbs
    the machine disturbs all.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        # The first call compiles.
        mx.eval(step(x))
    for _ in range(repeats):
        for name, step in steps.items():
            began = clock()
            mx.eval(_chain(step, x, length))
            times[name].append((clock() - began) / length)
    return {name: statistics.median(each) for name, each in times.items()}


def _chain(step: Step, x: mx.array, length: int) -> mx.array:
    row = x
    for _ in range(length):
        # Nothing is added, but for MLX that is known only when the step has run.
        row = x + (mx.flatten(step(row))[:1] * 0).astype(x.dtype)
    return row


@dataclass(frozen=True)
class Findings:
    """What was found out about a kernel at one shape; rows: of a forward.

    fault: why the kernel cannot be used at all; empty if nothing.
    like_stock: whether its single row has the bits of stock MLX's single row.
    stock_exact: by rows, whether stock MLX's rows have the bits of its single rows.
    ours, stock: seconds of a call, by rows that were timed.
    """

    fault: str = ""
    like_stock: bool = False
    stock_exact: Mapping[int, bool] = field(default_factory=dict)
    ours: Mapping[int, float] = field(default_factory=dict)
    stock: Mapping[int, float] = field(default_factory=dict)


def served(findings: Findings) -> frozenset[int]:
    """The numbers of rows at which our kernel takes stock MLX's place.

    Rows of every number must come out alike, so where the kernel's single row has other bits than
    stock MLX's, it serves all numbers of rows or none.
    """
    if findings.fault:
        return frozenset()
    counts = sorted({1, *findings.stock_exact})
    ours = {rows: _at(findings.ours, rows) for rows in counts}
    stock = {rows: _at(findings.stock, rows) for rows in counts}
    alone = stock[1]
    if findings.like_stock:
        # As many single rows are always another way to be exact.
        other = {
            rows: stock[rows] if findings.stock_exact.get(rows, True) else rows * alone
            for rows in counts
        }
        return frozenset(rows for rows in counts if ours[rows] < CLEARLY * other[rows])
    if all(findings.stock_exact.values()):
        wins = sum(ours.values()) < CLEARLY * sum(stock.values())
        return frozenset(counts) if wins and ours[1] <= ONE_ROW * alone else frozenset()
    most = counts[-1]
    pays = ours[1] <= ONE_ROW * alone and ours[most] < most * alone
    return frozenset(counts) if pays else frozenset()


def _at(times: Mapping[int, float], rows: int) -> float:
    """Of that many rows, or of the next more that were timed: times have steps."""
    return times[min((timed for timed in times if timed >= rows), default=max(times))]
