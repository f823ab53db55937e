from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine import EngineClient
from engine.testing import EOS, FakeEngine
from sidecar.cli.bench import compare
from sidecar.jobs.decode_benchmark import TASKS, Run


class SlowBaseline:
    async def generate(self, prompt: Sequence[int], max_tokens: int) -> Run:
        return Run(tokens=(*b"ok", EOS), seconds=4.0, rounds=2)


async def test_it_prints_and_writes_every_system_on_every_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = EngineClient(FakeEngine("ok", facts={"decode_ms": 500.0}))
    client.start()
    await client.ready()
    path = tmp_path / "out.json"
    await compare(client, SlowBaseline(), repeat=1, max_tokens=9, json=path)
    await client.stop()
    printed = capsys.readouterr().out
    assert "fake: greedy decoding, median of 1" in printed
    report = json.loads(path.read_text())
    rows = report["figures"]["rows"]
    assert [row["task"] for row in rows[::3]] == list(TASKS)
    for task in TASKS:
        assert task in printed
        mine = {row["system"]: row for row in rows if row["task"] == task}
        assert list(mine) == ["target-only", "speculative(copy)", "mlx_lm.stream_generate"]
        assert mine["target-only"]["tok_s"] == 4.0
        assert mine["mlx_lm.stream_generate"]["tok_s"] == 0.5
        assert all(row["exact"] and row["tokens_per_round"] == 1.0 for row in mine.values())
    (line,) = [line for line in printed.splitlines() if "mlx_lm" in line][:1]
    assert "0.12x" in line
    assert set(report) >= {"machine", "versions", "date", "model", "exactness", "repeat"}
