"""One run of ``pillion bench peers``: what is started, measured, and known so far."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from engine import (
    CacheOptions,
    EngineClient,
    EngineError,
    EngineOptions,
    PeerWeights,
    PillionError,
    engine_client,
    known_drafters,
)
from sidecar.cli.background import SERVE, child_environment
from sidecar.cli.connection import Rpc
from sidecar.cli.in_process import cancelled_by_signals, started
from sidecar.cli.terminal import note
from sidecar.config import Config
from sidecar.daemon import Daemon
from sidecar.jobs.held_out_code import HeldOut, held_out_code
from sidecar.jobs.peers import MLX_LM as BASELINE
from sidecar.jobs.peers import NAMES, OFFICIAL_DFLASH, Peer
from sidecar.jobs.race.contenders import PILLION_SERVED, Contender, InProcess, Piped, Served
from sidecar.jobs.race.doors import DoorOverhead, door_overheads
from sidecar.jobs.race.environments import Installed
from sidecar.jobs.race.first_token import PAUSE_SECONDS, FirstToken, Start, first_token
from sidecar.jobs.race.race import NO_TIME, Race
from sidecar.jobs.race.results import (
    PILLION_DFLASH,
    PORTFOLIO,
    TARGET_ONLY,
    Results,
    comparisons,
    doubtful,
    figures,
    lost_rows,
    rows,
)
from sidecar.jobs.race.roster import DFLASH, FIRST_TOKEN, MLX_LM, SERVED_PEERS, ServedPeer
from sidecar.jobs.race.server_process import ServerProcess, free_port
from sidecar.jobs.race.tasks import HELD_OUT, REGIMES, Task, tasks
from sidecar.jobs.race.verify_cost import VerifyCost, verify_cost
from sidecar.runtime_dir import Address
from sidecar.services import Services

PEERS_TOKENS, PEERS_MINUTES = 48, 11.0
MODEL, BUILTIN = "smollm2-135m", "builtin"
SERVED_TARGET_ONLY = f"{PILLION_SERVED}, target-only"
# Shares of the time. First tokens need servers that are started again.
BUILTIN_SHARE, RACE_SHARE, FIRST_TOKEN_SHARE = 0.12, 0.66, 0.22
# Of the twelve held-out prompts.
HELD_OUT_STEP = 2
# Tokens of a reply through a door, and of a repetitive one, whose rounds are of one to eight rows;
# in those of the race.
DOOR_TOKENS, VERIFY_TOKENS = 1, 4
DOOR_TASKS = 2


class PeersSettings(Struct, frozen=True, kw_only=True):
    """What to measure; `bench.command` says what each means. minutes: for measuring, without
    what is installed before."""

    peers: tuple[str, ...]
    regimes: tuple[str, ...] = REGIMES
    repeat: int = 3
    max_tokens: int = PEERS_TOKENS
    minutes: float = PEERS_MINUTES


async def serve_pillion(folder: Path) -> Served:
    """`pillion serve` as a user runs it, but for the folders, the port and idle work; what it
    keeps, it keeps in `folder`."""
    port = free_port()
    flags = {
        "daemon.runtime_dir": folder / "run",
        "daemon.state_dir": folder / "state",
        "cache.dir": folder / "cache",
        "http.port": port,
        "engine.model": MODEL,
        "engine.audit": False,
    }
    await asyncio.to_thread(folder.mkdir, 0o700, exist_ok=True)
    server = await asyncio.to_thread(
        ServerProcess.start,
        PILLION_SERVED,
        SERVE,
        port=port,
        environment=child_environment(os.environ, flags, None),
    )
    return Served(name=PILLION_SERVED, server=server, model="default", serial=SERVED_TARGET_ONLY)


class Ours(NamedTuple):
    """Where Pillion's own systems come from. serve: a daemon that keeps its state in a folder.
    pause: see `first_token`."""

    engine: Callable[[EngineOptions, CacheOptions], EngineClient] = engine_client
    serve: Callable[[Path], Awaitable[Served]] = serve_pillion
    held_out: Callable[[], HeldOut] = held_out_code
    pause: float = PAUSE_SECONDS


REAL = Ours()


class PeerBenchmark:
    """installed: the peers that have an environment of their own. absent: why others have none.
    write: called with what is known after every step."""

    def __init__(
        self,
        settings: PeersSettings,
        weights: PeerWeights,
        installed: Mapping[str, Installed],
        absent: Mapping[str, str],
        write: Callable[[Results], None],
        ours: Ours = REAL,
    ) -> None:
        self._ours = ours
        self._settings = settings
        self._weights = weights
        self._installed = installed
        self._write = write
        self._environment = child_environment(os.environ, {}, None)
        self._began = time.monotonic()
        self._race = Race([], settings.max_tokens)
        self._builtin = Race([], settings.max_tokens)
        self._contenders: list[Contender] = []
        self._builtin_contenders: list[Contender] = []
        self._absent = dict(absent)
        self._kernels: dict[str, str] = {}
        self._memory: dict[str, int] = {}
        self._first_tokens: list[FirstToken] = []
        self._doors: list[DoorOverhead] = []
        self._verify: VerifyCost | None = None
        self._held_out = ""

    def _deadline(self, share: float) -> float:
        """Of a part that begins now; what was loaded before does not count."""
        return time.monotonic() + 60 * self._settings.minutes * share

    async def run(self) -> Results:
        """Measure everything. A peer that fails is left out with its reason; ours must work."""
        with tempfile.TemporaryDirectory(prefix="pln-") as name:
            folder = Path(name)
            config = private_config(folder / "doors")
            engine = self._ours.engine(config.engine, config.cache)
            async with daemon_beside(config, engine) as (client, address):
                self._kernels[MODEL] = client.status().kernels
                self._race.tasks = await tasks(client, self._settings.regimes)
                await self._step("what verifying costs", self._verified(client))
                await self._step("what the doors cost", self._through_doors(client, address))
                await self._step("the built-in pair", self._raced_builtin())
                async with contextlib.AsyncExitStack() as running:
                    servers = await self._start(client, folder / "served", running)
                    await self._step("the race", self._raced())
                    await self._step("first tokens", self._timed_first_tokens(servers, running))
        results = self.results(complete=True)
        self._write(results)
        return results

    async def _step(self, what: str, work: Awaitable[None]) -> None:
        note(f"{what}, after {time.monotonic() - self._began:.0f} s")
        await work
        self._write(self.results(complete=False))

    async def _verified(self, client: EngineClient) -> None:
        tokens = VERIFY_TOKENS * self._settings.max_tokens
        self._verify = await verify_cost(client, tokens, self._settings.repeat)

    async def _through_doors(self, client: EngineClient, address: Address) -> None:
        with Rpc(address, timeout=120) as rpc:
            self._doors = await door_overheads(
                client,
                self._race.tasks[:DOOR_TASKS],
                port=int(address.url.rpartition(":")[2]),
                api_key=address.api_key,
                call=rpc.call,
                max_tokens=DOOR_TOKENS * self._settings.max_tokens,
                repeat=self._settings.repeat,
            )

    async def _raced_builtin(self) -> None:
        options = EngineOptions(model=BUILTIN, audit=False)
        client = self._ours.engine(options, CacheOptions(memory=0))
        async with contextlib.AsyncExitStack() as running:
            await running.enter_async_context(started(client, BUILTIN))
            self._kernels[BUILTIN] = client.status().kernels
            self._builtin.tasks = await self._held_out_tasks(client)
            entrants = self._builtin_contenders
            entrants += _ours(client)
            entrants.insert(1, InProcess(PILLION_DFLASH, client, ("dflash",), TARGET_ONLY))
            drafter = next(iter(known_drafters(BUILTIN)), "none")
            for peer, kind, draft in (
                (MLX_LM, BASELINE, "none"),
                (DFLASH, OFFICIAL_DFLASH, drafter),
            ):
                if peer in self._settings.peers:
                    await self._add_piped(
                        entrants, kind, EngineOptions(model=BUILTIN, draft=draft), running
                    )
            self._builtin.deadline = self._deadline(BUILTIN_SHARE)
            await self._builtin.run(entrants, self._settings.repeat, self._after_round)

    async def _held_out_tasks(self, client: EngineClient) -> list[Task]:
        held_out = await asyncio.to_thread(self._ours.held_out)
        self._held_out = held_out.source
        return [
            Task(
                name=prompt.name,
                regime=HELD_OUT,
                prompt=(await prompt.render(client)).tokens,
            )
            for prompt in held_out.prompts[::HELD_OUT_STEP]
        ]

    async def _add_piped(
        self,
        entrants: list[Contender],
        kind: str,
        options: EngineOptions,
        running: contextlib.AsyncExitStack,
    ) -> None:
        serial = NAMES[BASELINE] if kind != BASELINE else None
        try:
            peer = await Peer.start(kind, options, self._environment)
        except PillionError as error:
            self._absent[f"{NAMES[kind]} on {options.model}"] = error.message
            return
        running.push_async_callback(peer.stop)
        entrants.append(Piped(peer, serial))

    async def _start(
        self, client: EngineClient, folder: Path, running: contextlib.AsyncExitStack
    ) -> dict[str, tuple[Served, Start]]:
        """Start everybody; the servers whose first token is measured, with how to start each
        again."""
        note("starting the other implementations")
        self._contenders += _ours(client)
        if MLX_LM in self._settings.peers:
            options = EngineOptions(model=MODEL, draft="none", kernels="off")
            await self._add_piped(self._contenders, BASELINE, options, running)
        servers: dict[str, tuple[Served, Start]] = {}
        for name, start in self._starts(folder):
            try:
                served = await start()
            except PillionError as error:
                note(f"{name} is not measured: {error.message}")
                self._absent[name] = error.message
                continue
            running.push_async_callback(served.stop)
            if name in (PILLION_SERVED, *FIRST_TOKEN):
                servers[name] = served, start
            if name == PILLION_SERVED:
                status = msgspec.json.decode(await asyncio.to_thread(served.server.get, "/health"))
                self._kernels[name] = status.get("kernels", "")
                self._contenders += _both_ways(served)
            else:
                self._contenders.append(served)
        return servers

    def _starts(self, folder: Path) -> list[tuple[str, Start]]:
        def of(peer: ServedPeer) -> Start:
            return lambda: peer.start(self._installed[peer.peer], self._weights, self._environment)

        return [
            (PILLION_SERVED, lambda: self._ours.serve(folder)),
            *((peer.name, of(peer)) for peer in SERVED_PEERS if peer.peer in self._installed),
        ]

    async def _raced(self) -> None:
        self._race.deadline = self._deadline(RACE_SHARE)
        await self._race.run(self._contenders, self._settings.repeat, self._after_round)
        for contender in self._contenders:
            if peak := contender.peak_bytes():
                self._memory[contender.name] = peak

    async def _after_round(self, number: int) -> None:
        note(f"round {number + 1} is over, after {time.monotonic() - self._began:.0f} s")
        self._write(self.results(complete=False))

    async def _timed_first_tokens(
        self, servers: Mapping[str, tuple[Served, Start]], running: contextlib.AsyncExitStack
    ) -> None:
        deadline = self._deadline(FIRST_TOKEN_SHARE)
        for contender in self._contenders:
            # The others would only be in the way of the servers that are started again.
            if contender.name not in (*servers, SERVED_TARGET_ONLY):
                await contender.stop()
        for name, (server, start) in servers.items():
            what = f"first token of {name}"
            if name in self._race.lost:
                self._absent[what] = self._race.lost[name]
                await server.stop()
                continue
            try:
                if time.monotonic() > deadline:
                    raise EngineError(NO_TIME)
                number, pause = len(self._first_tokens), self._ours.pause
                found, server = await first_token(server, start, number, pause)
                self._first_tokens.append(found)
            except PillionError as error:
                self._absent[what] = error.message
            await server.stop()
            self._write(self.results(complete=False))

    def results(self, *, complete: bool) -> Results:
        """As far as things are known."""
        found = comparisons(self._race, self._builtin)
        settings: dict[str, Any] = msgspec.to_builtins(self._settings)
        seconds = round(time.monotonic() - self._began)
        return Results(
            figures=figures(found, self._verify, self._doors),
            complete=complete,
            comparisons=found,
            rows=tuple(rows(self._race, self._contenders)),
            builtin_rows=tuple(rows(self._builtin, self._builtin_contenders)),
            lost=(
                *lost_rows(self._race, self._contenders),
                *lost_rows(self._builtin, self._builtin_contenders),
            ),
            first_token=tuple(self._first_tokens),
            doors=tuple(self._doors),
            verify=self._verify,
            memory=self._memory,
            absent={**self._absent, **self._builtin.lost, **self._race.lost},
            peers={name: one.versions for name, one in self._installed.items()},
            kernels=self._kernels,
            doubtful=doubtful(self._kernels),
            held_out_code=self._held_out,
            settings={"model": MODEL, "threads": 1, "seconds": seconds, **settings},
        )


def _ours(client: EngineClient) -> list[Contender]:
    return [InProcess(TARGET_ONLY, client, None), InProcess(PORTFOLIO, client, (), TARGET_ONLY)]


def _both_ways(served: Served) -> list[Contender]:
    """One daemon, asked to draft and not to."""
    plain = Served(
        name=SERVED_TARGET_ONLY, server=served.server, model=served.model, more={"draft": False}
    )
    return [plain, served]


def private_config(folder: Path) -> Config:
    """Of a daemon with doors of its own. It computes every prompt, and nothing in idle time."""
    folder.mkdir(mode=0o700)
    config = Config()
    return msgspec.structs.replace(
        config,
        daemon=msgspec.structs.replace(
            config.daemon, runtime_dir=str(folder / "run"), state_dir=str(folder / "state")
        ),
        http=msgspec.structs.replace(config.http, port=0),
        engine=EngineOptions(model=MODEL, audit=False),
        cache=CacheOptions(memory=0),
    )


@contextlib.asynccontextmanager
async def daemon_beside(
    config: Config, engine: EngineClient
) -> AsyncIterator[tuple[EngineClient, Address]]:
    """A daemon on this event loop, its model loaded: the engine behind its doors, and where they
    are. Raises what `Daemon.run` and `EngineClient.ready` raise."""
    opened: asyncio.Future[tuple[Services, Address]] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(
        Daemon(config, engine).run(lambda *doors: opened.set_result(doors))
    )
    either: set[asyncio.Future[Any]] = {running, opened}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
        raise EngineError("the daemon ended before it answered")
    services, address = opened.result()
    # Instead of ending the daemon under this task.
    cancelled_by_signals()
    try:
        note(f"loading {config.engine.model}")
        await engine.ready()
        yield engine, address
    finally:
        services.shutdown()
        await running
