"""Keeps a project's listing in step with the disk, on a thread of its own.

The system is asked about the directories that are not ignored, each for itself: a watch on the
whole tree would count every folder of a build or an environment against the user's limit. Where
there are no watches to be had, the directories' times are looked at now and then, and the status
says so. Nothing depends on an event for being right: a reader checks a file's stamp (`Root.stamp`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from sidecar.workspace.ignore import IGNORE_FILES, Rules, outer_rules
from sidecar.workspace.listing import Listing
from sidecar.workspace.root import Root, Stamp

log = logging.getLogger(__name__)

# Changes are taken together until there was none for a step, or for a debounce at most.
STEP_MS, DEBOUNCE_MS = 200, 1600
# Beyond so many at once (a branch switch) the tree is listed anew rather than piece by piece.
MANY = 2000
POLL_SECONDS = 2.0
# Looking may take this share of one core's time.
POLL_SHARE = 0.005
RETRY_SECONDS = 300.0
# How often to see whether the root is there, and the same one.
MISSING_SECONDS, CHECK_MS = 2.0, 30_000
MODIFIED, DELETED = 2, 3

Mode = Literal["starting", "watch", "poll", "missing", "off"]


class Notifier(Protocol):
    """As `watchfiles` has it: (1 added, 2 modified, 3 deleted; absolute path)."""

    def watch(
        self, debounce_ms: int, step_ms: int, timeout_ms: int, stop_event: threading.Event, /
    ) -> set[tuple[int, str]] | str: ...

    def close(self) -> None: ...


Arm = Callable[[Sequence[str], bool], Notifier]


class WatchStatus(Struct, frozen=True, kw_only=True):
    """mode: ``watch`` (the system tells), ``poll`` (we look), ``starting``, ``missing`` (there is
    no such folder now) or ``off``; detail: why. files, directories: that are not ignored. changes:
    seen so far; last_change: when, in Unix seconds."""

    root: str
    mode: Mode = "starting"
    detail: str = ""
    files: int = 0
    directories: int = 0
    changes: int = 0
    last_change: float | None = None


def arm_watchfiles(paths: Sequence[str], recursive: bool) -> Notifier:
    """Raises OSError or RuntimeError where the system has no more watches."""
    from watchfiles._rust_notify import RustNotify

    return RustNotify(list(paths), False, False, 300, recursive, False)


class Watcher:
    """changed: called on the watcher's thread with the files (relative paths) that may be other
    ones now, and with none when the tree is listed for the first time. interesting: the files
    whose times are worth a look while polling. arm: where notifications come from. recursive: ask
    for the root with all below it, which on a Mac costs no more than one directory.
    """

    def __init__(
        self,
        root: Root,
        changed: Callable[[frozenset[str]], None],
        *,
        interesting: Callable[[], Iterable[str]] = tuple,
        arm: Arm = arm_watchfiles,
        recursive: bool = sys.platform == "darwin",
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.root = root
        self.listing = Listing(root, Rules())
        self._changed = changed
        self._interesting = interesting
        self._arm = arm
        self._recursive = recursive
        self._poll_seconds = poll_seconds
        self._stop = threading.Event()
        self._status = WatchStatus(root=str(root.path))
        self._inode = 0
        self._poll_wait = poll_seconds
        self._stamps: dict[str, Stamp | None] = {}
        self._thread = threading.Thread(
            target=self._run, name=f"watcher {root.path.name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end, which takes one step at most."""
        self._stop.set()

    def join(self, seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def status(self) -> WatchStatus:
        return self._status

    def _say(self, **facts: object) -> None:
        self._status = msgspec.structs.replace(
            self._status, files=self.listing.files, directories=len(self.listing), **facts
        )

    def _run(self) -> None:
        if self.root.too_wide:
            self._say(mode="off", detail="this is a home or a whole disk, not a project")
            return
        try:
            while not self._stop.is_set():
                if self.root.exists():
                    self._list_all()
                    self._follow()
                else:
                    self._lose()
                    self._stop.wait(MISSING_SECONDS)
        except Exception:
            # The daemon serves without its watcher; readers check what they read.
            log.exception("the watcher of %s broke", self.root.path)
            self._say(mode="off", detail="the watcher broke; the daemon's log says why")

    def _lose(self) -> None:
        if self._status.mode != "missing":
            self.listing = Listing(self.root, Rules())
            self._say(mode="missing", detail="there is no such folder now")

    def _list_all(self) -> None:
        self._inode = self._current_inode()
        self.relist()
        self._say()
        self._changed(frozenset())

    def relist(self) -> None:
        """List the tree, on the calling thread."""
        listing = Listing(self.root, outer_rules(self.root.path))
        listing.scan()
        self.listing = listing

    def _follow(self) -> None:
        """Until the root is another one, or gone, or we are told to stop."""
        notifier, tried = self._armed(), time.monotonic()
        try:
            while not self._stop.is_set():
                if notifier is not None:
                    events = self._relative(
                        notifier.watch(DEBOUNCE_MS, STEP_MS, CHECK_MS, self._stop)
                    )
                else:
                    self._stop.wait(self._poll_wait)
                    events = set() if self._stop.is_set() else self._look()
                if self._current_inode() != self._inode:
                    return
                came = self._take(events)
                if notifier is not None and came and not self._recursive:
                    notifier = self._rearmed(notifier, came)
                elif notifier is None and time.monotonic() - tried > RETRY_SECONDS:
                    notifier, tried = self._armed(), time.monotonic()
        finally:
            if notifier is not None:
                notifier.close()

    def _armed(self) -> Notifier | None:
        """None where the system has no watches left for us; then we poll."""
        why: Exception | None = None
        for _ in range(3):
            base = str(self.root.path)
            paths = [f"{base}/{path}" if path else base for path in self.listing.directories()]
            if self._recursive:
                paths = [base]
            try:
                notifier = self._arm(paths, self._recursive)
            except (FileNotFoundError, PermissionError) as error:
                # It went while we asked, or must not be looked into; the others are still wanted.
                why = error
                self._drop_unreadable()
                continue
            except (OSError, RuntimeError) as error:
                why = error
                break
            limit = "it is very large, not all of it is watched" if self.listing.full else ""
            self._say(mode="watch", detail=limit)
            return notifier
        said = str(why).partition(" about [")[0].rstrip(".")
        log.warning("%s is polled, not watched: %s", self.root.path, said)
        self._poll_wait = self._poll_seconds
        self._look()
        self._say(mode="poll", detail=f"polled, because the system gives no watches: {said}")
        return None

    def _rearmed(self, old: Notifier, came: set[str]) -> Notifier | None:
        """A notifier of the directories that there are now. Nothing falls between the two: the old
        one is asked once more, and what came is listed again once it is watched."""
        while True:
            fresh = self._armed()
            rest = old.watch(1, 1, 1, threading.Event())
            old.close()
            came = self._take(self._relative(rest), came)
            if fresh is None or not came:
                return fresh
            old = fresh

    def _drop_unreadable(self) -> None:
        for path in self.listing.directories():
            if not os.access(self.root.path / path, os.R_OK | os.X_OK):
                self.listing.forget(path)

    def _relative(self, found: set[tuple[int, str]] | str) -> set[tuple[int, str]]:
        if isinstance(found, str):
            return set()
        pairs = ((kind, self.root.relative(path)) for kind, path in found)
        return {(kind, path) for kind, path in pairs if path is not None}

    def _take(self, events: set[tuple[int, str]], folders: Iterable[str] = ()) -> set[str]:
        """Bring the listing in step, `folders` in any case, and tell what changed. Returns the
        directories that came."""
        folders = set(folders)
        if not events and not folders:
            return set()
        before = set(self.listing.directories())
        anew = len(events) > MANY or any(
            path.rpartition("/")[2] in IGNORE_FILES for _, path in events
        )
        changed = {path for _, path in events if path in self.listing}
        if anew:
            names = self.listing.names()
            self.relist()
            changed |= names ^ self.listing.names()
        else:
            for kind, path in events:
                if (folder := self._stale(kind, path)) is not None:
                    folders.add(folder)
            for folder in sorted(folders):
                changed |= self.listing.relist(folder).files
        changed |= {path for _, path in events if path in self.listing}
        if changed or anew:
            self._say(changes=self._status.changes + len(changed), last_change=time.time())
            self._changed(frozenset(changed))
        else:
            self._say()
        return set(self.listing.directories()) - before

    def _stale(self, kind: int, path: str) -> str | None:
        """The directory whose names an event may have changed, unless it is about a file that is
        ignored, which may be written to all day."""
        folder, _, name = path.rpartition("/")
        while (found := self.listing.directory(folder)) is None and folder:
            folder, _, name = folder.rpartition("/")
        if found is None:
            return None
        if name in found.files or name in found.folders:
            return folder if kind != MODIFIED else None
        inside = f"{folder}/{name}" if folder else name
        directory = (self.root.path / inside).is_dir()
        return None if found.rules.ignores(inside, directory=directory) else folder

    def _look(self) -> set[tuple[int, str]]:
        """What polling finds: directories whose time is another one, and files of interest."""
        began = time.thread_time()
        events: set[tuple[int, str]] = set()
        for path in self.listing.directories():
            found = self.listing.directory(path)
            with contextlib.suppress(OSError):
                if found and (self.root.path / path).lstat().st_mtime_ns == found.mtime_ns:
                    continue
            relisted = self.listing.relist(path)
            events |= {(DELETED, file) for file in relisted.files}
        stamps = {path: self.root.stamp(path) for path in self._interesting()}
        events |= {
            (MODIFIED, path)
            for path, stamp in stamps.items()
            if self._stamps.get(path, stamp) != stamp
        }
        self._stamps = stamps
        cost = time.thread_time() - began
        self._poll_wait = max(self._poll_seconds, cost / POLL_SHARE)
        return events

    def _current_inode(self) -> int:
        try:
            return self.root.path.stat().st_ino
        except OSError:
            return -1
