"""`pillion doctor --costs`: what rounds cost here, and where a further row costs much more."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from engine import CostCurve, Grid, RequestError, Step, engine_client
from sidecar.cli.connection import Rpc, find_daemon
from sidecar.cli.in_process import started
from sidecar.cli.report import report_console
from sidecar.cli.terminal import print_json
from sidecar.config import Config

if TYPE_CHECKING:
    from rich.table import Table

# MLX 0.32 on Apple GPUs (mlx/backend/metal/quantized.cpp, scaled_dot_product_attention.cpp).
WEIGHTS_AGAIN = (
    "from the M3 on, quantised weights are read once for every five rows; this row reads them again"
)
EVERY_ROW = "before the M3, quantised weights are read for every row"
MATRIX_KERNEL = (
    "from about here on MLX multiplies with its matrix kernel, which costs the same for up to "
    "32 rows: a wider block is hardly dearer"
)
ATTENTION = "attention leaves its vector kernel behind eight rows"
ROW_BY_ROW = "every row is computed by itself here: what a row costs is its own price"
UNKNOWN = "another kernel, or rows that no longer fit together"


def print_costs(config: Config, *, as_json: bool) -> None:
    """Of the running daemon's model, or of the configured one, which is loaded for it."""
    status = _status(config)
    if status["costs"] is None:
        raise RequestError("nothing was measured: this model is only decoded target-only")
    if as_json:
        print_json({name: status[name] for name in ("model", "costs", "slowdown")})
        return
    console = report_console()
    curve = msgspec.convert(status["costs"], CostCurve)
    console.print(forward_table(curve.forward, f"{status['model']['id']}: one target forward"))
    for name, grid in curve.drafters.items():
        console.print(forward_table(grid, f"one proposal of {name}", what="drafts"))
    for name, second in curve.reading.items():
        read = f"{name} reads what it has missed in {1e6 * second:.0f} us a token"
        console.print(read, highlight=False)
    for line in explained(curve, metal=sys.platform == "darwin"):
        console.print(line, highlight=False)
    if abs(status["slowdown"] - 1) > 0.05:
        console.print(f"now rounds take {status['slowdown']:.2f} times as long", highlight=False)


def _status(config: Config) -> dict[str, Any]:
    address = find_daemon(config)
    if address is None:
        return asyncio.run(_measured(config))
    with Rpc(address) as rpc:
        status: dict[str, Any] = rpc.call("pillion/status")
    return status


async def _measured(config: Config) -> dict[str, Any]:
    async with started(engine_client(config.engine), config.engine.model) as client:
        status: dict[str, Any] = msgspec.to_builtins(client.status())
    return status


def forward_table(grid: Grid, title: str, what: str = "rows") -> Table:
    """Milliseconds by rows and context; beside the first context also in units of one row."""
    from rich.table import Table

    table = Table(title=title)
    table.add_column(what, justify="right")
    for context in grid.contexts:
        table.add_column(f"at {context} tokens", justify="right")
    table.add_column(f"times 1 {what.removesuffix('s')}", justify="right")
    rows = [grid.row(context) for context in grid.contexts]
    for index, count in enumerate(range(1, grid.counts[-1] + 1)):
        each = [f"{1e3 * row[index]:.2f} ms" for row in rows]
        table.add_row(str(count), *each, f"{rows[0][index] / rows[0][0]:.2f}")
    return table


def explained(curve: CostCurve, *, metal: bool) -> Iterator[str]:
    """A line for each step of the forward, at the shortest context."""
    steps = curve.steps(curve.forward.contexts[0])
    if not steps:
        yield "no steps: every further row costs little more than the one before it"
    for step in steps:
        yield (
            f"step at {step.rows} rows: {step.times:.2f} times what {step.rows - 1} cost, "
            f"{step.share:.2f} of a target-only round more; {meaning(step, metal=metal)}"
        )


def meaning(step: Step, *, metal: bool) -> str:
    """Why a curve has a step there. metal: on an Apple GPU."""
    if not metal:
        return ROW_BY_ROW if step.rows == 2 else UNKNOWN
    if step.rows == 2:
        return EVERY_ROW
    if step.rows in (6, 11):
        return WEIGHTS_AGAIN
    if step.rows == 9:
        return ATTENTION
    return MATRIX_KERNEL if step.rows >= 12 else UNKNOWN
