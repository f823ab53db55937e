"""The recorded agents' requests asked of other implementations, for ``pillion bench cache``."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from engine import CacheOptions, EngineOptions, PeerWeights, PillionError, engine_client
from sidecar.cli.bench_peers import install_peers, laid_out_weights
from sidecar.cli.in_process import started
from sidecar.cli.progress import progress
from sidecar.cli.terminal import note
from sidecar.jobs.agent_replay import (
    Asked,
    elsewhere_figures,
    fitting,
    key_of,
    last_turns,
    replay,
    replay_elsewhere,
)
from sidecar.jobs.cache_elsewhere import branched_elsewhere, typed_elsewhere
from sidecar.jobs.race.environments import peer_environment
from sidecar.jobs.race.roster import LLAMA, LLAMA_SERVER
from sidecar.jobs.race.server_process import ServerProcess, free_port
from sidecar.jobs.recorded_agents import Recorded

SMOLLM2, SMOLLM2_CONTEXT = "smollm2-135m", 8192
MLX_LM_SERVER, PILLION_SMOLLM2 = "mlx_lm.server", "pillion smollm2"
# Whose prompts MLX's own arithmetic on a CPU reads within minutes.
AGENTS = ("opencode", "pi")
# Of one request.
SECONDS = 600.0

# Each is read twice, once of them from its first token on.
MOST_BRANCHINGS = 20

T = TypeVar("T")
Command = Callable[[int], Sequence[str]]


class Elsewhere(Struct, frozen=True, kw_only=True):
    """One request, asked of another implementation, or of ours on that one's model. again: it was
    asked first of a new process."""

    name: str
    agent: str
    session: int
    turn: int
    prompt: int
    cached: int
    seconds: float
    again: bool = False


class ReplayedElsewhere:
    """figures: by name, as in the report. rows: of the table. What fails is left out and said.
    keys, branchings: how many of each are asked for."""

    def __init__(self, requests: Sequence[Recorded], keys: int, branchings: int) -> None:
        self.figures: dict[str, float] = {}
        self._keys = keys
        self._branchings = min(branchings, MOST_BRANCHINGS)
        self.rows: list[Elsewhere] = []
        self._requests = [one for one in requests if one.agent in AGENTS]

    async def run(self, folder: str) -> None:
        """folder: of the model that ours were asked of."""
        await self._served(MLX_LM_SERVER, _mlx_lm(folder), folder, self._requests)
        await self._lines(MLX_LM_SERVER, _mlx_lm(folder), folder, 0)
        try:
            weights = await asyncio.to_thread(laid_out_weights)
            small = await self._ours()
            installed, absent = await asyncio.to_thread(
                install_peers, (LLAMA,), Path(weights.cache) / "peers"
            )
        except PillionError as error:
            note(f"{SMOLLM2} is left out: {error.message}")
            return
        if LLAMA in absent:
            note(f"{LLAMA} is left out: {absent[LLAMA]}")
            return
        llama = _llama(installed[LLAMA].python, weights)
        await self._served(LLAMA, llama, SMOLLM2, small)
        await self._lines(LLAMA, llama, SMOLLM2, self._branchings)

    async def _ours(self) -> list[Recorded]:
        """Pillion on the model that llama.cpp reads, and the requests that fit there."""
        options = EngineOptions(model=SMOLLM2, context=SMOLLM2_CONTEXT, audit=False)
        async with started(engine_client(options, CacheOptions(memory=2 << 30)), SMOLLM2) as client:
            fitting_ones = await fitting(client, self._requests)
            with progress(PILLION_SMOLLM2, len(fitting_ones)) as step:
                answers = await replay(client, fitting_ones, step)
        self._take(PILLION_SMOLLM2, fitting_ones, answers, {})
        return fitting_ones

    async def _served(
        self, name: str, command: Command, model: str, requests: Sequence[Recorded]
    ) -> None:
        try:
            with progress(name, len(requests) + 1) as step:
                answers = await asyncio.to_thread(_ask_all, name, command, model, requests, step)
                last = last_turns(requests)[-1:]
                again = await asyncio.to_thread(
                    _ask_all, name, command, model, [requests[index] for index in last], step
                )
        except PillionError as error:
            note(f"{name} is left out: {error.message}")
            return
        self._take(name, requests, answers, dict(zip(last, again, strict=True)))

    async def _lines(self, name: str, command: Command, model: str, branchings: int) -> None:
        """A line being typed, and branchings where the server can do without its cache."""

        def ask(port: int, step: Callable[[], None]) -> None:
            typed = typed_elsewhere(port, model, self._keys, step)
            self.figures |= {
                f"{key_of(name)}_keystroke_max_extra_tokens": typed.extra,
                f"{key_of(name)}_edited_file_extra_tokens": typed.edited,
            }
            if branchings:
                differences = branched_elsewhere(port, model, branchings, step)
                self.figures |= {
                    f"{key_of(name)}_branchings": branchings,
                    f"{key_of(name)}_branching_differences": differences,
                }

        try:
            with progress(f"{name}, typing and branching", self._keys + 1 + branchings) as step:
                await asyncio.to_thread(_with_server, name, command, lambda port: ask(port, step))
        except PillionError as error:
            note(f"typing and branching of {name} are left out: {error.message}")

    def _take(
        self,
        name: str,
        requests: Sequence[Recorded],
        answers: Sequence[Asked],
        again: dict[int, Asked],
    ) -> None:
        asked = list(zip(requests, answers, strict=True))
        for agent in dict.fromkeys(one.agent for one in requests):
            own = [(one, answer) for one, answer in asked if one.agent == agent]
            late = next((a for i, a in again.items() if requests[i].agent == agent), None)
            ones, theirs = zip(*own, strict=True)
            self.figures |= elsewhere_figures(name, ones, theirs, late)
        self.rows += [_row(name, one, answer) for one, answer in asked]
        self.rows += [_row(name, requests[i], a, again=True) for i, a in again.items()]


def _row(name: str, one: Recorded, answer: Asked, *, again: bool = False) -> Elsewhere:
    return Elsewhere(
        name=name,
        agent=one.agent,
        session=one.session,
        turn=one.turn,
        prompt=answer.prompt,
        cached=answer.cached,
        seconds=answer.seconds,
        again=again,
    )


def _ask_all(
    name: str,
    command: Command,
    model: str,
    requests: Sequence[Recorded],
    step: Callable[[], None],
) -> list[Asked]:
    """All in order, of a server that is started for them."""
    return _with_server(
        name, command, lambda port: replay_elsewhere(port, model, requests, SECONDS, step)
    )


def _with_server(name: str, command: Command, ask: Callable[[int], T]) -> T:
    """What `ask` makes of a server's port, while it runs."""
    port = free_port()
    server = ServerProcess.start(
        name, command(port), port=port, environment=peer_environment(os.environ)
    )
    try:
        return ask(port)
    finally:
        server.stop()


def _mlx_lm(folder: str) -> Command:
    def command(port: int) -> list[str]:
        server = [sys.executable, "-P", "-m", "mlx_lm", "server", "--model", folder]
        return [*server, "--host", "127.0.0.1", "--port", str(port)]

    return command


def _llama(python: Path, weights: PeerWeights) -> Command:
    def command(port: int) -> list[str]:
        script = [str(python), "-P", str(LLAMA_SERVER), weights.gguf]
        return [*script, str(port), "1", str(SMOLLM2_CONTEXT)]

    return command


LINES = (
    ("a key, beyond what was typed", "keystroke_max_extra_tokens"),
    ("a file edited, beyond its tail", "edited_file_extra_tokens"),
    ("branchings", "branchings"),
    ("other replies", "branching_differences"),
)
# Why a figure is not there.
CANNOT = {MLX_LM_SERVER: "its cache cannot be turned off for a request"}


def lines_table(figures: Mapping[str, float]) -> Any:
    """Typing and branching, ours and others', in tokens computed: a rich table."""
    from rich.table import Table

    table = Table(title="A line being typed, and branchings")
    table.add_column("implementation")
    for title, _ in LINES:
        table.add_column(title, justify="right")
    for name in ("pillion", MLX_LM_SERVER, LLAMA):
        prefix = "" if name == "pillion" else f"{key_of(name)}_"
        found = [figures.get(f"{prefix}{figure}") for _, figure in LINES]
        if any(value is not None for value in found):
            cannot = CANNOT.get(name, "")
            table.add_row(name, *(cannot if value is None else f"{value}" for value in found))
    return table


def elsewhere_table(rows: Sequence[Elsewhere]) -> Any:
    """A rich table."""
    from rich.table import Table

    table = Table(title="The same requests elsewhere")
    for name in ("implementation", "agent", "session", "turn", "prompt", "computed", "first token"):
        left = name in ("implementation", "agent")
        table.add_column(name, justify="left" if left else "right")
    for row in rows:
        table.add_row(
            f"{row.name}, restarted" if row.again else row.name,
            row.agent,
            str(row.session),
            str(row.turn + 1),
            str(row.prompt),
            str(row.prompt - row.cached),
            f"{row.seconds:.2f} s",
        )
    return table
