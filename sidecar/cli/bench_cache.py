"""``pillion bench cache``: what need not be computed again, and that no reply depends on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from engine import CacheOptions, EngineClient, EngineError, EngineOptions, engine_client
from sidecar.cli.in_process import started
from sidecar.cli.progress import progress
from sidecar.cli.report import report_console, write_report
from sidecar.cli.terminal import note
from sidecar.jobs.cache_benchmark import (
    Asked,
    Turn,
    ask,
    branchings,
    elsewhere_figures,
    fitting,
    keystrokes,
    last_turns,
    replay,
    replay_elsewhere,
    turn_figures,
    turns,
)
from sidecar.jobs.race.environments import peer_environment
from sidecar.jobs.race.server_process import ServerProcess, free_port
from sidecar.jobs.recorded_agents import AGENTS, Recorded, recorded

if TYPE_CHECKING:
    from rich.table import Table

# Agents' prompts are longer than what the built-in model was trained on.
CACHE_CONTEXT = 32768
BRANCHINGS = 500
NO_CACHE = CacheOptions(memory=0)
_PEER_SECONDS = 900.0


class CacheSettings(Struct, frozen=True):
    """What to measure. traces: folder with the agents' recorded requests; None leaves them out.
    agents: which of them. branchings, keys: how many."""

    traces: Path | None = None
    agents: tuple[str, ...] = AGENTS
    branchings: int = BRANCHINGS
    peers: bool = True
    json: Path | None = None
    keys: int = 60


async def cache(options: EngineOptions, settings: CacheSettings) -> None:
    """Measure, print and write."""
    context = options.context or (CACHE_CONTEXT if options.model == "builtin" else None)
    options = msgspec.structs.replace(options, audit=False, context=context)
    found: dict[str, Any] = {}
    rows: list[Turn] = []
    with tempfile.TemporaryDirectory(prefix="pillion-cache-") as folder:
        kept = CacheOptions(memory=2 << 30, dir=folder, disk=8 << 30)
        if settings.traces is not None:
            rows, more = await _agents(options, kept, settings, settings.traces)
            found |= more
        async with _pair(options, kept) as (cached, plain):
            worst, edited = await keystrokes(cached, settings.keys)
            found |= {"keystroke_max_extra_tokens": worst, "edited_file_extra_tokens": edited}
            with progress("branchings", settings.branchings) as step:
                different = await branchings(cached, plain, settings.branchings, step)
            found |= {"branchings": settings.branchings, "branching_differences": different}
    for name, value in found.items():
        report_console().print(f"{name} = {value}", highlight=False)
    if settings.json is not None:
        write_report(settings.json, found, turns=rows)


@contextlib.asynccontextmanager
async def _pair(
    options: EngineOptions, kept: CacheOptions
) -> AsyncIterator[tuple[EngineClient, EngineClient]]:
    """An engine with a cache and one without."""
    async with (
        started(engine_client(options, kept), options.model) as cached,
        started(engine_client(options, NO_CACHE), options.model) as plain,
    ):
        yield cached, plain


async def _agents(
    options: EngineOptions, kept: CacheOptions, settings: CacheSettings, traces: Path
) -> tuple[list[Turn], dict[str, Any]]:
    asked = recorded(traces, settings.agents)
    async with _pair(options, kept) as (cached, plain):
        requests = await fitting(plain, asked)
        if len(requests) < len(asked):
            note(f"{len(asked) - len(requests)} of {len(asked)} prompts do not fit the context")
        with progress("agents, with the cache and without", 2 * len(requests)) as step:
            warm = await replay(cached, requests, step)
            cold = await replay(plain, requests, step)
        model = cached.status().model
    rows = turns(requests, warm, cold, await _after_restart(options, kept, requests))
    report_console().print(_table(rows))
    found: dict[str, Any] = turn_figures(rows)
    if settings.peers and model is not None:
        found |= await asyncio.to_thread(_mlx_lm, model.path, requests)
    return rows, found


async def _after_restart(
    options: EngineOptions, kept: CacheOptions, requests: Sequence[Recorded]
) -> dict[int, Asked]:
    """The last request of each session, asked first of an engine that has only the disk."""
    answers: dict[int, Asked] = {}
    async with started(engine_client(options, kept), options.model) as again:
        while again.status().cache.disk_state == "opening":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(again.changed(), 0.05)
        for index in last_turns(requests):
            answers[index] = await ask(again, requests[index])
    return answers


def _mlx_lm(folder: str, requests: Sequence[Recorded]) -> dict[str, Any]:
    """The first agent's requests by mlx_lm's server, on the same weights."""
    first = [one for one in requests if one.agent == requests[0].agent] if requests else []
    port = free_port()
    command = [sys.executable, "-P", "-m", "mlx_lm", "server", "--model", folder]
    try:
        server = ServerProcess.start(
            "mlx_lm.server",
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            port=port,
            environment=peer_environment(os.environ),
        )
    except EngineError as error:
        note(f"mlx_lm.server is left out: {error.message}")
        return {}
    try:
        with progress("mlx_lm.server", len(first)) as step:
            answers = replay_elsewhere(port, folder, first, _PEER_SECONDS, step)
    except EngineError as error:
        note(f"mlx_lm.server is left out: {error.message}")
        return {}
    finally:
        server.stop()
    return elsewhere_figures("mlx_lm_server", first, answers)


def _table(rows: Sequence[Turn]) -> Table:
    from rich.table import Table

    table = Table(title="Recorded agents, in order")
    for name in (
        "agent",
        "session",
        "turn",
        "prompt",
        "computed",
        "first token",
        "cold",
        "restart",
    ):
        table.add_column(name, justify="left" if name == "agent" else "right")
    for row in rows:
        restart = "" if row.restart_seconds is None else f"{row.restart_seconds:.2f} s"
        table.add_row(
            row.agent,
            str(row.session),
            str(row.turn + 1),
            str(row.prompt),
            str(row.prompt - row.cached),
            f"{row.seconds:.2f} s",
            f"{row.cold_seconds:.2f} s{'' if row.same else ' OTHER REPLY'}",
            restart,
        )
    return table
