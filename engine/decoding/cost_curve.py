"""What rounds cost on one machine: seconds by number of rows and length of the context.

Kernels change with the number of rows (on Apple GPUs the weights are read a second time from the
sixth row on), so a curve has steps, and only measuring finds them.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

from msgspec import Struct

from engine.errors import ModelError


class Grid(Struct, frozen=True, kw_only=True):
    """seconds[i][j]: at contexts[i] tokens, for counts[j] rows (or drafts). Both ascend, counts
    from 1. Raises ModelError when they do not."""

    contexts: tuple[int, ...]
    counts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.contexts or self.counts[:1] != (1,):
            raise ModelError(f"cost curve: counts must begin with 1, got {self.counts}")
        for axis in (self.contexts, self.counts):
            if any(low >= high for low, high in itertools.pairwise(axis)):
                raise ModelError(f"cost curve: {axis} does not ascend")
        wanted = [len(self.counts)] * len(self.contexts)
        if [len(row) for row in self.seconds] != wanted:
            raise ModelError(f"cost curve: seconds must be {len(wanted)} x {len(self.counts)}")
        if not all(0 < second < math.inf for row in self.seconds for second in row):
            raise ModelError("cost curve: seconds must be positive and finite")

    def row(self, context: int) -> list[float]:
        """Seconds for 1, 2, ... counts[-1]: linear between what was measured, and behind the
        longest context going on as before it."""
        known, row = self.contexts, self.seconds[0]
        if len(known) > 1 and context > known[0]:
            upper = min(bisect.bisect_left(known, context), len(known) - 1)
            share = (context - known[upper - 1]) / (known[upper] - known[upper - 1])
            row = tuple(
                # Two noisy points must not foretell that a long context is cheap.
                max(low + share * (high - low), min(low, high))
                for low, high in zip(self.seconds[upper - 1], self.seconds[upper], strict=True)
            )
        return [_between(self.counts, row, count) for count in range(1, self.counts[-1] + 1)]


def _between(counts: Sequence[int], row: Sequence[float], count: int) -> float:
    upper = bisect.bisect_left(counts, count)
    if counts[upper] == count:
        return row[upper]
    share = (count - counts[upper - 1]) / (counts[upper] - counts[upper - 1])
    return row[upper - 1] + share * (row[upper] - row[upper - 1])


class Step(Struct, frozen=True, kw_only=True):
    """Where one more row costs much more than the row before it did.

    rows: with the dear one. share: what it adds, in target-only rounds. times: t(rows) against
    t(rows - 1).
    """

    rows: int
    share: float
    times: float


class CostCurve(Struct, frozen=True, kw_only=True):
    """forward: one target forward by rows, with choosing the tokens and taking rows back.
    drafters: by name, one proposal by drafts; one that is not here costs nothing.
    reading: by name, taking in one token of the text, of many at once."""

    forward: Grid
    drafters: dict[str, Grid] = {}
    reading: dict[str, float] = {}

    def __post_init__(self) -> None:
        if not all(0 <= second < math.inf for second in self.reading.values()):
            raise ModelError("cost curve: seconds must be positive and finite")

    def steps(self, context: int) -> list[Step]:
        """Rows that add at least a fifth of t(1), and twice what the row before them added."""
        row = self.forward.row(context)
        found, before = [], 0.0
        for rows, (low, high) in enumerate(itertools.pairwise(row), 2):
            added = high - low
            if added >= 0.2 * row[0] and added >= 2 * before:
                found.append(Step(rows=rows, share=added / row[0], times=high / low))
            before = max(added, 0.0)
        return found
