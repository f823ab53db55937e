"""``pillion bench edit`` ends what it has started."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest
from waiting import until

from engine import EngineError, EngineOptions
from sidecar.cli.bench_edit import EditBenchmark, EditSettings


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
