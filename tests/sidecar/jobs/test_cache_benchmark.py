"""What is measured of the cache itself: typing, branchings, killed writers."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import CacheOptions, EngineClient, EngineOptions, engine_client, random_windowed_target
from engine.testing import FakeEngine
from sidecar.cli.bench_cache import CacheSettings
from sidecar.jobs.cache_benchmark import branchings, crash_trials, keystrokes


async def test_replies_of_branchings_are_compared() -> None:
    client = EngineClient(FakeEngine("four", context=2000))
    other = EngineClient(FakeEngine(lambda request: "four" if request.seed != 3 else "xxxx"))
    for one in (client, other):
        one.start()
        await one.ready()
    assert (await branchings(client, other, 8, lambda: None)).differences == 1
    for one in (client, other):
        await one.stop()


def test_quick_is_a_tenth_of_it() -> None:
    quick = CacheSettings(branchings=20).quick()
    assert (quick.branchings, quick.crashes, quick.agents, quick.peers) == (
        20,
        10,
        ("opencode",),
        False,
    )
    assert CacheSettings(agents=("pi",)).quick().agents == ("pi",)


async def test_a_line_is_typed_key_by_key(builtin_engine: EngineClient) -> None:
    """Each key computes what was typed and a few tokens; another file costs from there on."""
    typed = await keystrokes(builtin_engine, 4)
    assert typed.first > 500
    assert typed.extra <= 8
    assert typed.edited <= 64


@pytest.mark.slow
async def test_a_whole_line_beside_six_files() -> None:
    client = engine_client(EngineOptions(audit=False, context=32768), CacheOptions())
    client.start()
    await client.ready()
    typed = await keystrokes(client, 60)
    assert typed.first > 4000
    assert typed.extra <= 8
    assert typed.edited <= 8
    await client.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["built-in", "windowed"])
async def test_500_branchings(tmp_path: Path, kind: str) -> None:
    """Live, under budgets that are too small; then writers of what they left are killed."""
    options = EngineOptions(audit=False)
    plain = engine_client(options, CacheOptions(memory=0))
    plain.start()
    await plain.ready()
    if kind == "windowed":
        model = plain.status().model
        assert model is not None
        folder = random_windowed_target(model.path, tmp_path / "model")
        await plain.stop()
        options = EngineOptions(audit=False, model=str(folder))
        plain = engine_client(options, CacheOptions(memory=0))
        plain.start()
        await plain.ready()
    small = CacheOptions(memory=8 << 20, dir=str(tmp_path / "cache"), disk=64 << 20)
    cached = engine_client(options, small)
    cached.start()
    await cached.ready()
    made = await branchings(cached, plain, 500, lambda: None)
    assert made.differences == 0
    assert made.cancelled > 50
    assert made.found > 50_000
    assert cached.status().cache.evictions
    for one in (cached, plain):
        await one.stop()
    trials = list(crash_trials(tmp_path / "cache", tmp_path / "crashed", 10))
    assert len(trials) == 10
    assert all(one.killed and one.healed and not one.wrong for one in trials)
    assert sum(one.records for one in trials) >= 10
