"""A writer that is killed at any moment, and a day of traffic."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kept_tokens import cache, found, put, use
from test_disk_tier import fetched, opened

from engine.messages import Priority
from engine.prefix_cache.messages import FileContent, Segment

WRITER = Path(__file__).parent / "crashing_writer.py"
DAY = 86_400
BUDGET, DISK_BUDGET = 2 << 20, 1 << 20


@pytest.mark.slow
def test_kill_9_at_100_random_moments_of_writing(tmp_path):
    """Never a wrong token (`found` compares them), never a crash, and the next writer goes on."""
    draw, folder = random.Random(3), tmp_path / "c"
    hits = 0
    for _ in range(100):
        with subprocess.Popen(
            [sys.executable, WRITER, str(folder)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
            time.sleep(draw.uniform(0, 0.05))
            os.kill(writer.pid, signal.SIGKILL)
        kept = cache(recurrent=True, disk=opened(folder, budget=400_000))
        assert kept.status().disk_state == "writing"
        assert list(folder.glob(".*.tmp")) == []
        for n in range(12):
            hits += fetched(kept, [n % 40, *range(n % 7, n % 7 + 200)])
        assert kept.disk is not None
        assert kept.disk.evictions["damaged"] == 0
        assert sum(f.stat().st_size for f in folder.glob("*.safetensors")) <= 400_000
        kept.close()
    assert hits > 1000


def traffic(seed: int, seconds: int):
    """What an agent and an editor ask for, a request every few seconds: when, prompt, priority,
    boundary, and now and then a file that was saved."""
    draw = random.Random(seed)
    system = [1, *(draw.randrange(50_000) for _ in range(300))]
    files = [[draw.randrange(50_000) for _ in range(120)] for _ in range(6)]
    chat, at = list(system), 0.0
    while (at := at + draw.expovariate(1 / 8)) < seconds:
        if draw.random() < 0.6:
            if draw.random() < 0.02:
                files[draw.randrange(6)] = [draw.randrange(50_000) for _ in range(120)]
            context = [2, *(token for file in files for token in file)]
            yield at, [*context, *draw.choices(range(50_000), k=20)], Priority.INTERACTIVE, 721
        elif draw.random() < 0.1:
            yield at, [3, *draw.choices(range(50_000), k=200)], Priority.AGENT, 0
        else:
            if len(chat) > 6000:
                chat = list(system)
            chat += draw.choices(range(50_000), k=draw.randrange(20, 150))
            yield at, list(chat), Priority.AGENT, 301


def play(folder: Path, seconds: int) -> float:
    """The share of prompt tokens that was known; budgets are checked all the way."""
    kept = cache(BUDGET, recurrent=True, disk=opened(folder, budget=DISK_BUDGET))
    assert kept.disk is not None
    asked = known = 0
    for count, (at, prompt, priority, boundary) in enumerate(traffic(1, seconds)):
        length = fetched(kept, prompt) if count % 50 == 0 else found(kept, prompt)
        asked, known = asked + len(prompt), known + length
        if length:
            use(kept, prompt)
        segments = [Segment(end=boundary, path="a.py", content=str(at).encode())]
        node = None
        for end in (boundary, len(prompt)):
            if end:
                kept_node = put(kept, prompt[:end], state=True, stable=True, segments=segments)
                node = kept_node if end == boundary or priority is Priority.AGENT else node
        if node is not None:
            kept.save(node)
        kept.files_changed([FileContent(path="a.py", content=str(at).encode())])
        kept.step()
        if count % 200 == 0:
            kept.check_integrity()
            kept.disk.flush()
            files = list(folder.glob("*.safetensors"))
            assert sum(f.stat().st_size for f in folder.glob("*.safetensors")) <= DISK_BUDGET
            assert len(files) == kept.disk.files <= 1000
        assert kept.memory.tree.nbytes <= BUDGET
        assert len(kept.memory.tree) <= BUDGET // 1024
    kept.close()
    return known / asked


def test_twenty_minutes_of_traffic_stay_inside_the_budgets(tmp_path):
    assert play(tmp_path, DAY // 72) > 0.7


@pytest.mark.slow
def test_a_day_of_traffic_stays_inside_the_budgets(tmp_path):
    assert play(tmp_path, DAY) > 0.8
