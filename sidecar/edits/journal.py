"""What was written to a workspace, and how to take it back.

A change set is made durable, originals and results, before the first file of the workspace is
touched. From then on the content of each file tells whether it was written: its SHA-256 is the one
before, the one after, or somebody else's, which is left alone. So a process that is killed at any
moment leaves nothing to guess.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from engine import PillionError, RequestError
from sidecar.edits.writable_root import Refused, Unwritable, WritableRoot, sha256

State = Literal["applying", "applied", "undoing", "undone"]


class Change(Struct, frozen=True):
    """The whole content of a file before and after. path: below the workspace, with ``/``."""

    path: str
    before: bytes
    after: bytes


class Outcome(Struct, frozen=True):
    """reason: why the file was left as it is; empty where it was written (or needed no write)."""

    path: str
    reason: str = ""


class Unwritten(Outcome, frozen=True):
    """It could not be written, which may be mended."""


class PlannedFile(Struct, frozen=True):
    """SHA-256 of both contents; where they lie in the entry's ``contents``: one behind the
    other."""

    path: str
    before: str
    after: str
    offset: int
    before_bytes: int
    after_bytes: int


class Plan(Struct, frozen=True, kw_only=True):
    """One transaction. what: in the user's words. created: UTC, ISO 8601."""

    id: str
    root: str
    created: str
    what: str
    files: tuple[PlannedFile, ...]


class Progress(Struct, frozen=True, kw_only=True):
    """How far a transaction is. ``applying`` and ``undoing`` are of a process that still runs, or
    was interrupted; then ``undoing`` has an outcome for each file that it is about, or it is of one
    that could not write all. Both can be repeated."""

    state: State
    outcomes: tuple[Outcome, ...] = ()


class Entry(Struct, frozen=True, kw_only=True):
    """A transaction of the journal. interrupted: no process works on it any more."""

    plan: Plan
    progress: Progress
    interrupted: bool = False

    @property
    def written(self) -> tuple[str, ...]:
        """Paths, as far as the process that wrote them could still say so."""
        return tuple(outcome.path for outcome in self.progress.outcomes if not outcome.reason)


class JournalError(PillionError):
    """The journal cannot be kept, so nothing is written; or it is damaged."""

    code = "journal"


class Interrupted(PillionError):
    """Ctrl-C in the middle of a transaction; the message says how to go on or back."""

    code = "interrupted"

    def __init__(self, entry_id: str) -> None:
        super().__init__(
            f"interrupted; `pillion undo {entry_id}` takes back what was written, "
            f"`pillion undo --redo {entry_id}` writes the rest"
        )


class Journal:
    """Of one workspace, in a folder of its own below `state`.

    kept: how many transactions are remembered. step: called after each file of one.
    """

    def __init__(
        self,
        state: Path,
        root: WritableRoot,
        *,
        kept: int = 50,
        step: Callable[[Outcome], None] = lambda _outcome: None,
    ) -> None:
        name = sha256(os.fsencode(root.path))[:24]
        self.folder = state / "workspaces" / name / "edits"
        self._root = root
        self._kept = kept
        self._step = step

    def apply(self, what: str, changes: Sequence[Change]) -> Entry:
        """Write `changes`; a file that is not `Change.before` any more, or cannot be written, is
        skipped and reported. Raises JournalError before anything is written, Interrupted."""
        with self._locked():
            self._tidy()
            plan = self._record(what, changes)
            return self._write(plan, forward=True, only=None)

    def undo(self, entry_id: str | None = None) -> Entry:
        """Give the files of a transaction (the last one that is not undone) their content back,
        except those that were changed since. Where one cannot be written, it can be repeated.
        Raises RequestError, JournalError, Interrupted."""
        with self._locked():
            entry = self._find(entry_id, ("applying", "applied", "undoing"), "undo")
            only: Sequence[str] | None = entry.written
            if entry.progress.state != "applied":
                # The files must tell, of those that the last attempt was about.
                only = [outcome.path for outcome in entry.progress.outcomes] or None
            return self._write(entry.plan, forward=False, only=only)

    def redo(self, entry_id: str | None = None) -> Entry:
        """Write a transaction that was undone again, or the rest of an interrupted one. Raises
        like `undo`."""
        with self._locked():
            entry = self._find(entry_id, ("applying", "undoing", "undone"), "redo")
            return self._write(entry.plan, forward=True, only=None)

    def entries(self) -> list[Entry]:
        """The newest one first; damaged ones are left out."""
        names = sorted((path.name for path in self._ids()), reverse=True)
        running = self._is_locked()
        found = (self._load(name, running) for name in names)
        return [entry for entry in found if entry is not None]

    def _find(self, entry_id: str | None, states: Sequence[State], verb: str) -> Entry:
        entries = self.entries()
        for entry in entries:
            if entry_id is None and entry.progress.state in states:
                return entry
            if entry.plan.id == entry_id:
                if entry.progress.state not in states:
                    raise RequestError(f"{entry_id} is {entry.progress.state}", field="id")
                return entry
        if entry_id is None:
            raise RequestError(f"there is nothing to {verb} in {self._root.path}", field="id")
        raise RequestError(
            f"{self._root.path} has no change set {entry_id}; `pillion log` lists them", field="id"
        )

    def _record(self, what: str, changes: Sequence[Change]) -> Plan:
        now = datetime.datetime.now(datetime.UTC)
        entry_id = f"{now:%Y%m%d-%H%M%S-%f}"
        files, offset = [], 0
        for change in changes:
            sizes = len(change.before), len(change.after)
            hashes = sha256(change.before), sha256(change.after)
            files.append(PlannedFile(change.path, *hashes, offset, *sizes))
            offset += sum(sizes)
        plan = Plan(
            id=entry_id,
            root=str(self._root.path),
            created=now.isoformat(timespec="seconds"),
            what=what,
            files=tuple(files),
        )
        partial = self.folder / f".{entry_id}"
        try:
            partial.mkdir(mode=0o700)
            contents = (data for change in changes for data in (change.before, change.after))
            _write(partial / "contents", contents)
            _write(partial / "plan.json", [msgspec.json.encode(plan)])
            _write(partial / "progress.json", [msgspec.json.encode(Progress(state="applying"))])
            _sync(partial)
            partial.rename(self.folder / entry_id)
            _sync(self.folder)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise JournalError(
                f"the journal in {self.folder} cannot be written: {error.strerror}; nothing was "
                "changed"
            ) from None
        return plan

    def _write(self, plan: Plan, *, forward: bool, only: Sequence[str] | None) -> Entry:
        """One direction of a transaction. only: paths to write; None where the files must tell."""
        running: State = "applying" if forward else "undoing"
        about = tuple(Outcome(path) for path in only or ())
        outcomes = []
        try:
            with self._contents(plan) as contents:
                self._note(plan, Progress(state=running, outcomes=about))
                for number, file in enumerate(plan.files):
                    if only is not None and file.path not in only:
                        continue
                    outcome = self._put(file, contents, _partial(plan, number), forward=forward)
                    outcomes.append(outcome)
                    self._step(outcome)
            self._root.flush(outcome.path for outcome in outcomes if not outcome.reason)
            done: State = "applied" if forward else "undone"
            if not forward and any(isinstance(outcome, Unwritten) for outcome in outcomes):
                done = "undoing"
            progress = Progress(state=done, outcomes=tuple(outcomes))
            self._note(plan, progress)
        except KeyboardInterrupt:
            raise Interrupted(plan.id) from None
        return Entry(plan=plan, progress=progress)

    def _put(self, file: PlannedFile, contents: int, partial: str, *, forward: bool) -> Outcome:
        """Write one file, or leave it alone. contents: the open file that both are in."""
        source, target = (file.before, file.after) if forward else (file.after, file.before)
        try:
            data = os.pread(contents, file.before_bytes, file.offset)
            if forward:
                data = os.pread(contents, file.after_bytes, file.offset + file.before_bytes)
            if sha256(data) != target:
                return Outcome(file.path, "is damaged in the journal")
            self._root.remove_partial(file.path, partial)
            if self._root.read(file.path).sha256 == target:
                return Outcome(file.path)
            self._root.replace(file.path, data, expected=source, partial=partial)
        except Unwritable as refused:
            return Unwritten(file.path, refused.message)
        except Refused as refused:
            return Outcome(file.path, refused.message)
        except OSError as error:
            return Unwritten(file.path, f"cannot be written: {error.strerror}")
        return Outcome(file.path)

    def _note(self, plan: Plan, progress: Progress) -> None:
        """Say how far it is. A disk that is full does not stop an undo: the files tell, too."""
        place = self.folder / plan.id / "progress.json"
        with contextlib.suppress(OSError):
            _write(place.with_suffix(".partial"), [msgspec.json.encode(progress)])
            place.with_suffix(".partial").replace(place)

    @contextlib.contextmanager
    def _contents(self, plan: Plan) -> Iterator[int]:
        path = self.folder / plan.id / "contents"
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}; nothing was changed") from None
        try:
            yield file
        finally:
            os.close(file)

    def _load(self, entry_id: str, running: bool) -> Entry | None:
        folder = self.folder / entry_id
        try:
            plan = msgspec.json.decode((folder / "plan.json").read_bytes(), type=Plan)
            noted = (folder / "progress.json").read_bytes()
            progress = msgspec.json.decode(noted, type=Progress)
        except (OSError, msgspec.DecodeError):
            return None
        interrupted = progress.state in ("applying", "undoing") and not running
        return Entry(plan=plan, progress=progress, interrupted=interrupted)

    def _ids(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return [path for path in self.folder.iterdir() if path.name[0] != "." and path.is_dir()]

    def _tidy(self) -> None:
        """Forget what is too old, and what a process that was killed had not finished: recording,
        or a file."""
        for entry in self.entries():
            if entry.progress.state in ("applying", "undoing"):
                for number, file in enumerate(entry.plan.files):
                    self._root.remove_partial(file.path, _partial(entry.plan, number))
        old = sorted(self._ids())[: -self._kept + 1 or None] if self._kept > 1 else self._ids()
        unfinished = [path for path in self.folder.glob(".2*") if path.is_dir()]
        for path in (*old, *unfinished):
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time writes to a workspace; the kernel lets go of a dead one's lock."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"{self.folder}: {error.strerror}; nothing was changed") from None
        try:
            try:
                # Somebody who only looks has it, too, but for a moment, which is waited for.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JournalError(
                    f"another process is writing to {self._root.path}; try again when it is done"
                ) from None
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _is_locked(self) -> bool:
        """Whether another process works on this journal. Also true for this one's own lock."""
        try:
            lock = os.open(self.folder / ".lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False


def _partial(plan: Plan, number: int) -> str:
    """The name that a file has beside the one whose place it is about to take."""
    return f".pillion-{plan.id}-{number}"


def _write(path: Path, parts: Iterable[bytes]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
