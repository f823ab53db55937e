"""``pillion bench edit``: how fast edits of held-out code are made, with other implementations on
the same model beside."""

from __future__ import annotations

import asyncio
import contextlib
import json as json_text
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from engine import (
    CacheOptions,
    CostCurve,
    EngineClient,
    EngineError,
    EngineOptions,
    PillionError,
    engine_client,
    known_drafters,
)
from sidecar.cli.background import child_environment
from sidecar.cli.bench_peers import install_peers, laid_out_weights
from sidecar.cli.in_process import cancelled_by_signals, started
from sidecar.cli.report import report_console, write_report
from sidecar.cli.terminal import note
from sidecar.edits.crash_trials import run_trials
from sidecar.jobs.edit import unchanged_answer
from sidecar.jobs.edit_benchmark import (
    COPY,
    DFLASH,
    PORTFOLIO,
    PREDICTION,
    TARGET_ONLY,
    EditRow,
    edit_figures,
    edit_rows,
    right_answers,
)
from sidecar.jobs.edit_tasks import EditTask, edit_tasks
from sidecar.jobs.held_out_code import held_out_folders
from sidecar.jobs.peers import MLX_LM, NAMES, Peer
from sidecar.jobs.race.contenders import Contender, InProcess, Piped
from sidecar.jobs.race.race import Race, Runs
from sidecar.jobs.race.roster import LLAMA, SERVED_PEERS
from sidecar.jobs.race.tasks import Task

if TYPE_CHECKING:
    from rich.table import Table

# Regimes in the sense of a race: mlx_lm needs longest, and shows its speed on fewer tasks.
FOR_ALL, OURS_ONLY = "for all", "ours only"
PEER_TASKS = 12
# Of the time; what is left is for the peers on the small model.
MAIN_SHARE = 0.7
# What llama.cpp can run, how many of the tasks and how much of each: a reply takes it seconds on
# two cores. mlx_lm takes half a minute, so it gets the last one.
SMALL_MODEL, SMALL_TASKS, SMALL_TOKENS = "smollm2-135m", 4, 96
LLAMA_WAYS = (LLAMA, f"{LLAMA} ngram_simple", f"{LLAMA} ngram_mod")
EDIT_TOKENS, EDIT_MINUTES, EDIT_REPEAT = 224, 6.0, 3
KILL_TRIALS, KILLED_FILES = 100, 300


class EditSettings(Struct, frozen=True, kw_only=True):
    """What to measure; `bench.command` says what each means. tasks: files. kill_trials: processes
    that are killed while they write a change set."""

    tasks: int = 40
    repeat: int = EDIT_REPEAT
    max_tokens: int = EDIT_TOKENS
    minutes: float = EDIT_MINUTES
    peers: bool = True
    kill_trials: int = KILL_TRIALS
    json: Path | None = None


class EditBenchmark:
    """Repeats are interleaved, as a `Race` has them."""

    def __init__(self, options: EngineOptions, settings: EditSettings) -> None:
        # A replay in idle time would run while it is another system's turn.
        self._options = msgspec.structs.replace(options, audit=False)
        self._settings = settings
        self._began = time.monotonic()
        self._absent: dict[str, str] = {}
        self._kernels: dict[str, str] = {}
        self._widths: dict[str, str] = {}
        self._ours: list[str] = []
        self._right: dict[str, int] = {}
        self._rows: list[EditRow] = []

    async def run(self) -> dict[str, Any]:
        """Measure, print and write; the figures. A signal ends it, and the servers that it has
        started. Raises EngineError."""
        cancelled_by_signals()
        try:
            return await self._measure()
        except asyncio.CancelledError:
            raise EngineError("interrupted; nothing was written") from None

    async def _measure(self) -> dict[str, Any]:
        settings = self._settings
        note(f"killing {settings.kill_trials} processes that write changes")
        killed = await run_trials(settings.kill_trials, KILLED_FILES)
        folders, sources = await asyncio.to_thread(held_out_folders)
        tasks = edit_tasks(folders, settings.tasks)
        if not tasks:
            raise PillionError(
                "there is no held-out code: pip cannot fetch it and none is installed"
            )
        share = MAIN_SHARE if settings.peers else 1.0
        runs = await self._main(tasks, share)
        if settings.peers:
            await self._small(tasks[:SMALL_TASKS])
        right = self._right.get(self._options.model, 0)
        found: dict[str, Any] = msgspec.to_builtins(
            edit_figures(runs, self._rows, right, self._ours)
        )
        found |= killed
        self._print(found)
        if settings.json is not None:
            write_report(
                settings.json,
                found,
                rows=self._rows,
                held_out_code=sources,
                absent=self._absent,
                kernels=self._kernels,
                widths=self._widths,
                seconds=round(time.monotonic() - self._began),
                tasks=len(tasks),
                repeat=settings.repeat,
                max_tokens=settings.max_tokens,
                minutes=settings.minutes,
            )
        return found

    async def _main(self, tasks: Sequence[EditTask], share: float) -> Runs:
        """Our systems and mlx_lm on the model that is asked about."""
        model = self._options.model
        client = engine_client(self._options, CacheOptions(memory=0))
        async with contextlib.AsyncExitStack() as running:
            await running.enter_async_context(started(client, model))
            contenders: list[Contender] = [
                InProcess(TARGET_ONLY, client, None),
                InProcess(COPY, client, (COPY,), TARGET_ONLY),
                InProcess(PREDICTION, client, (PREDICTION,), TARGET_ONLY),
                InProcess(PORTFOLIO, client, (), TARGET_ONLY),
            ]
            if set(client.status().drafters) - {COPY}:
                contenders.insert(3, InProcess(DFLASH, client, (DFLASH,), TARGET_ONLY))
            self._ours = [one.name for one in contenders]
            if self._settings.peers:
                await self._add_mlx_lm(contenders, self._options, running)
            return await self._raced(model, client, contenders, tasks, share, tasks[:PEER_TASKS])

    async def _small(self, tasks: Sequence[EditTask]) -> None:
        """llama.cpp with its own lookup, and what else is there, on a model that it can run."""
        try:
            weights = await asyncio.to_thread(laid_out_weights)
            installed, absent = await asyncio.to_thread(
                install_peers, (LLAMA,), Path(weights.cache) / "peers"
            )
        except PillionError as error:
            self._absent[f"{LLAMA} on {SMALL_MODEL}"] = error.message
            return
        self._absent |= {f"{name} on {SMALL_MODEL}": why for name, why in absent.items()}
        options = msgspec.structs.replace(self._options, model=SMALL_MODEL, draft="copy")
        client = engine_client(options, CacheOptions(memory=0))
        async with contextlib.AsyncExitStack() as running:
            await running.enter_async_context(started(client, SMALL_MODEL))
            contenders: list[Contender] = [
                InProcess(TARGET_ONLY, client, None),
                InProcess(PORTFOLIO, client, (), TARGET_ONLY),
            ]
            environment = child_environment(os.environ, {}, None)
            for peer in SERVED_PEERS:
                if peer.name in LLAMA_WAYS and LLAMA in installed:
                    try:
                        served = await peer.start(installed[LLAMA], weights, environment)
                    except PillionError as error:
                        self._absent[f"{peer.name} on {SMALL_MODEL}"] = error.message
                        continue
                    running.push_async_callback(served.stop)
                    contenders.append(served)
            await self._add_mlx_lm(contenders, options, running)
            share = 1 - MAIN_SHARE
            await self._raced(
                SMALL_MODEL, client, contenders, tasks, share, tasks[-1:], SMALL_TOKENS
            )

    async def _add_mlx_lm(
        self,
        contenders: list[Contender],
        options: EngineOptions,
        running: contextlib.AsyncExitStack,
    ) -> None:
        plain = msgspec.structs.replace(options, draft="none", kernels="off")
        try:
            peer = await Peer.start(MLX_LM, plain, child_environment(os.environ, {}, None))
        except PillionError as error:
            self._absent[f"{NAMES[MLX_LM]} on {options.model}"] = error.message
            return
        running.push_async_callback(peer.stop)
        contenders.append(Piped(peer, regimes=(FOR_ALL,)))

    async def _raced(
        self,
        model: str,
        client: EngineClient,
        contenders: Sequence[Contender],
        tasks: Sequence[EditTask],
        share: float,
        for_all: Sequence[EditTask],
        max_tokens: int | None = None,
    ) -> Runs:
        """share: of the time. for_all: the tasks that mlx_lm gets, too."""
        note(f"{len(tasks)} edits by {', '.join(one.name for one in contenders)} on {model}")
        self._kernels[model] = client.status().kernels
        self._widths[model] = width_costs(client.status().costs)
        race = Race(
            tasks=[
                await _rendered(client, task, FOR_ALL if task in for_all else OURS_ONLY)
                for task in tasks
            ],
            max_tokens=max_tokens or self._settings.max_tokens,
            # Loading does not count.
            deadline=time.monotonic() + 60 * self._settings.minutes * share,
        )

        async def said(number: int) -> None:
            note(f"round {number + 1} is over, after {time.monotonic() - self._began:.0f} s")

        await race.run(contenders, self._settings.repeat, said)
        self._absent |= {f"{name} on {model}": why for name, why in race.lost.items()}
        serial = {one.name: one.serial for one in contenders}
        kinds = {task.name: task.kind for task in tasks}
        self._rows += edit_rows(model, race.runs, kinds, serial)
        self._right[model] = right_answers(race.runs, PORTFOLIO, tasks)
        return race.runs

    def _print(self, found: dict[str, Any]) -> None:
        console = report_console()
        console.print(edits_table(self._rows))
        for name, why in self._absent.items():
            console.print(f"{name}: not measured: {why}", highlight=False, markup=False)
        for model, kernels in self._kernels.items():
            console.print(f"{model}: {kernels}", highlight=False, markup=False)
            console.print(f"{model}: {self._widths[model]}", highlight=False, markup=False)
        console.print(json_text.dumps(found), highlight=False, soft_wrap=True)


async def _rendered(client: EngineClient, task: EditTask, regime: str) -> Task:
    messages = ({"role": "user", "content": task.user},)
    prompt = await client.chat(list(messages))
    return Task(
        name=task.name,
        regime=regime,
        messages=messages,
        prompt=prompt.tokens,
        # As an edit job asks.
        prediction=tuple(await client.encode(unchanged_answer(task.code, "python"))),
    )


def width_costs(costs: CostCurve | None) -> str:
    """What wide rounds cost here: where they are dear, copying gains little."""
    if costs is None:
        return "no round has more than one row"
    row = costs.forward.row(costs.forward.contexts[0])
    times = [f"{rows} rows {row[rows - 1] / row[0]:.2f}" for rows in (4, 8, 16) if rows <= len(row)]
    return f"rounds take, in times of one with a single row: {', '.join(times)}"


def edits_table(rows: Sequence[EditRow]) -> Table:
    """A section for each model and kind."""
    from rich.table import Table

    table = Table(title="Edits of held-out code, greedily")
    for name in ("model", "edit", "system"):
        table.add_column(name)
    for name in ("tasks", "tok/s", "vs target-only", "drafts accepted/reply"):
        table.add_column(name, justify="right")
    table.add_column("same tokens")
    plain = {(row.model, row.kind): row.tok_s for row in rows if row.system == TARGET_ONLY}
    before = ("", "")
    for row in rows:
        key = (row.model, row.kind)
        if key != before:
            table.add_section()
        against = row.tok_s / plain[key] if plain.get(key) else 0.0
        table.add_row(
            row.model if key != before else "",
            row.kind if key != before else "",
            row.system,
            str(row.tasks),
            f"{row.tok_s:.1f}",
            f"{against:.2f}x" if against else "",
            "" if row.accepted is None else f"{row.accepted:.1f}",
            {True: "yes", False: "NO", None: ""}[row.same],
        )
        before = key
    return table


def best_options(options: EngineOptions) -> EngineOptions:
    """With the best drafter that is known for the model, where ``auto`` is asked for."""
    known = known_drafters(options.model)
    if options.draft == "auto" and known:
        return msgspec.structs.replace(options, draft=known[0])
    return options
