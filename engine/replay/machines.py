"""Cost curves shaped like known machines.

What one row costs against several is measured (by others; the sources stand beside each); what a
drafter costs beside it is set to what block drafters of one twentieth of the target's size take.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.decoding.cost_curve import CostCurve, Grid

COPY_SECONDS = 30e-6


def curve(
    target_seconds: float, rows: Sequence[float], *, draft: float, head: float = 0.0
) -> CostCurve:
    """rows: t(1), t(2), ... in units of t(1). draft, head: of one proposal, and more for each
    draft, in the same units. At 32,768 tokens of context a row costs a third more."""
    return CostCurve(
        forward=_grid(target_seconds, rows),
        drafters={
            "dflash": _grid(target_seconds, [draft + head * n for n in range(1, len(rows))]),
            "copy": _grid(1.0, [COPY_SECONDS] * (len(rows) - 1)),
        },
    )


def _grid(unit: float, times: Sequence[float]) -> Grid:
    return Grid(
        contexts=(0, 32768),
        counts=tuple(range(1, len(times) + 1)),
        seconds=tuple(tuple(t * unit * more for t in times) for more in (1.0, 4 / 3)),
    )


MACHINES = {
    # ml-explore/mlx#3839 (4-bit, M4 Pro) for the slope up to five rows; from the sixth on the
    # weights are read twice, and a base M4 has no bandwidth to hide it: block 5 ran at 1.66 times
    # target-only there, block 8 at 1.11.
    "M4, 4 bit": curve(0.040, [1, 1.05, 1.17, 1.35, 1.5, 2.25, 2.5, 2.75], draft=0.18, head=0.004),
    # A 27B 4-bit forward at 1, 2, 4, 8 and 16 rows: 32.9, 35.2, 49.2, 86.8 and 112.6 ms.
    "M5 Max, 4 bit": curve(
        0.0329,
        [1, 1.07, 1.28, 1.5, 1.78, 2.07, 2.35, 2.64, *(2.74 + 0.097 * n for n in range(8))],
        draft=0.12,
        head=0.002,
    ),
    # Bound by reading the weights: sixteen rows cost what one does, nearly.
    "H200, bf16": curve(0.012, [1 + 0.004 * n for n in range(16)], draft=0.1, head=0.001),
    # Two cores: a row costs two fifths of the first one.
    "CPU, fp32": curve(0.0095, [1 + 0.39 * n for n in range(16)], draft=0.12, head=0.02),
    "flat": curve(0.020, [1.0] * 8, draft=0.1),
}
