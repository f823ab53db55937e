"""``pillion bench``: measure this machine, with the numbers of the alternatives beside."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from engine import EngineClient, EngineOptions, engine_client
from sidecar.cli.background import child_environment
from sidecar.cli.bench_parity import parity
from sidecar.cli.in_process import started
from sidecar.cli.report import check_writable, report_console, write_report
from sidecar.cli.terminal import note
from sidecar.config import load_config
from sidecar.jobs.decode_benchmark import TARGET_ONLY, Baseline, DecodeBenchmark, MlxLm, Row

if TYPE_CHECKING:
    from rich.table import Table


class What(enum.StrEnum):
    """decode: tokens a second of target-only, speculative and mlx_lm decoding.
    parity: the drafts of our DFlash drafters against those of the official implementation."""

    DECODE = "decode"
    PARITY = "parity"


def command(
    what: Annotated[What, typer.Argument(help="What to measure.", show_choices=True)],
    model: Annotated[
        str | None, typer.Option(help="Name, Hub id or folder. Default: the configured model.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Interleaved repeats; medians are shown.")] = 3,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of a reply.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a parity case.")] = 200,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """Decode the same coding prompts greedily, target-only, speculatively and with
    mlx_lm.stream_generate on the same weights, and compare speed and tokens.

    Both engines hold the model, so it is in memory twice. Prefill is not counted.

    parity: draft with the same random DFlash checkpoints as the official dflash package, which pip
    fetches once, and compare every token. It needs no model.
    """
    check_writable(json)
    if what is What.PARITY:
        parity(rounds, json)
        return
    options = load_config({"engine.model": model}).engine
    asyncio.run(_decode(options, repeat, max_tokens, json))


async def _decode(options: EngineOptions, repeat: int, max_tokens: int, json: Path | None) -> None:
    # A replay in idle time would run while it is the other side's turn.
    options = msgspec.structs.replace(options, audit=False)
    async with started(engine_client(options), options.model) as client:
        note("starting mlx_lm beside")
        baseline = await MlxLm.start(options, child_environment(os.environ, {}, None))
        try:
            await compare(client, baseline, repeat=repeat, max_tokens=max_tokens, json=json)
        finally:
            await baseline.stop()


async def compare(
    client: EngineClient, baseline: Baseline, *, repeat: int, max_tokens: int, json: Path | None
) -> list[Row]:
    """Measure, print and write."""
    benchmark = DecodeBenchmark(client, baseline, max_tokens=max_tokens)
    with _progress(benchmark.steps(repeat)) as advance:
        rows = await benchmark.measure(repeat, advance)
    status = client.status()
    model = status.model.id if status.model else ""
    report_console().print(_table(rows, f"{model}: greedy decoding, median of {repeat}"))
    if json is not None:
        write_report(
            json,
            {"rows": rows},
            model=status.model,
            exactness=status.exactness,
            repeat=repeat,
            max_tokens=max_tokens,
        )
    return rows


def _table(rows: Sequence[Row], title: str) -> Table:
    from rich.table import Table

    table = Table(title=title)
    table.add_column("task")
    table.add_column("system")
    for name in ("tok/s", "min-max", "vs target-only", "tokens/round", "tokens"):
        table.add_column(name, justify="right")
    table.add_column("= target-only")
    plain = {row.task: row.tok_s for row in rows if row.system == TARGET_ONLY}
    task = ""
    for row in rows:
        if row.task != task:
            table.add_section()
        against = row.tok_s / plain[row.task] if plain[row.task] else 0.0
        table.add_row(
            row.task if row.task != task else "",
            row.system,
            f"{row.tok_s:.1f}",
            f"{min(row.tok_s_repeats):.1f}-{max(row.tok_s_repeats):.1f}",
            f"{against:.2f}x",
            f"{row.tokens_per_round:.2f}",
            str(row.tokens),
            "yes" if row.exact else "NO",
        )
        task = row.task
    return table


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar with the time left, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=total)
        yield lambda: bar.advance(task)
