"""What survives on disk, and that nothing that goes wrong there is more than a miss."""

from __future__ import annotations

import errno
import json
import os
import random
import stat
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kept_tokens import cache, found, put, use

from engine.prefix_cache.cache_folder import USES, CacheFolder
from engine.prefix_cache.disk_index import DiskIndex, Stored
from engine.prefix_cache.disk_tier import DiskTier
from engine.prefix_cache.prefix_cache import LEAST_FETCH_SECONDS, PrefixCache
from engine.prefix_cache.record import Head

STEM = list(range(100, 180))


def opened(folder: Path, fingerprint: str = "f" * 64, budget: int | None = None) -> DiskTier:
    tier = DiskTier(folder, lambda: fingerprint, budget=budget)
    deadline = time.monotonic() + 20
    while not tier.opened and tier.state != "off":
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return tier


def saved(kept: PrefixCache, *prompts: list[int], state: bool = True) -> None:
    for tokens in prompts:
        kept.save(put(kept, tokens, state=state, stable=True))
    assert kept.disk is not None
    while kept.step():
        pass
    kept.disk.flush()


def fetched(kept: PrefixCache, tokens: list[int]) -> int:
    """How many of `tokens` are known once the disk was asked."""
    known = np.asarray(tokens, np.uint32)
    fetch = kept.fetch(known)
    if fetch is not None:
        fetch.records.exception(timeout=20)
        kept.admit(known, fetch)
    kept.check_integrity()
    return found(kept, tokens)


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_prefix_comes_back_after_a_restart(tmp_path, recurrent):
    first = cache(recurrent=recurrent, disk=opened(tmp_path / "c"))
    saved(first, STEM, [*STEM, 1, 2, 3] + [9] * 40, [*STEM[:50], 7] + [8] * 30)
    first.close()
    again = cache(recurrent=recurrent, disk=opened(tmp_path / "c"))
    assert found(again, STEM) == 0
    assert fetched(again, [*STEM, 1, 2, 3] + [9] * 40 + [5]) == 123
    facts = use(again, [*STEM, 1, 2, 3] + [9] * 40)
    assert (facts.memory, facts.disk, facts.kind) == (0, 123, "restart")
    facts = use(again, STEM)
    assert (facts.memory, facts.disk, facts.kind) == (80, 0, "turn")
    assert fetched(again, [*STEM[:50], 7] + [8] * 30) == 81
    again.close()


def test_files_are_for_the_user_alone(tmp_path):
    folder = tmp_path / "c"
    folder.mkdir(mode=0o755)
    kept = cache(disk=opened(folder))
    saved(kept, STEM)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) >= 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    kept.close()


def test_the_hottest_prefixes_come_back_first(tmp_path):
    first = cache(recurrent=True, disk=opened(tmp_path))
    cold, hot = [1, *range(1000, 1100)], [2, *range(2000, 2100)]
    saved(first, cold, hot)
    for _ in range(5):
        use(first, hot)
    first.close()
    disk = opened(tmp_path)
    again = cache(recurrent=True, disk=disk, budget=2 * disk.nbytes * 3 // 4)
    deadline = time.monotonic() + 20
    while again.waits and not found(again, hot):
        again.step()
        assert time.monotonic() < deadline
    assert found(again, hot) == 101
    assert found(again, cold) == 0
    again.close()


def test_another_fingerprint_finds_nothing(tmp_path):
    first = cache(disk=opened(tmp_path))
    saved(first, STEM)
    first.close()
    other = cache(disk=opened(tmp_path, "e" * 64))
    assert fetched(other, STEM) == 0
    assert other.disk is not None
    assert other.disk.files == 1
    other.close()
    again = cache(disk=opened(tmp_path))
    assert fetched(again, STEM) == 80
    again.close()


def test_another_format_is_removed_and_counted(tmp_path):
    first = cache(disk=opened(tmp_path))
    saved(first, STEM)
    first.close()
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes().replace(b"pillion-prefix-1", b"pillion-prefix-0"))
    other = tmp_path / "notes.safetensors"
    other.write_bytes(b"somebody else's")
    again = cache(disk=opened(tmp_path))
    assert fetched(again, STEM) == 0
    assert not file.exists()
    assert other.exists()
    reasons = {(e.tier, e.reason): e.count for e in again.status().evictions}
    assert reasons == {("disk", "foreign"): 1}
    again.close()


@pytest.mark.parametrize("known", [False, True], ids=["at start", "later"])
def test_flipped_bits_in_stored_files(tmp_path, known):
    """200 files, one bit each: found out wherever it is, removed, and never a wrong token."""
    draw = random.Random(1)
    prompts = [[n, *range(n * 100, n * 100 + 30)] for n in range(1, 101)]
    first = cache(recurrent=True, disk=opened(tmp_path))
    saved(first, *prompts)
    first.close()
    kept = cache(recurrent=True, disk=opened(tmp_path)) if known else None
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 100
    for file in files:
        raw = bytearray(file.read_bytes())
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        file.write_bytes(raw)
    kept = kept or cache(recurrent=True, disk=opened(tmp_path))
    assert [fetched(kept, prompt) for prompt in prompts] == [0] * 100
    assert kept.disk is not None
    assert sum(kept.disk.evictions[reason] for reason in ("damaged", "foreign")) == 100
    assert list(tmp_path.glob("*.safetensors")) == []
    saved(kept, prompts[0])
    kept.memory.clear()
    assert fetched(kept, prompts[0]) == 31
    kept.close()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, -1, -40])
def test_a_truncated_file_is_a_miss(tmp_path, size):
    first = cache(disk=opened(tmp_path))
    saved(first, STEM)
    first.close()
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:size])
    again = cache(disk=opened(tmp_path))
    assert fetched(again, STEM) == 0
    assert not file.exists()
    again.close()


def test_the_budget_is_kept_and_a_used_chain_outlives_the_rest(tmp_path):
    kept = cache(recurrent=True, disk=opened(tmp_path, budget=40_000))
    saved(kept, STEM, [*STEM, *range(500, 560)])
    for _ in range(6):
        use(kept, [*STEM, *range(500, 560)])
    for other in range(60):
        saved(kept, [other, *range(7000, 7060)])
        sizes = [file.stat().st_size for file in tmp_path.glob("*.safetensors")]
        assert sum(sizes) <= 40_000
        assert kept.disk is not None
        assert kept.disk.nbytes == sum(sizes)
    assert kept.disk.evictions["budget"] > 10
    kept.memory.clear()
    assert fetched(kept, [*STEM, *range(500, 560)]) == 140
    kept.close()


class FullFolder(CacheFolder):
    """Writing fails with `failure` while it is set."""

    failure: int | None = None

    def write(self, name, pieces):
        if self.failure is None:
            return super().write(name, pieces)
        half = next(iter(pieces))[:8]

        def broken():
            yield half
            raise OSError(self.failure, os.strerror(self.failure))

        return super().write(name, broken())


def test_a_full_disk_makes_room_and_heals(tmp_path):
    disk = opened(tmp_path)
    kept = cache(disk=disk)
    saved(kept, *([n, *range(50)] for n in range(32)))
    folder = FullFolder(tmp_path)
    disk.folder.close()
    disk.folder = folder
    assert folder.try_lock()
    folder.failure = errno.ENOSPC
    before = disk.files
    saved(kept, [99, *range(50)])
    assert disk.files < before
    assert disk.evictions["space"] >= 4
    assert "No space" in disk.detail
    assert list(tmp_path.glob(".*.tmp")) == []
    folder.failure = None
    saved(kept, *([200 + n, *range(50)] for n in range(70)))
    kept.memory.clear()
    assert fetched(kept, [269, *range(50)]) == 51
    kept.close()


def test_a_read_only_folder_is_read(tmp_path):
    first = cache(disk=opened(tmp_path))
    saved(first, STEM)
    first.close()
    (tmp_path / ".lock").unlink()
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("root may write anywhere, but where it gave up CAP_DAC_OVERRIDE")
    again = cache(disk=opened(tmp_path))
    assert again.status().disk_state == "read only"
    assert fetched(again, STEM) == 80
    saved(again, [1, *STEM])
    tmp_path.chmod(0o700)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    again.close()


def test_a_folder_that_becomes_read_only(tmp_path):
    disk = opened(tmp_path)
    kept = cache(disk=disk)
    saved(kept, STEM)
    folder = FullFolder(tmp_path)
    disk.folder.close()
    disk.folder = folder
    assert folder.try_lock()
    folder.failure = errno.EROFS
    saved(kept, [1, *STEM])
    assert kept.status().disk_state == "read only"
    kept.memory.clear()
    assert fetched(kept, STEM) == 80
    kept.close()


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    kept = cache(disk=opened(tmp_path / "file" / "c"))
    status = kept.status()
    assert status.disk_state == "off"
    assert str(tmp_path / "file" / "c") in status.disk_detail
    put(kept, STEM)
    assert fetched(kept, STEM) == 80
    assert not kept.step()
    assert not kept.waits
    kept.close()


def test_two_processes_one_writes_and_both_read(tmp_path):
    writer = cache(disk=opened(tmp_path))
    reader = cache(disk=opened(tmp_path))
    assert (writer.status().disk_state, reader.status().disk_state) == ("writing", "reading")
    saved(writer, STEM)
    assert reader.disk is not None
    reader.disk._ask(reader.disk._look).result()
    assert fetched(reader, STEM) == 80
    put(reader, [5, *STEM])
    saved(reader, [5, *STEM])
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    writer.close()
    reader.disk._ask(reader.disk._look).result()
    assert reader.status().disk_state == "writing"
    saved(reader, [5, *STEM])
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    reader.close()


def test_who_only_reads_leaves_files_of_no_use_to_the_writer(tmp_path, caplog):
    writer, reader = cache(disk=opened(tmp_path)), cache(disk=opened(tmp_path))
    saved(writer, STEM, [1, *STEM])
    assert writer.disk is not None
    assert reader.disk is not None
    other, broken = sorted(tmp_path.glob("*.safetensors"))
    other.write_bytes(other.read_bytes().replace(b"pillion-prefix-1", b"pillion-prefix-0"))
    broken.write_bytes(broken.read_bytes()[:7])
    for _ in range(3):
        (tmp_path / "touched").touch()
        (tmp_path / "touched").unlink()
        reader.disk._ask(reader.disk._look).result()
    assert [record.getMessage().split("; ")[-1] for record in caplog.records] == [
        "it is not used"
    ] * 2
    reader.disk.verify().result()
    assert (reader.disk.files, reader.status().evictions) == (0, ())
    assert other.exists()
    assert broken.exists()
    writer.close()
    reader.disk._ask(reader.disk._look).result()
    assert not other.exists()
    assert not broken.exists()
    assert reader.disk.evictions == {"foreign": 1, "damaged": 1}
    reader.close()


def test_nothing_is_remembered_of_records_that_are_gone(tmp_path):
    disk = opened(tmp_path, budget=20_000)
    kept = cache(disk=disk)
    for n in range(60):
        saved(kept, [n, *range(50)])
    assert disk.evictions["budget"] > 10
    index = disk._index
    assert sum(disk.wrote(stored.name) for stored in index) == len(index) < 50
    assert set(index._behind) == {s.head.before for s in index if s.head is not None}
    assert not any(isinstance(held, set) and held for held in vars(kept).values())
    kept.close()


def test_an_index_counts_what_is_behind_a_record_down_to_nothing():
    index, tokens = DiskIndex(), np.arange(4, dtype=np.uint32)
    for n in range(3):
        index.add(Stored(f"{n}", 1, Head("f", "before", f"{n}", tokens, 0, snapshot=False)))
    for n in range(3):
        assert index._behind == {"before": 3 - n}
        index.discard(f"{n}")
    assert len(index._behind) == 0


def test_files_that_vanish_are_misses(tmp_path):
    kept = cache(disk=opened(tmp_path))
    saved(kept, STEM)
    kept.memory.clear()
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    assert fetched(kept, STEM) == 0
    kept.close()


def test_the_folder_may_go_and_comes_back(tmp_path):
    import shutil

    kept = cache(disk=opened(tmp_path / "c"))
    saved(kept, STEM)
    shutil.rmtree(tmp_path / "c")
    saved(kept, [1, *STEM])
    saved(kept, [2, *STEM])
    kept.memory.clear()
    assert fetched(kept, [2, *STEM]) == 81
    kept.close()


def test_a_clock_that_jumps_changes_nothing(tmp_path):
    first = cache(disk=opened(tmp_path))
    saved(first, STEM, [1, *STEM])
    first.close()
    for when, file in zip((0, 2**33), sorted(tmp_path.iterdir()), strict=False):
        os.utime(file, (when, when))
    again = cache(disk=opened(tmp_path))
    assert fetched(again, STEM) == 80
    assert fetched(again, [1, *STEM]) == 81
    again.close()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"hits": {"x": "y"}}', '{"hits": 3}'])
def test_notes_about_uses_are_not_trusted(tmp_path, text):
    first = cache(disk=opened(tmp_path))
    saved(first, STEM)
    first.close()
    assert json.loads((tmp_path / "uses.json").read_text())["hits"] == {}
    (tmp_path / "uses.json").write_text(text)
    again = cache(disk=opened(tmp_path))
    assert fetched(again, STEM) == 80
    again.close()


def test_clear_and_verify(tmp_path):
    kept = cache(disk=opened(tmp_path))
    saved(kept, STEM, [1, *STEM])
    first, _ = sorted(tmp_path.glob("*.safetensors"))
    first.write_bytes(first.read_bytes()[:-1] + b"\xff")
    reports = []
    kept.report("verify", str, reports.append)
    kept.disk.flush()
    assert (reports[0].checked, reports[0].damaged, reports[0].problem) == (2, 1, "")
    kept.report("clear", str, reports.append)
    kept.disk.flush()
    assert reports[1].removed == 3
    assert list(tmp_path.glob("*.safetensors")) == []
    kept.close()


class SlowFolder(CacheFolder):
    """Reading a file waits until `goes_on`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.read_names: list[str] = []
        self.goes_on = threading.Semaphore(0)
        self.reads = threading.Semaphore(0)

    def read(self, name):
        if name == USES:
            return super().read(name)
        self.read_names.append(name)
        self.reads.release()
        assert self.goes_on.acquire(timeout=60)
        return super().read(name)


def slow(disk: DiskTier) -> SlowFolder:
    folder = SlowFolder(disk.folder.path)
    disk.folder.close()
    disk.folder = folder
    assert folder.try_lock()
    return folder


def test_what_is_loaded_comes_between_the_files_that_are_verified(tmp_path):
    disk = opened(tmp_path)
    kept = cache(disk=disk)
    saved(kept, *([n, *range(50)] for n in range(5)))
    folder = slow(disk)
    kept.memory.clear()
    checked = disk.verify()
    assert folder.reads.acquire(timeout=60)
    prompt = np.asarray([3, *range(50)], np.uint32)
    fetch = kept.fetch(prompt)
    assert fetch is not None
    # The file that is being read, and the one that was asked for.
    for _ in range(2):
        folder.goes_on.release()
    fetch.records.result(timeout=60)
    assert not checked.done()
    for _ in range(4):
        folder.goes_on.release()
    assert checked.result(timeout=60) == (5, 0)
    kept.admit(prompt, fetch)
    assert found(kept, prompt.tolist()) == 51
    kept.close()


def test_what_comes_too_late_is_there_for_the_next(tmp_path):
    disk = opened(tmp_path)
    kept = cache(disk=disk)
    saved(kept, STEM)
    folder = slow(disk)
    kept.memory.clear()
    prompt = np.asarray([*STEM, 7, 8], np.uint32)
    fetch = kept.fetch(prompt)
    assert fetch is not None
    fetch.wait(0.001)
    assert not fetch.over
    fetch.began -= LEAST_FETCH_SECONDS + 0.1
    assert fetch.over
    kept.admit(prompt, fetch)
    assert found(kept, STEM) == 0
    folder.goes_on.release()
    fetch.wait(60)
    assert kept.fetch(prompt) is None
    assert found(kept, STEM) == 80
    kept.close()
