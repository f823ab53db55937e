"""``pillion bench cache``: what need not be computed again, and that no reply depends on it."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from engine import (
    CacheOptions,
    EngineClient,
    EngineOptions,
    engine_client,
    random_windowed_target,
)
from sidecar.cli.bench_cache_peers import (
    Elsewhere,
    ReplayedElsewhere,
    elsewhere_table,
    lines_table,
)
from sidecar.cli.in_process import started
from sidecar.cli.progress import progress
from sidecar.cli.report import report_console, write_report
from sidecar.cli.terminal import note
from sidecar.jobs.agent_replay import (
    Asked,
    Turn,
    ask,
    fitting,
    last_turns,
    replay,
    replay_both,
    turn_figures,
)
from sidecar.jobs.cache_benchmark import Branched, branchings, crash_trials, keystrokes
from sidecar.jobs.recorded_agents import AGENTS, Recorded, recorded

if TYPE_CHECKING:
    from rich.table import Table

# Agents' prompts are longer than what the built-in model was trained on.
CACHE_CONTEXT = 32768
BRANCHINGS, CRASHES = 500, 100
QUICK_BRANCHINGS, QUICK_CRASHES, QUICK_AGENTS = 50, 10, ("opencode",)
NO_CACHE = CacheOptions(memory=0)
# Much less than the branchings need, so that most of them are evicted, and come back from disk.
SMALL_MEMORY, SMALL_DISK = 8 << 20, 96 << 20


class CacheSettings(Struct, frozen=True, kw_only=True):
    """What to measure. traces: folder with the agents' recorded requests; None leaves them out.
    agents: which of them. branchings, crashes, keys: how many. peers: others, too."""

    traces: Path | None = None
    agents: tuple[str, ...] = AGENTS
    branchings: int = BRANCHINGS
    crashes: int = CRASHES
    peers: bool = True
    json: Path | None = None
    keys: int = 60

    def quick(self) -> CacheSettings:
        """A tenth of it, without others: a look at whether everything works."""
        return msgspec.structs.replace(
            self,
            agents=QUICK_AGENTS if self.agents == AGENTS else self.agents,
            branchings=min(self.branchings, QUICK_BRANCHINGS),
            crashes=min(self.crashes, QUICK_CRASHES),
            peers=False,
        )


async def cache(options: EngineOptions, settings: CacheSettings) -> None:
    """Measure, print and write."""
    context = options.context or (CACHE_CONTEXT if options.model == "builtin" else None)
    options = msgspec.structs.replace(options, audit=False, context=context)
    with tempfile.TemporaryDirectory(prefix="pillion-cache-") as folder:
        await CacheBenchmark(options, settings, Path(folder)).run()


class CacheBenchmark:
    """folder: for what the measured caches keep on disk."""

    def __init__(self, options: EngineOptions, settings: CacheSettings, folder: Path) -> None:
        self._options = options
        self._settings = settings
        self._folder = folder
        self._found: dict[str, Any] = {}
        self._turns: list[Turn] = []
        self._elsewhere: list[Elsewhere] = []

    async def run(self) -> None:
        """One part after the other; what is known is printed and written at the end of each."""
        async with self._engine(self._options, NO_CACHE) as plain:
            requests = await self._agents(plain)
            self._write()
            await self._typing()
            self._write()
            self._found["branchings"] = self._settings.branchings
            await self._branch("built-in", self._options, plain, self._settings.branchings)
            await self._crash(plain)
            self._write()
            model = plain.status().model
            assert model is not None
        await self._windowed(model.path)
        self._write()
        if self._settings.peers and requests:
            others = ReplayedElsewhere(requests, self._settings.keys, self._settings.branchings)
            await others.run(model.path)
            self._found |= others.figures
            self._elsewhere = others.rows
            report_console().print(elsewhere_table(others.rows))
            report_console().print(lines_table(self._found))
            self._write()
        for name, value in self._found.items():
            report_console().print(f"{name} = {value}", highlight=False)

    def _engine(
        self, options: EngineOptions, cache_options: CacheOptions
    ) -> contextlib.AbstractAsyncContextManager[EngineClient]:
        return started(engine_client(options, cache_options), options.model)

    def _kept(self, name: str, memory: int = 2 << 30, disk: int = 8 << 30) -> CacheOptions:
        return CacheOptions(memory=memory, dir=str(self._folder / name), disk=disk)

    def _write(self) -> None:
        if self._settings.json is not None:
            more = {"turns": self._turns, "elsewhere": self._elsewhere}
            write_report(self._settings.json, self._found, **more)

    async def _agents(self, plain: EngineClient) -> list[Recorded]:
        """Recorded sessions with the cache, without it, and after a restart."""
        if self._settings.traces is None:
            return []
        asked = recorded(self._settings.traces, self._settings.agents)
        requests = await fitting(plain, asked)
        if len(requests) < len(asked):
            note(f"{len(asked) - len(requests)} of {len(asked)} prompts do not fit the context")
        async with self._engine(self._options, self._kept("agents")) as cached:
            with progress("agents, with the cache and without", len(requests)) as step:
                turns = await replay_both(cached, plain, requests, step)
        for index, answer in (await self._restarted(requests)).items():
            turns[index] = msgspec.structs.replace(turns[index], restarted=answer)
        self._turns = turns
        self._found |= turn_figures(turns)
        report_console().print(_table(turns))
        return requests

    async def _restarted(self, requests: Sequence[Recorded]) -> dict[int, Asked]:
        """The last request of each session, by a new process; an earlier one had all before it."""
        kept, last = self._kept("restarted"), last_turns(requests)
        before = [one for index, one in enumerate(requests) if index not in last]
        async with self._engine(self._options, kept) as first:
            with progress("agents, before the restart", len(before)) as step:
                await replay(first, before, step)
        async with self._engine(self._options, kept) as again:
            await _opened(again)
            return {index: await ask(again, requests[index]) for index in last}

    async def _typing(self) -> None:
        async with self._engine(self._options, self._kept("typing")) as cached:
            typed = await keystrokes(cached, self._settings.keys)
        self._found |= {
            "keystroke_first_tokens": typed.first,
            "keystroke_max_extra_tokens": typed.extra,
            "edited_file_extra_tokens": typed.edited,
        }

    async def _branch(
        self, name: str, options: EngineOptions, plain: EngineClient, count: int
    ) -> Branched:
        """Branchings under budgets that are too small for them."""
        kept = self._kept(name, SMALL_MEMORY, SMALL_DISK)
        async with self._engine(options, kept) as cached:
            with progress(f"branchings, {name}", count) as step:
                made = await branchings(cached, plain, count, step)
            evicted = {e.tier: e.count for e in cached.status().cache.evictions}
        prefix = "branching" if name == "built-in" else f"{name}_branching"
        self._found |= {
            f"{prefix}_differences": made.differences,
            f"{prefix}_cancels": made.cancelled,
            f"{prefix}_evictions": sum(evicted.values()),
            f"{prefix}_cached_tokens": made.found,
        }
        return made

    async def _crash(self, plain: EngineClient) -> None:
        """Kill writers of what the branchings left; then the engine goes on with what is there."""
        trials = []
        with progress("crashes", self._settings.crashes) as step:
            source, folder = self._folder / "built-in", self._folder / "crashed"
            made = crash_trials(source, folder, self._settings.crashes)
            while (one := await asyncio.to_thread(next, made, None)) is not None:
                trials.append(one)
                step()
        count = min(self._settings.branchings, QUICK_BRANCHINGS)
        async with self._engine(self._options, self._kept("crashed")) as cached:
            await _opened(cached)
            with progress("branchings behind the crashes", count) as step:
                after = await branchings(cached, plain, count, step)
            hits = cached.status().cache.hits
        self._found |= {
            "crash_trials": sum(one.killed for one in trials),
            "crash_wrong": sum(one.wrong + (not one.healed) for one in trials) + after.differences,
            "crash_damaged": sum(one.damaged for one in trials),
            "crash_records_read": sum(one.records for one in trials),
            "crash_tokens_from_disk": sum(hit.tokens for hit in hits if hit.tier == "disk"),
        }

    async def _windowed(self, tokenizer: str) -> None:
        """The same branchings on a random model with sliding windows."""
        folder = await asyncio.to_thread(
            random_windowed_target, tokenizer, self._folder / "windowed-model"
        )
        options = EngineOptions(model=str(folder), audit=False)
        count = self._found["windowed_branchings"] = self._settings.branchings
        async with self._engine(options, NO_CACHE) as plain:
            await self._branch("windowed", options, plain, count)


async def _opened(client: EngineClient) -> None:
    """Wait until the tier on disk is there."""
    while client.status().cache.disk_state == "opening":
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client.changed(), 0.05)


def _table(turns: Sequence[Turn]) -> Table:
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
    for one in turns:
        restart = f"{one.restarted.seconds:.3f} s" if one.restarted is not None else ""
        table.add_row(
            one.agent,
            str(one.session),
            str(one.turn + 1),
            str(one.warm.prompt),
            str(one.warm.prompt - one.warm.cached),
            f"{one.warm.seconds:.3f} s",
            f"{one.cold.seconds:.3f} s{'' if one.same else ' OTHER REPLY'}",
            restart,
        )
    return table
