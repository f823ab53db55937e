"""``pillion bench surplus``: drafting while it pays, in simulated time and live."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from engine import (
    CacheOptions,
    EngineClient,
    EngineError,
    EngineOptions,
    GenerateRequest,
    Simulated,
    Span,
    acceptance_trace,
    engine_client,
    simulate_surplus,
    simulated_timeline,
    surplus_figures,
)
from sidecar.cli.in_process import started
from sidecar.cli.progress import progress
from sidecar.cli.report import report_console, write_report
from sidecar.cli.terminal import note
from sidecar.jobs.coding_prompts import MIXED, PROMPTS
from sidecar.jobs.reply_schemas import schemas
from sidecar.jobs.schema_benchmark import jsonschema_validate, schema_figures
from sidecar.jobs.surplus_benchmark import (
    ALWAYS,
    NEVER,
    SURPLUS,
    SurplusBenchmark,
    SurplusRow,
    surplus_live_figures,
)
from sidecar.jobs.timeline_picture import timeline_svg

if TYPE_CHECKING:
    from rich.table import Table

REPEAT = 5
# Its source does not name the field; see docs/SURPLUS.md.
IGNORING = "mlx_lm.server"
SCHEMAS = 200
# A reply that is longer says nothing new about its kind of text.
RECORDED_TOKENS = 400


class SurplusSettings(Struct, frozen=True, kw_only=True):
    """What to measure; `bench.command` says what each means."""

    simulated_only: bool = False
    repeat: int = REPEAT
    max_tokens: int = 128
    schemas: int = SCHEMAS
    picture: Path | None = None
    record: Path | None = None
    json: Path | None = None


async def surplus(options: EngineOptions, settings: SurplusSettings) -> None:
    """Simulate, decode, print and write."""
    found: dict[str, Any] = {}
    more: dict[str, Any] = {}
    note("replaying acceptance traces through the controller")
    simulated = list(simulate_surplus())
    print_simulated(simulated)
    found |= msgspec.to_builtins(surplus_figures(simulated))
    more["simulated"] = simulated
    if settings.simulated_only:
        if settings.picture is not None:
            spans = simulated_timeline()
            await _draw(settings.picture, spans, "A reply on a base M4, 4 bit, in simulated time")
    else:
        # A replay in idle time would run while it is another system's turn, and a prefix that a
        # target-only reply has left holds nothing for a drafter.
        options = msgspec.structs.replace(options, audit=False)
        engine = engine_client(options, CacheOptions(memory=0))
        async with started(engine, options.model) as client:
            live, rows = await measure(client, settings)
            found |= live
            more |= {"live": rows, "costs": client.status().costs, "model": client.status().model}
    print_figures(found)
    if settings.json is not None:
        write_report(settings.json, found, repeat=settings.repeat, **more)


async def measure(
    client: EngineClient, settings: SurplusSettings
) -> tuple[dict[str, Any], list[SurplusRow]]:
    """The live part with a loaded model: figures and rows."""
    benchmark = SurplusBenchmark(client, max_tokens=settings.max_tokens)
    with progress("decoding", benchmark.steps(settings.repeat)) as advance:
        rows = await benchmark.measure(settings.repeat, advance)
    report_console().print(_live(rows, f"median of {settings.repeat}; 95 % intervals"))
    found: dict[str, Any] = msgspec.to_builtins(surplus_live_figures(rows))
    if settings.picture is not None:
        await _draw(settings.picture, benchmark.mixed[0].timeline, "An agent's reply")
    if settings.record is not None:
        await _record(client, settings.record)
    if settings.schemas:
        found |= await _schemas(client, settings.schemas)
    return found, rows


async def _schemas(client: EngineClient, count: int) -> dict[str, Any]:
    try:
        validate = jsonschema_validate()
    except EngineError as error:
        note(f"no replies are checked against schemas: {error.message}")
        return {}
    with progress("replies to schemas", count) as advance:
        figures = await schema_figures(client, schemas(count), validate, advance)
    for wrong in figures.wrong:
        note(wrong)
    report_console().print(
        f"JSON schemas: {figures.schemas_valid} of {figures.schemas} replies are what their schema "
        f"asks for, {figures.schemas_equal} the same without drafts; of replies that nothing holds "
        f"to it, as from servers that ignore response_format ({IGNORING}), "
        f"{figures.schemas_valid_unheld}",
        highlight=False,
        soft_wrap=True,
    )
    found: dict[str, Any] = msgspec.to_builtins(figures)
    return found


def print_figures(found: Mapping[str, Any]) -> None:
    """A line for each number."""
    for name, value in found.items():
        if isinstance(value, int | float):
            report_console().print(f"{name} {value}", highlight=False)


async def _draw(path: Path, spans: Sequence[Span], title: str) -> None:
    picture = timeline_svg(spans, f"{title}: what was drafted, and how far").encode()
    await asyncio.to_thread(path.write_bytes, picture)


async def _record(client: EngineClient, path: Path) -> None:
    """What each drafter would have got right at every token of the benchmark's replies."""
    traces = []
    for prompt in (*PROMPTS, *MIXED):
        rendered = await prompt.variant(0).render(client)
        request = GenerateRequest(
            id=client.new_id("record"),
            prompt=rendered.tokens,
            stop_token_ids=rendered.stop_token_ids,
            grammar=rendered.grammar,
            must_start_with=rendered.must_start_with,
            max_tokens=RECORDED_TOKENS,
            policy="watch",
            explain=True,
        )
        reply = await client.generate(request).finished()
        if reply.log:
            traces.append(acceptance_trace(prompt.name, reply.log))
    document = msgspec.json.format(msgspec.json.encode(traces), indent=1) + b"\n"
    await asyncio.to_thread(path.write_bytes, document)


def print_simulated(rows: Sequence[Simulated]) -> None:
    """A table with a section for every machine."""
    from rich.table import Table

    table = Table(title="Simulated: time against the best choice in hindsight")
    for name in ("machine", "text", "kind"):
        table.add_column(name)
    for name in ("vs target-only", "best", "time vs best", "slowest beginning", "rows"):
        table.add_column(name, justify="right")
    table.add_column("best choice")
    machine = ""
    for row in rows:
        if row.machine != machine:
            table.add_section()
        table.add_row(
            row.machine if row.machine != machine else "",
            row.text,
            row.kind,
            f"{row.speed:.2f}x",
            f"{row.best:.2f}x" if row.best else "",
            f"{row.vs_best:.3f}" if row.vs_best else "",
            f"{row.slowest:.3f}",
            str(row.width),
            row.best_arm,
        )
        machine = row.machine
    report_console().print(table)


def _live(rows: Sequence[SurplusRow], title: str) -> Table:
    from rich.table import Table

    table = Table(title=title)
    table.add_column("task")
    for name in (NEVER, ALWAYS, SURPLUS):
        table.add_column(f"{name}, tok/s", justify="right")
    for name in (f"vs {NEVER}", f"vs {ALWAYS}"):
        table.add_column(name, justify="right")
    table.add_column("= target-only")
    for row in rows:
        table.add_row(
            row.task,
            *(f"{row.tok_s[system]:.1f}" for system in (NEVER, ALWAYS, SURPLUS)),
            *(
                f"{ratio.mean:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"
                for ratio in (row.vs_never, row.vs_always)
            ),
            "yes" if row.exact else "NO",
        )
    return table
