import errno
import fcntl
import json
import os
import threading
from pathlib import Path

import pytest

from engine import RequestError
from sidecar.edits.crash_trials import run_trials
from sidecar.edits.journal import Change, Interrupted, Journal, JournalError, Outcome
from sidecar.edits.writable_root import WritableRoot


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "w"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.py").write_bytes(b"old " + name.encode())
    with WritableRoot(folder) as opened:
        yield opened


def journal(root, **options):
    return Journal(root.path.parent / "state", root, **options)


def changes(names="abc"):
    return [
        Change(f"{name}.py", b"old " + name.encode(), b"new " + name.encode()) for name in names
    ]


def contents(root):
    return {path.name: path.read_bytes()[:3].decode() for path in sorted(root.path.iterdir())}


ALL_OLD = {"a.py": "old", "b.py": "old", "c.py": "old"}
ALL_NEW = {"a.py": "new", "b.py": "new", "c.py": "new"}


def test_apply_undo_redo(root):
    entry = journal(root).apply("rename it", changes())
    assert contents(root) == ALL_NEW
    assert entry.written == ("a.py", "b.py", "c.py")
    (listed,) = journal(root).entries()
    assert (listed.plan.what, listed.progress.state, listed.interrupted) == (
        "rename it",
        "applied",
        False,
    )
    assert journal(root).undo().progress.state == "undone"
    assert contents(root) == ALL_OLD
    with pytest.raises(RequestError, match="nothing to undo"):
        journal(root).undo()
    journal(root).redo()
    assert contents(root) == ALL_NEW


def test_undo_by_id_and_the_last_one_first(root):
    first = journal(root).apply("one", changes("a")).plan.id
    second = journal(root).apply("two", changes("b")).plan.id
    assert first != second
    assert journal(root).undo().plan.id in (first, second)
    with pytest.raises(RequestError, match="no change set 7"):
        journal(root).undo("7")
    journal(root).undo()
    with pytest.raises(RequestError, match=f"{first} is undone"):
        journal(root).undo(first)
    assert contents(root) == ALL_OLD


def test_files_changed_or_deleted_meanwhile_are_reported_and_left_alone(root):
    (root.path / "a.py").write_bytes(b"mine")
    (root.path / "b.py").unlink()
    entry = journal(root).apply("x", changes())
    assert entry.progress.outcomes == (
        Outcome("a.py", "was changed meanwhile"),
        Outcome("b.py", "is gone"),
        Outcome("c.py"),
    )
    assert contents(root) == {"a.py": "min", "c.py": "new"}
    # What was never written is not undone either, whatever became of it.
    (root.path / "a.py").write_bytes(b"new a")
    assert journal(root).undo().written == ("c.py",)
    assert contents(root) == {"a.py": "new", "c.py": "old"}


def test_a_file_changed_after_it_was_applied_is_not_undone(root):
    journal(root).apply("x", changes())
    (root.path / "b.py").write_bytes(b"mine")
    assert journal(root).undo().progress.outcomes[1] == Outcome("b.py", "was changed meanwhile")
    assert contents(root) == {**ALL_OLD, "b.py": "min"}


def test_a_full_disk_under_one_file_leaves_it_and_goes_on(root, monkeypatch):
    fsync = os.fsync

    def full(handle):
        """As for the temporary file of the second one."""
        inode = os.fstat(handle).st_ino
        if any(path.stat().st_ino == inode for path in root.path.glob(".pillion-*-1")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    entry = journal(root).apply("x", changes())
    assert entry.progress.outcomes[1].reason == "cannot be written: No space left on device"
    assert contents(root) == {**ALL_NEW, "b.py": "old"}
    journal(root).undo()
    assert contents(root) == ALL_OLD


@pytest.mark.parametrize("mended", ["disk", "mode"])
def test_an_undo_that_could_not_write_is_done_again(root, monkeypatch, mended):
    (root.path / "a.py").write_bytes(b"mine")
    made = journal(root).apply("x", changes()).plan.id
    # What was never written stays as it is, at every attempt.
    (root.path / "a.py").write_bytes(b"new a")
    fsync = os.fsync

    def full(handle):
        inode = os.fstat(handle).st_ino
        if any(path.stat().st_ino == inode for path in root.path.glob(".pillion-*-1")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    if mended == "disk":
        monkeypatch.setattr(os, "fsync", full)
    else:
        (root.path / "b.py").chmod(0o444)
    for _ in range(2):
        entry = journal(root).undo(made)
        assert entry.progress.state == "undoing"
        assert entry.written == ("c.py",)
        assert contents(root) == {"a.py": "new", "b.py": "new", "c.py": "old"}
    (listed,) = journal(root).entries()
    assert listed.interrupted
    if mended == "disk":
        monkeypatch.setattr(os, "fsync", fsync)
    else:
        (root.path / "b.py").chmod(0o644)
    again = journal(root).undo(made)
    assert (again.progress.state, again.written) == ("undone", ("b.py", "c.py"))
    assert contents(root) == {**ALL_OLD, "a.py": "new"}
    with pytest.raises(RequestError, match="is undone"):
        journal(root).undo(made)


def test_a_full_disk_under_the_journal_changes_nothing(root, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JournalError, match=r"No space left on device; nothing was changed"):
        journal(root).apply("x", changes())
    assert contents(root) == ALL_OLD
    assert journal(root).entries() == []
    assert [path.name for path in journal(root).folder.iterdir()] == [".lock"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="macOS has no device that is full")
def test_a_journal_on_a_device_that_is_full(root):
    state = root.path.parent / "state"
    state.symlink_to("/dev/full")
    with pytest.raises(JournalError, match="nothing was changed"):
        journal(root).apply("x", changes())
    assert contents(root) == ALL_OLD


def test_ctrl_c_says_how_to_go_on_and_back(root):
    def interrupt(outcome):
        if outcome.path == "b.py":
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"pillion undo --redo 2\d+-") as raised:
        journal(root, step=interrupt).apply("x", changes())
    assert contents(root) == {**ALL_NEW, "c.py": "old"}
    (entry,) = journal(root).entries()
    assert entry.interrupted
    assert entry.plan.id in raised.value.message
    journal(root).redo()
    assert contents(root) == ALL_NEW
    journal(root).undo()
    assert contents(root) == ALL_OLD


def test_what_a_killed_process_left_beside_a_file_goes_with_the_next(root):
    def interrupt(_outcome):
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        journal(root, step=interrupt).apply("x", changes())
    (entry,) = journal(root).entries()
    (root.path / f".pillion-{entry.plan.id}-1").write_bytes(b"half")
    journal(root).apply("y", [Change("c.py", b"old c", b"new c")])
    assert contents(root) == {"a.py": "new", "b.py": "old", "c.py": "new"}


def test_two_at_a_time_are_refused(root):
    other = []

    def second(_outcome):
        with pytest.raises(JournalError, match="another process is writing"):
            journal(root).apply("y", changes())
        other.append(journal(root).entries()[0].interrupted)

    journal(root, step=second).apply("x", changes("a"))
    assert other == [False]


def test_old_ones_are_forgotten(root):
    for number in range(5):
        before, after = (b"old a", b"new a") if number % 2 == 0 else (b"new a", b"old a")
        journal(root, kept=3).apply(str(number), [Change("a.py", before, after)])
    assert {entry.plan.what for entry in journal(root).entries()} == {"2", "3", "4"}


def test_a_damaged_journal_is_never_written_into_a_file(root):
    entry = journal(root).apply("x", changes())
    stored = journal(root).folder / entry.plan.id / "contents"
    stored.write_bytes(b"X" * 5 + stored.read_bytes()[5:])
    assert journal(root).undo().progress.outcomes == (
        Outcome("a.py", "is damaged in the journal"),
        Outcome("b.py"),
        Outcome("c.py"),
    )
    assert contents(root) == {**ALL_OLD, "a.py": "new"}


def test_a_journal_without_its_contents_says_so_and_stays_as_it_is(root):
    entry = journal(root).apply("x", changes())
    (journal(root).folder / entry.plan.id / "contents").unlink()
    with pytest.raises(JournalError, match=r"contents: .*; nothing was changed"):
        journal(root).undo()
    assert contents(root) == ALL_NEW
    assert journal(root).entries()[0].progress.state == "applied"


def test_an_undo_that_is_interrupted_goes_on_with_what_it_was_about(root):
    (root.path / "a.py").write_bytes(b"mine")
    journal(root).apply("x", changes())
    # Never written by it, though it is the same now.
    (root.path / "a.py").write_bytes(b"new a")

    def interrupt(_outcome):
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        journal(root, step=interrupt).undo()
    assert contents(root) == {**ALL_NEW, "b.py": "old"}
    assert journal(root).undo().progress.state == "undone"
    assert contents(root) == {**ALL_OLD, "a.py": "new"}


def test_who_only_looks_is_waited_for(root):
    """`pillion log` beside an `--apply` must not lose the results."""
    journal(root).folder.mkdir(parents=True)
    looking = os.open(journal(root).folder / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_SH)
    done = threading.Timer(0.3, os.close, [looking])
    done.start()
    journal(root).apply("x", changes())
    done.join()
    assert contents(root) == ALL_NEW


def test_the_journal_is_private(root):
    entry = journal(root).apply("x", changes())
    folder = journal(root).folder / entry.plan.id
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


async def test_kill_9_leaves_each_file_old_or_new_and_undo_restores_all():
    found = await run_trials(4, 6)
    assert found["kill_trials"] == 4
    assert (found["files_corrupted"], found["undo_mismatches"]) == (0, 0)


@pytest.mark.slow
async def test_kill_9_at_a_hundred_random_moments():
    """Over a repository of 300 installed files: modes, links, CRLF and byte order marks too."""
    found = await run_trials(100, 300)
    print(json.dumps(found))
    assert found["kill_trials"] >= 100
    assert (found["files_corrupted"], found["undo_mismatches"]) == (0, 0)
