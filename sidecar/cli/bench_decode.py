"""``pillion bench decode``: decode speed and accepted drafts, with other implementations beside."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from engine import (
    CacheOptions,
    EngineClient,
    EngineOptions,
    PillionError,
    drafter_kind,
    engine_client,
)
from sidecar.cli.background import child_environment
from sidecar.cli.in_process import started
from sidecar.cli.progress import progress
from sidecar.cli.report import report_console, write_report
from sidecar.cli.terminal import note
from sidecar.jobs.acceptance_benchmark import CODE, REWRITE, Acceptance, Candidate, figures
from sidecar.jobs.coding_prompts import PROMPTS
from sidecar.jobs.decode_benchmark import TARGET_ONLY, DecodeBenchmark, Ours, Row, System
from sidecar.jobs.held_out_code import HeldOut, held_out_code
from sidecar.jobs.peers import MLX_LM, NAMES, OFFICIAL_DFLASH, Peer

if TYPE_CHECKING:
    from rich.table import Table


class Settings(Struct, frozen=True, kw_only=True):
    """What to measure; `bench.command` says what each means."""

    drafts: tuple[str, ...] = ()
    repeat: int = 3
    max_tokens: int = 128
    cooldown: float = 0.0
    ignore_eos: bool = False
    peers: bool = True
    acceptance: bool = True
    json: Path | None = None


@dataclasses.dataclass(frozen=True)
class Engines:
    """clients: by the drafter's shown name, the best drafter first; ``copy`` where there is none.
    absent: why a peer is not measured, by its name."""

    clients: Mapping[str, EngineClient]
    peers: Sequence[System] = ()
    absent: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def main(self) -> EngineClient:
        return next(iter(self.clients.values()))

    @property
    def systems(self) -> list[System]:
        """Target-only first."""
        drafting = [
            Ours(f"speculative({name})", client, ("dflash",))
            for name, client in self.clients.items()
            if name != "copy"
        ]
        ours = [
            Ours(TARGET_ONLY, self.main, None),
            Ours("speculative(copy)", self.main, ("copy",)),
            *drafting,
        ]
        if drafting:
            ours.append(Ours("portfolio", self.main))
        return [*ours, *self.peers]


async def decode(options: EngineOptions, settings: Settings) -> None:
    """Load everything, measure, print and write."""
    # A replay in idle time would run while it is another system's turn, and a prefix that a
    # target-only reply left has no rows for a drafter. Prefill is not counted.
    options = msgspec.structs.replace(options, audit=False)
    async with contextlib.AsyncExitStack() as running:
        clients: dict[str, EngineClient] = {}
        for draft in settings.drafts or ("copy",):
            drafting = msgspec.structs.replace(options, draft=draft)
            client = await running.enter_async_context(
                started(engine_client(drafting, CacheOptions(memory=0)), options.model)
            )
            clients[_shown(draft, options.model, clients)] = client
        peers, absent = list[System](), dict[str, str]()
        for kind, draft, name in _peers(settings, list(clients)):
            note(f"starting {name} beside")
            drafting = msgspec.structs.replace(options, draft=draft)
            try:
                peers.append(await running.enter_async_context(_peer(kind, drafting, name)))
            except PillionError as error:
                note(f"{name} is not measured: {error.message}")
                absent[name] = error.message
        await compare(Engines(clients, peers, absent), settings)


def _shown(draft: str, model: str, taken: Collection[str]) -> str:
    """``dflash v1`` or ``v2``, with the folder's name where that is taken."""
    kind = drafter_kind(draft, model) or "copy"
    return f"{kind} {Path(draft).name}" if kind in taken else kind


def _peers(settings: Settings, shown: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Kind, drafter and shown name of what is to be measured beside. shown: our drafters."""
    if not settings.peers:
        return
    yield MLX_LM, "none", NAMES[MLX_LM]
    # Without a drafter, what is shown is the copy drafter alone.
    for draft, name in zip(settings.drafts, shown, strict=False):
        yield OFFICIAL_DFLASH, draft, f"{NAMES[OFFICIAL_DFLASH]} {name.removeprefix('dflash ')}"


@contextlib.asynccontextmanager
async def _peer(kind: str, options: EngineOptions, name: str) -> AsyncIterator[Peer]:
    peer = await Peer.start(kind, options, child_environment(os.environ, {}, None), name=name)
    try:
        yield peer
    finally:
        await peer.stop()


async def compare(engines: Engines, settings: Settings) -> dict[str, Any]:
    """Measure, print and write; the figures."""
    benchmark = DecodeBenchmark(
        engines.systems,
        max_tokens=settings.max_tokens,
        ignore_eos=settings.ignore_eos,
        cooldown=settings.cooldown,
    )
    with progress("decoding", benchmark.steps(settings.repeat)) as advance:
        rows = await benchmark.measure(engines.main, settings.repeat, advance)
    status = engines.main.status()
    model = status.model.id if status.model else ""
    console = report_console()
    console.print(_rows(rows, f"{model}: greedy decoding, median of {settings.repeat}"))
    for name, reason in engines.absent.items():
        console.print(f"{name}: not measured: {reason}", highlight=False, markup=False)
    found: dict[str, Any] = {"rows": rows}
    held_out: HeldOut | None = None
    if settings.acceptance:
        note("reading held-out code")
        held_out = held_out_code()
        accepted = await _accepted(engines, held_out, settings.max_tokens)
        console.print(_acceptance(accepted, f"{model}: accepted drafts; code: {held_out.source}"))
        found |= figures(accepted)
    if settings.json is not None:
        write_report(
            settings.json,
            found,
            model=status.model,
            exactness=status.exactness,
            # Chosen by a race at load, which a busy machine can decide differently each time.
            kernels={name: client.status().kernels for name, client in engines.clients.items()},
            repeat=settings.repeat,
            max_tokens=settings.max_tokens,
            ignore_eos=settings.ignore_eos,
            absent=engines.absent,
            held_out_code=held_out and held_out.source,
        )
    return found


async def _accepted(engines: Engines, held_out: HeldOut, max_tokens: int) -> list[Acceptance]:
    rewrites = [prompt for prompt in PROMPTS if prompt.regime == "rewrite"]
    candidates = [
        Candidate(name, client, "dflash", CODE, held_out.prompts)
        for name, client in engines.clients.items()
        if name != "copy"
    ]
    candidates.append(Candidate("copy", engines.main, "copy", REWRITE, rewrites))
    rows: list[Acceptance] = []
    with progress("counting", sum(candidate.steps for candidate in candidates)) as advance:
        for candidate in candidates:
            rows += await candidate.measure(max_tokens, advance)
    return rows


def _rows(rows: Sequence[Row], title: str) -> Table:
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


def _acceptance(rows: Sequence[Acceptance], title: str) -> Table:
    from rich.table import Table

    table = Table(title=title)
    for name in ("drafter", "text", "sampling", "drafter's noise"):
        table.add_column(name)
    for name in ("replies", "tokens", "tokens/round", "drafts accepted/round"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in rows:
        table.add_row(
            row.drafter,
            row.text,
            row.sampling,
            row.noise,
            str(row.replies),
            str(row.tokens),
            f"{row.tokens_per_round:.2f}",
            f"{row.drafts_per_round:.2f}",
            "looping text" if row.looping else "",
        )
    return table
