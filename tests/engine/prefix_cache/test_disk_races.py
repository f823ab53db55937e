"""Files that go, come and break while they are asked for; several daemons on one folder."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kept_tokens import TokenRows, TokenState, cache, found, put, use
from test_disk_tier import STEM, FullFolder, fetched, opened, saved

from engine.prefix_cache.cache_folder import CacheFolder
from engine.prefix_cache.disk_tier import DiskTier
from engine.prefix_cache.prefix_cache import LEAST_FETCH_SECONDS, PrefixCache

LONGER = [*STEM, *range(300, 360)]


def look(kept: PrefixCache[TokenRows, TokenState]) -> None:
    """As it does every few seconds."""
    assert kept.disk is not None
    kept.disk._ask(kept.disk._look).result(timeout=60)


def busy(disk: DiskTier) -> threading.Event:
    """The disk tier's thread does nothing until this is set."""
    goes_on = threading.Event()
    disk._ask(lambda: goes_on.wait(60))
    return goes_on


def afresh(folder: Path, tokens: list[int], **options: bool) -> int:
    """How many of `tokens` the next daemon finds."""
    again = cache(disk=opened(folder), **options)
    length = fetched(again, tokens)
    again.close()
    return length


class FailingFolder(FullFolder):
    """Reading, and becoming the writer, fail with `refusal` while it is set."""

    refusal: int | None = None

    def read(self, name):
        if self.refusal is not None:
            raise OSError(self.refusal, os.strerror(self.refusal))
        return super().read(name)

    def try_lock(self):
        if self.refusal is not None:
            raise OSError(self.refusal, os.strerror(self.refusal))
        return super().try_lock()


def failing(disk: DiskTier, *, writes: bool) -> FailingFolder:
    folder = FailingFolder(disk.folder.path)
    disk.folder.close()
    disk.folder = folder
    assert not writes or folder.try_lock()
    return folder


def test_a_record_that_was_lost_is_written_again(tmp_path):
    """What is behind it cannot be reached without."""
    kept = cache(recurrent=True, disk=opened(tmp_path))
    saved(kept, STEM)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    assert kept.disk is not None
    assert kept.disk.verify().result(timeout=60) == (1, 1)
    saved(kept, LONGER)
    kept.close()
    assert afresh(tmp_path, LONGER, recurrent=True) == len(LONGER)


@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_a_session_that_met_a_failing_disk_is_whole_again_later(tmp_path, failure):
    disk = opened(tmp_path)
    kept = cache(recurrent=True, disk=disk)
    saved(kept, [9, *STEM])
    folder = failing(disk, writes=True)
    folder.failure = failure
    saved(kept, STEM)
    assert disk.detail
    folder.failure = None
    for n in range(70):
        saved(kept, [1000 + n, *range(50)])
    assert disk.detail == ""
    saved(kept, LONGER)
    kept.close()
    assert afresh(tmp_path, LONGER, recurrent=True) == len(LONGER)
    # Only a disk that is full has too many files.
    assert (afresh(tmp_path, [9, *STEM], recurrent=True) == 81) or failure == errno.ENOSPC


def test_a_folder_that_can_be_written_again_is(tmp_path):
    disk = opened(tmp_path)
    kept = cache(disk=disk)
    folder = failing(disk, writes=True)
    folder.failure = errno.EROFS
    saved(kept, STEM)
    assert not list(tmp_path.glob("*.safetensors"))
    folder.failure = None
    look(kept)
    assert (disk.state, disk.detail) == ("writing", "")
    saved(kept, LONGER)
    kept.close()
    assert afresh(tmp_path, LONGER) == len(LONGER)


@pytest.mark.parametrize("refusal", [errno.EMFILE, errno.ENOSPC])
def test_a_reader_in_need_removes_no_files(tmp_path, refusal):
    writer, reader = cache(disk=opened(tmp_path)), cache(disk=opened(tmp_path))
    saved(writer, *([n, *range(50)] for n in range(16)))
    look(reader)
    assert reader.disk is not None
    folder = failing(reader.disk, writes=False)
    folder.refusal = refusal
    with reader.disk._guard:
        reader.disk._guard.notify()
    reader.disk._ask(lambda: reader.disk._failed(OSError(refusal, "no"))).result(timeout=60)
    assert len(list(tmp_path.glob("*.safetensors"))) == 16
    assert not reader.disk.evictions
    writer.close()
    folder.refusal = None
    look(reader)
    assert reader.disk.state == "writing"
    assert fetched(reader, [3, *range(50)]) == 51
    reader.close()


def test_what_cannot_be_opened_for_a_moment_is_a_miss_and_stays(tmp_path):
    disk = opened(tmp_path)
    kept = cache(disk=disk)
    saved(kept, STEM)
    kept.memory.clear()
    folder = failing(disk, writes=True)
    folder.refusal = errno.EMFILE
    assert fetched(kept, STEM) == 0
    folder.refusal = None
    assert fetched(kept, STEM) == len(STEM)
    kept.memory.clear()
    folder.refusal = errno.EIO
    assert fetched(kept, STEM) == 0
    assert (disk.files, disk.nbytes, disk.evictions) == (0, 0, {"damaged": 1})
    assert not list(tmp_path.glob("*.safetensors"))
    kept.close()


def test_a_record_that_can_never_fit_drives_nothing_out(tmp_path):
    disk = opened(tmp_path, budget=20_000)
    kept = cache(disk=disk)
    saved(kept, STEM, [1, *STEM])
    saved(kept, [2, *range(30_000)])
    assert not disk.evictions
    assert afresh(tmp_path, STEM) == len(STEM)
    kept.close()


def test_what_is_cleared_is_not_written_afterwards(tmp_path):
    disk = opened(tmp_path)
    kept = cache(disk=disk)
    goes_on = busy(disk)
    kept.save(put(kept, STEM))
    while kept.step():
        pass
    reports = []
    kept.report("clear", str, reports.append)
    goes_on.set()
    disk.flush()
    assert reports[0].removed == 1
    assert not list(tmp_path.glob("*.safetensors"))
    assert disk.takes(1 << 20)
    saved(kept, STEM)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    kept.close()


def test_a_file_that_goes_under_a_fetch_is_a_miss_and_comes_back(tmp_path):
    disk = opened(tmp_path)
    kept = cache(recurrent=True, disk=disk)
    saved(kept, STEM, LONGER)
    kept.memory.clear()
    goes_on = busy(disk)
    prompt = np.asarray(LONGER, np.uint32)
    fetch = kept.fetch(prompt)
    assert fetch is not None
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    goes_on.set()
    assert fetch.records.result(timeout=60) == []
    kept.admit(prompt, fetch)
    assert found(kept, LONGER) == 0
    # Of what it did not come to, verifying finds out.
    assert disk.files == 1
    assert disk.verify().result(timeout=60) == (0, 0)
    assert (disk.files, disk.nbytes) == (0, 0)
    saved(kept, STEM, LONGER)
    kept.close()
    assert afresh(tmp_path, LONGER, recurrent=True) == len(LONGER)


def test_what_a_reader_did_not_want_is_taken_once_it_is_whole(tmp_path):
    """The writer has removed a damaged file, and written it again, between two looks."""
    writer, reader = cache(disk=opened(tmp_path)), cache(disk=opened(tmp_path))
    saved(writer, STEM)
    (file,) = tmp_path.glob("*.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[:20])
    look(reader)
    assert fetched(reader, STEM) == 0
    CacheFolder(tmp_path).write(file.name, [whole])
    look(reader)
    assert fetched(reader, STEM) == len(STEM)
    writer.close()
    reader.close()


def test_verify_finds_a_record_under_another_ones_name(tmp_path):
    kept = cache(disk=opened(tmp_path))
    saved(kept, STEM, [1, *STEM])
    one, other = sorted(tmp_path.glob("*.safetensors"))
    one.write_bytes(other.read_bytes())
    assert kept.disk is not None
    assert kept.disk.verify().result(timeout=60) == (2, 1)
    assert [file.name for file in tmp_path.glob("*.safetensors")] == [other.name]
    kept.close()


def test_what_comes_too_late_is_in_the_budget_before_the_next_request(tmp_path):
    disk = opened(tmp_path)
    kept = cache(disk=disk)
    saved(kept, STEM)
    kept.memory.clear()
    goes_on = busy(disk)
    prompt = np.asarray(STEM, np.uint32)
    fetch = kept.fetch(prompt)
    assert fetch is not None
    fetch.began -= LEAST_FETCH_SECONDS + 1
    kept.admit(prompt, fetch)
    assert kept.waits
    goes_on.set()
    fetch.wait(60)
    kept.step()
    assert found(kept, STEM) == len(STEM)
    assert not kept._late
    kept.close()


@pytest.fixture
def daemons(tmp_path) -> Iterator[list[PrefixCache[TokenRows, TokenState]]]:
    kept = [daemon(tmp_path, n) for n in range(4)]
    yield kept
    for one in kept:
        one.close()


def daemon(folder: Path, number: int) -> PrefixCache[TokenRows, TokenState]:
    """Two of four have another model."""
    return cache(40_000, recurrent=True, disk=opened(folder, "fe"[number % 2] * 64, budget=60_000))


def harm(folder: Path, draw: random.Random) -> None:
    """Remove a file, flip a bit of one, or put one in another's place."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return
    one, other = draw.choice(files), draw.choice(files)
    raw = bytearray(other.read_bytes())
    kind = draw.randrange(3)
    if kind == 0:
        one.unlink()
    elif kind == 1:
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        other.write_bytes(raw)
    elif one != other:
        one.write_bytes(raw)


@pytest.mark.parametrize("steps", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_four_daemons_whatever_becomes_of_the_files(tmp_path, daemons, steps):
    """Never a wrong token (`found` checks each), and in the end the cache is whole."""
    draw = random.Random(7)
    stems = [[n, *range(n * 50, n * 50 + 80)] for n in range(6)]
    for _ in range(steps):
        number = draw.randrange(4)
        kept = daemons[number]
        prompt = draw.choice(stems)
        prompt = prompt[: draw.randrange(20, len(prompt) + 1)] + draw.choices(range(90), k=20)
        length = fetched(kept, prompt)
        if length:
            use(kept, prompt[:length])
        match draw.randrange(10):
            case 0 | 1 | 2:
                # Another one may just be removing that file.
                with contextlib.suppress(FileNotFoundError):
                    harm(tmp_path, draw)
            case 3:
                assert kept.disk is not None
                kept.disk.verify()
            case 4:
                look(kept)
            case 5:
                kept.memory.clear()
            case 6 if draw.random() < 0.2:
                kept.report("clear", str, lambda report: None)
            case 7 if draw.random() < 0.5:
                kept.close()
                daemons[number] = daemon(tmp_path, number)
            case _:
                saved(kept, prompt[:-10], prompt)
    for kept in daemons:
        kept.close()
    daemons[:] = [daemon(tmp_path, 0)]
    whole(daemons[0], tmp_path)


def whole(last: PrefixCache[TokenRows, TokenState], folder: Path) -> None:
    """The only daemon that is left counts what is there, and goes on."""
    assert last.disk is not None
    assert last.status().disk_state == "writing"
    last.disk.verify().result(timeout=60)
    assert last.disk.verify().result(timeout=60)[1] == 0
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    assert (last.disk.nbytes, last.disk.files) == (sum(sizes), len(sizes))
    assert sum(sizes) <= 60_000
    saved(last, STEM, LONGER)
    last.memory.clear()
    assert fetched(last, LONGER) == len(LONGER)
