"""A writer that is killed at any moment, and a day of traffic."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kept_tokens import cache, found, put, use
from process_holds import open_files, resident
from test_disk_tier import fetched, opened

from engine import CrashTrial, crash_trials_command
from engine.messages import Priority
from engine.prefix_cache.crash_trials import look
from engine.prefix_cache.messages import FileContent, Segment
from engine.prefix_cache.record import Record, decode

HOUR, DAY = 3600, 86_400
BUDGET, DISK_BUDGET = 2 << 20, 1 << 20
# By then the budgets are full; and bytes of memory that it may be more after that.
WARM, MOST_GROWTH = 7 * HOUR, 4 << 20


def written(folder: Path) -> Path:
    """A cache that is whole, with some records of several hundred kilobytes."""
    kept = cache(10**8, recurrent=True, disk=opened(folder))
    for n in range(12):
        prompt = [n, *range(n, n + (60_000 if n % 4 == 0 else 200))]
        for length in (60, len(prompt)):
            kept.save(put(kept, prompt[:length], state=True))
    while kept.step():
        pass
    assert kept.disk is not None
    kept.disk.flush()
    kept.close()
    return folder


def crashed(source: Path, folder: Path, trials: int) -> list[CrashTrial]:
    ran = subprocess.run(
        crash_trials_command(source, folder, trials), stdout=subprocess.PIPE, check=True
    )
    return [msgspec.json.decode(line, type=CrashTrial) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("trials", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments_of_writing(tmp_path, trials):
    """Never a wrong bit in what can be read, never a crash, and the next writer goes on."""
    made = crashed(written(tmp_path / "whole"), tmp_path / "c", trials)
    assert len(made) == trials
    assert all(one.killed and one.healed for one in made)
    assert sum(one.wrong for one in made) == 0
    assert sum(one.damaged for one in made) == 0
    assert sum(one.records for one in made) >= trials


def test_a_record_that_is_not_what_was_written_is_counted(tmp_path):
    """What counts wrong ones is not blind: here another cache's folder is taken for this one's."""
    other = written(tmp_path / "other")
    records = [decode(file.read_bytes()) for file in sorted(other.glob("*.safetensors"))]
    expected = {record.head.name: record for record in records}
    for record in records[:2]:
        name = next(iter(record.arrays))
        array = record.arrays[name]
        changed = array._replace(data=bytes(array.data)[::-1])
        expected[record.head.name] = Record(record.head, {**record.arrays, name: changed}, {})
    found = look(expected, other, records[0].head.fingerprint, 1 << 30, killed=True)
    assert (found.records, found.wrong, found.healed) == (len(records), 2, True)


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


def play(folder: Path, seconds: int) -> tuple[float, list[int]]:
    """The share of prompt tokens that was known; budgets are checked all the way. And the bytes
    that the process had at the end of each hour."""
    kept = cache(BUDGET, recurrent=True, disk=opened(folder, budget=DISK_BUDGET))
    assert kept.disk is not None
    asked = known = 0
    held, files_open = list[int](), len(open_files())
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
            assert sum(f.stat().st_size for f in files) <= DISK_BUDGET
            assert len(files) == kept.disk.files <= 1000
            assert len(open_files()) <= files_open
        assert kept.memory.tree.nbytes <= BUDGET
        assert len(kept.memory.tree) <= BUDGET // 1024
        if at >= HOUR * (len(held) + 1):
            held.append(resident())
    kept.close()
    return known / asked, held


def test_twenty_minutes_of_traffic_stay_inside_the_budgets(tmp_path):
    share, _ = play(tmp_path, DAY // 72)
    assert share > 0.7


@pytest.mark.slow
def test_a_day_of_traffic_stays_inside_the_budgets(tmp_path):
    share, held = play(tmp_path, DAY)
    assert share > 0.8
    assert len(held) >= 23
    assert max(held) - held[WARM // HOUR - 1] < MOST_GROWTH
