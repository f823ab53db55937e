from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine import EngineClient
from engine.testing import EOS, FakeEngine
from sidecar.cli import bench_decode
from sidecar.cli.bench_decode import Engines, Settings, compare
from sidecar.jobs.coding_prompts import CodingPrompt
from sidecar.jobs.decode_benchmark import TASKS
from sidecar.jobs.held_out_code import HeldOut
from sidecar.jobs.peers import Run


class SlowPeer:
    name = "mlx_lm"

    async def reply(self, prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool) -> Run:
        return Run(tokens=(*b"ok", EOS), seconds=4.0, rounds=2)


async def client_of(decode_ms: float) -> EngineClient:
    client = EngineClient(FakeEngine("ok", facts={"decode_ms": decode_ms, "accepted": 1}))
    client.start()
    await client.ready()
    return client


async def test_it_prints_and_writes_every_system_on_every_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await client_of(500.0)
    path = tmp_path / "out.json"
    engines = Engines({"copy": client}, [SlowPeer()])
    await compare(engines, Settings(repeat=1, max_tokens=9, acceptance=False, json=path))
    await client.stop()
    printed, said = capsys.readouterr()
    assert "decoding: 12 of 24" in said.replace("\n", " ")
    assert "fake: greedy decoding, median of 1" in printed
    report = json.loads(path.read_text())
    rows = report["figures"]["rows"]
    assert [row["task"] for row in rows[::3]] == list(TASKS)
    for task in TASKS:
        assert task in printed
        mine = {row["system"]: row for row in rows if row["task"] == task}
        assert list(mine) == ["target-only", "speculative(copy)", "mlx_lm"]
        assert mine["target-only"]["tok_s"] == 4.0
        assert mine["mlx_lm"]["tok_s"] == 0.5
        assert all(row["exact"] and row["tokens_per_round"] == 1.0 for row in mine.values())
    (line,) = [line for line in printed.splitlines() if "mlx_lm" in line][:1]
    assert "0.12x" in line
    assert set(report) >= {"machine", "versions", "date", "model", "exactness", "repeat"}


async def test_each_drafter_is_a_system_and_what_is_absent_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = CodingPrompt(name="c", regime="new code", text="def f():\n")
    monkeypatch.setattr(
        bench_decode, "held_out_code", lambda: HeldOut(source="a package", prompts=(code,))
    )
    second, first = await client_of(100.0), await client_of(200.0)
    path = tmp_path / "out.json"
    engines = Engines(
        {"dflash v2": second, "dflash v1": first}, absent={"z-lab dflash v1": "no index"}
    )
    await compare(engines, Settings(repeat=1, max_tokens=9, json=path))
    await second.stop()
    await first.stop()
    printed = capsys.readouterr().out
    assert "z-lab dflash v1: not measured: no index" in printed
    assert "accepted drafts; code: a package" in printed
    report = json.loads(path.read_text())
    assert report["absent"] == {"z-lab dflash v1": "no index"}
    assert report["held_out_code"] == "a package"
    assert set(report["kernels"]) == {"dflash v1", "dflash v2"}
    figures = report["figures"]
    speeds = {row["system"]: row["tok_s"] for row in figures["rows"] if row["task"] == "chat"}
    assert speeds == {
        "target-only": 20.0,
        "speculative(copy)": 20.0,
        "speculative(dflash v2)": 20.0,
        "speculative(dflash v1)": 10.0,
        "portfolio": 20.0,
    }
    assert figures["accepted_per_round_code_v1"] == figures["accepted_per_round_code_v2"] == 1.0
    assert figures["sampled_over_greedy_acceptance"] == 1.0
    drafters = {row["drafter"] for row in figures["acceptance"]}
    assert drafters == {"dflash v1", "dflash v2", "copy"}
