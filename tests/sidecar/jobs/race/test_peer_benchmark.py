"""A whole run with engines and servers that are fakes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_servers import start

from engine import CacheOptions, EngineClient, EngineError, EngineOptions, PeerWeights
from engine.testing import FakeEngine
from sidecar.cli.peer_benchmark import SERVED_TARGET_ONLY, Ours, PeerBenchmark, PeersSettings
from sidecar.jobs.coding_prompts import PROMPTS
from sidecar.jobs.held_out_code import HeldOut
from sidecar.jobs.race.contenders import PILLION_SERVED, Served
from sidecar.jobs.race.environments import Installed
from sidecar.jobs.race.results import PILLION_DFLASH, PORTFOLIO, TARGET_ONLY, Results
from sidecar.jobs.race.roster import LLAMA

REGIMES = ("rewrite", "chat")


def engine(options: EngineOptions, cache: CacheOptions) -> EngineClient:
    assert cache.memory == 0, "a prompt that is cached is not read"
    return EngineClient(FakeEngine("def total(rows):\n    return sum(rows)\n" * 3))


def held_out() -> HeldOut:
    return HeldOut(source="our own", prompts=(PROMPTS[0],))


class Serving:
    """Servers, one after another; `fails_from`: which cannot be started."""

    def __init__(self, fails_from: int = 99) -> None:
        self.left = fails_from

    async def __call__(self, folder: Path) -> Served:
        self.left -= 1
        if self.left < 0:
            raise EngineError("there is no room")
        return Served(
            name=PILLION_SERVED, server=start("good"), model="m", serial=SERVED_TARGET_ONLY
        )


async def run(
    serving: Callable[[Path], Awaitable[Served]], installed: dict[str, Installed]
) -> tuple[Results, list[Results]]:
    """The results, and what was written on the way."""
    settings = PeersSettings(peers=(LLAMA,), regimes=REGIMES, repeat=2, max_tokens=8, minutes=1.0)
    written: list[Results] = []
    benchmark = PeerBenchmark(
        settings,
        PeerWeights(gguf="no.gguf", folder="no-folder"),
        installed,
        {"vllm-mlx": "vllm-mlx could not be installed: no index"},
        written.append,
        Ours(engine, serving, held_out, pause=0.0),
    )
    return await benchmark.run(), written


async def test_everything_is_measured_and_written_as_it_goes() -> None:
    results, written = await run(Serving(), {})
    assert {row.system for row in results.rows} == {
        TARGET_ONLY,
        PORTFOLIO,
        PILLION_SERVED,
        SERVED_TARGET_ONLY,
    }
    assert {row.regime for row in results.rows} == set(REGIMES)
    assert {row.system for row in results.builtin_rows} == {TARGET_ONLY, PILLION_DFLASH, PORTFOLIO}
    assert [one.name for one in results.first_token] == [PILLION_SERVED]
    assert [one.door for one in results.doors] == ["HTTP", "JSON-RPC"]
    assert results.memory.get(PILLION_SERVED, 0) > 0 or sys.platform == "darwin"
    assert results.absent == {"vllm-mlx": "vllm-mlx could not be installed: no index"}
    assert results.held_out_code == "our own"
    assert results.complete
    assert written[-1] == results
    assert len(written) > 6
    assert not any(one.complete for one in written[:-1])


async def test_a_peer_that_does_not_start_and_one_that_does_not_come_back_are_rows() -> None:
    # An interpreter that is none: llama.cpp and its four ways to draft.
    broken = Installed(python=Path(os.devnull), versions={"xllamacpp": "1"})
    results, _ = await run(Serving(fails_from=1), {LLAMA: broken})
    assert results.absent[LLAMA].startswith("llama.cpp does not start: ")
    assert results.absent["llama.cpp ngram_mod"].startswith("llama.cpp ngram_mod does not start")
    assert results.absent[f"first token of {PILLION_SERVED}"] == "there is no room"
    assert results.peers == {LLAMA: {"xllamacpp": "1"}}
    assert any(row.system == PILLION_SERVED for row in results.rows)
    assert results.complete


async def test_signals_stop_the_servers_that_were_started() -> None:
    serving = Serving()
    started: list[Served] = []

    async def interrupted(folder: Path) -> Served:
        served = await serving(folder)
        started.append(served)
        # As a terminal or `timeout` sends them: to the process, and to its group.
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        return served

    with pytest.raises(asyncio.CancelledError):
        await run(interrupted, {})
    with pytest.raises(EngineError, match="fake ended"):
        started[0].server.check()
