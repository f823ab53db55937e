from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from reported_surplus import TIMELINE

from engine import CacheOptions, EngineClient, EngineOptions, Simulated
from engine.decoding.round_log import Round
from engine.drafters.drafter import Offer
from engine.testing import FakeEngine
from sidecar.cli import bench_surplus
from sidecar.cli.bench_surplus import SurplusSettings, measure, print_simulated, surplus
from sidecar.config import load_config

ROW = Simulated(
    machine="M4",
    text="prose",
    kind="stationary",
    tokens=10,
    speed=1.25,
    best=1.26,
    best_arm="dflash/3",
    vs_best=1.008,
    slowest=1.015,
    width=3,
)
ASK = Offer("copy", 2, 4)
LOG = (Round("code", 5, 8, (ASK,), "", 0, (ASK,), (2,), (1,), 1, 0.01),)


async def test_the_live_part_writes_a_picture_and_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, record = tmp_path / "t.svg", tmp_path / "traces.json"
    client = EngineClient(
        FakeEngine("four", facts={"decode_ms": 100.0, "timeline": TIMELINE, "log": LOG})
    )
    client.start()
    await client.ready()
    settings = SurplusSettings(repeat=1, schemas=0, picture=picture, record=record)
    figures, rows = await measure(client, settings)
    await client.stop()
    assert figures == {
        "live_worst_vs_target_only": 1.0,
        "live_mixed_vs_always_draft": 1.0,
        "live_mixed_vs_never_draft": 1.0,
    }
    assert len(rows) == 5
    assert "1.00x (1.00-1.00)" in capsys.readouterr().out
    assert picture.read_text().startswith("<svg")
    trace = json.loads(record.read_text())[0]
    assert trace["drafters"]["copy"] == {"offered": "2", "right": "1", "confidence": "4"}


async def test_simulated_only_needs_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [ROW, msgspec.structs.replace(ROW, kind="switching", vs_best=0.9)]
    monkeypatch.setattr(bench_surplus, "simulate_surplus", lambda: iter(rows))
    file, picture = tmp_path / "surplus.json", tmp_path / "surplus.svg"
    await surplus(
        load_config().engine, SurplusSettings(simulated_only=True, picture=picture, json=file)
    )
    report = json.loads(file.read_text())
    assert report["figures"] == {
        "sim_stationary_worst_vs_best_fixed": 1.008,
        "sim_switching_worst_vs_best_per_regime": 0.9,
        "sim_worst_vs_target_only": 1.015,
    }
    assert len(report["simulated"]) == 2
    said = capsys.readouterr().out
    assert "dflash/3" in said
    assert "sim_worst_vs_target_only 1.015\n" in said
    assert "base M4" in picture.read_text(encoding="utf-8")


def test_a_row_without_a_best_choice(capsys: pytest.CaptureFixture[str]) -> None:
    print_simulated([msgspec.structs.replace(ROW, best=0.0, vs_best=0.0, best_arm="")])
    said = capsys.readouterr().out
    assert "1.25x" in said
    assert "0.00x" not in said


async def test_the_picture_in_the_documents_is_what_the_command_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [ROW, msgspec.structs.replace(ROW, kind="switching")]
    monkeypatch.setattr(bench_surplus, "simulate_surplus", lambda: iter(rows))
    drawn = tmp_path / "drawn.svg"
    await surplus(load_config().engine, SurplusSettings(simulated_only=True, picture=drawn))
    kept = Path(__file__).parents[3] / "docs" / "surplus-timeline.svg"
    assert drawn.read_bytes() == kept.read_bytes()


async def test_the_live_part_runs_without_audits_and_cache_and_prints_every_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [ROW, msgspec.structs.replace(ROW, kind="switching")]
    monkeypatch.setattr(bench_surplus, "simulate_surplus", lambda: iter(rows))
    asked: list[tuple[EngineOptions, CacheOptions]] = []

    def client(options: EngineOptions, cache: CacheOptions) -> EngineClient:
        asked.append((options, cache))
        return EngineClient(FakeEngine("4", facts={"decode_ms": 100.0}))

    monkeypatch.setattr(bench_surplus, "engine_client", client)
    file = tmp_path / "surplus.json"
    settings = SurplusSettings(repeat=1, max_tokens=4, schemas=2, json=file)
    await surplus(load_config().engine, settings)
    ((options, cache),) = asked
    assert (options.audit, cache.memory) == (False, 0)
    figures = json.loads(file.read_text())["figures"]
    assert figures["live_worst_vs_target_only"] == 1.0
    assert (figures["schemas"], figures["schemas_valid"], figures["schemas_equal"]) == (2, 0, 2)
    said = capsys.readouterr().out
    for name in ("sim_worst_vs_target_only", "live_mixed_vs_never_draft", "schemas_valid"):
        assert f"\n{name} " in said
