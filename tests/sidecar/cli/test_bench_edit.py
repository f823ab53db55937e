"""``pillion bench edit`` ends what it has started, and says what wide rounds cost."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest
from waiting import until

from engine import CostCurve, EngineError, EngineOptions, Grid
from sidecar.cli.bench_edit import EditBenchmark, EditSettings, width_costs


async def test_a_signal_ends_it_and_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    benchmark = EditBenchmark(EngineOptions(), EditSettings(kill_trials=10**6))
    running = asyncio.create_task(benchmark.run())
    await until(lambda: left_over(tmp_path), 60)
    # As a terminal or `timeout` sends them: to the process, and to its group.
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(EngineError, match="interrupted"):
        await running
    # The folder would come back, were the process still at it.
    assert not left_over(tmp_path)


def left_over(folder: Path) -> bool:
    return any(folder.glob("pillion-crash-*"))


def test_says_what_wide_rounds_cost() -> None:
    row = tuple(2.0 + 0.2 * rows for rows in range(8))
    forward = Grid(contexts=(64, 1024), counts=tuple(range(1, 9)), seconds=(row, row))
    said = width_costs(CostCurve(forward=forward))
    assert said == "rounds take, in times of one with a single row: 4 rows 1.30, 8 rows 1.70"
    assert width_costs(None) == "no round has more than one row"
