"""Kill a process that writes to a workspace, at random moments, and look at what it left.

``python -m sidecar.edits.crash_trials TRIALS FOLDER FILES`` prints its figures as JSON. Every trial
is a fork that applies, or takes back, a change set and gets SIGKILL at one of the moments where it
touches the file system, which an audit hook counts, or by the clock.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import re
import shutil
import signal
import stat
import sys
import tempfile
import time
from pathlib import Path

from engine import EngineError
from sidecar.edits.installed_repository import make_repository
from sidecar.edits.journal import Change, Journal
from sidecar.edits.writable_root import WritableRoot


def make_workspace(folder: Path, files: int) -> list[Change]:
    """A repository made of installed packages, and what to change in every file of it."""
    contents = {
        name: (folder / name).read_bytes() for name in make_repository(folder, files, b"self")
    }
    return [
        Change(name, data, re.sub(rb"\bself\b", b"this_one", data))
        for name, data in contents.items()
    ]


def fingerprint(folder: Path) -> dict[str, tuple[int, str]]:
    """Mode and SHA-256 of everything in a folder; a link's target in its place."""
    found = {}
    for path in sorted(folder.rglob("*")):
        data = os.fsencode(path.readlink()) if path.is_symlink() else b""
        if not path.is_symlink() and path.is_file():
            data = path.read_bytes()
        mode = stat.S_IMODE(path.lstat().st_mode)
        found[str(path.relative_to(folder))] = (mode, hashlib.sha256(data).hexdigest())
    return found


class Moment:
    """Kills its own process at one of the events that come before the system is asked for
    something; `count` of them have come."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.count = 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.chmod", "os.rmdir"):
            self.count += 1
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)


def killed(work: str, folder: Path, state: Path, changes: list[Change], moment: object) -> bool:
    """Do `work` in a fork until `moment` (an event's number, or seconds); whether it was killed."""
    child = os.fork()
    if child == 0:
        if isinstance(moment, int):
            sys.addaudithook(Moment(moment))
        with WritableRoot(folder) as root:
            journal = Journal(state, root)
            if work == "apply":
                journal.apply("self to this_one", changes)
            elif work == "undo":
                journal.undo()
            else:
                journal.redo()
        os._exit(0)
    if isinstance(moment, float):
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def count_events(folder: Path, state: Path, changes: list[Change]) -> int:
    """How many moments an `apply` has."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        moment = Moment()
        sys.addaudithook(moment)
        with WritableRoot(folder) as root:
            Journal(state, root).apply("self to this_one", changes)
        os.write(write, str(moment.count).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(read, 20))


def trials(count: int, base: Path, files: int, seed: int = 0) -> dict[str, int]:
    """`kill_trials` that really were killed; `files_corrupted`: neither the old nor the new file,
    or anything else in the workspace that is not as it was; `undo_mismatches`: the same after
    `undo`, where everything must be old."""
    rng = random.Random(seed)
    made = base / "made"
    changes = make_workspace(made, files)
    folder, state = base / "w", base / "state"
    old = fingerprint(made)
    shutil.copytree(made, folder, symlinks=True)
    began = time.monotonic()
    events = count_events(folder, state, changes)
    seconds = time.monotonic() - began
    fresh = fingerprint(folder)
    done = {"kill_trials": 0, "files_corrupted": 0, "undo_mismatches": 0, "events": events}
    as_made = False
    while done["kill_trials"] < count:
        shutil.rmtree(state, ignore_errors=True)
        if not as_made:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(made, folder, symlinks=True)
        by_clock = rng.random() < 0.25
        moment: object = rng.uniform(0, seconds) if by_clock else rng.randrange(1, events + 1)
        work = rng.choice(("apply", "apply", "undo", "redo"))
        if work != "apply":
            with WritableRoot(folder) as root:
                Journal(state, root).apply("self to this_one", changes)
                if work == "redo":
                    Journal(state, root).undo()
        done["kill_trials"] += killed(work, folder, state, changes, moment)
        done["files_corrupted"] += _strange(fingerprint(folder), old, fresh)
        with WritableRoot(folder) as root:
            journal = Journal(state, root)
            recorded = [entry for entry in journal.entries() if entry.progress.state != "undone"]
            if recorded and rng.random() < 0.5 and recorded[0].interrupted:
                journal.redo()
                done["undo_mismatches"] += fingerprint(folder) != fresh
            if recorded:
                journal.undo()
        as_made = fingerprint(folder) == old
        done["undo_mismatches"] += not as_made
    return done


async def run_trials(count: int, files: int) -> dict[str, int]:
    """`trials` in a process of its own, which has no threads to fork. Raises EngineError."""
    with tempfile.TemporaryDirectory(prefix="pillion-crash-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "sidecar.edits.crash_trials"),
            *(str(count), folder, str(files)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode:
        raise EngineError(f"the crash trials ended with exit code {process.returncode}")
    found: dict[str, int] = json.loads(said)
    return {name: found[name] for name in ("kill_trials", "files_corrupted", "undo_mismatches")}


def _strange(
    found: dict[str, tuple[int, str]],
    old: dict[str, tuple[int, str]],
    fresh: dict[str, tuple[int, str]],
) -> int:
    """Files that are neither old nor new. What a killed write left beside them is removed by the
    next `undo` or `redo`, and counts as a mismatch if it is not."""
    kept = {path: facts for path, facts in found.items() if ".pillion-" not in path}
    missing = old.keys() - kept.keys()
    return len(missing) + sum(
        facts not in (old.get(path), fresh.get(path)) for path, facts in kept.items()
    )


if __name__ == "__main__":
    print(json.dumps(trials(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
