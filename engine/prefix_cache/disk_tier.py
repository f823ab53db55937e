"""The prefix cache on disk: a thread of its own reads and writes, so that no request waits for it.

It hands over and takes bytes; what they mean is the engine thread's business. Whatever goes wrong
with a file is a miss: the file goes if it can, and is counted.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from engine.errors import EngineError
from engine.prefix_cache.cache_folder import USES, CacheFolder
from engine.prefix_cache.disk_index import DiskIndex, Stored
from engine.prefix_cache.radix_tree import Tokens
from engine.prefix_cache.record import DamagedRecord, Head, Record, decode, encode, read_head

T = TypeVar("T")

log = logging.getLogger(__name__)

# Bytes that wait to be written; what does not fit is not kept.
MOST_WAITING = 128 << 20
# Seconds between looks at a folder that another process writes in.
LOOK_SECONDS = 5.0
MOST_DISK = 8 << 30
SHARE_OF_FREE = 0.1
# Writes that are left out after one failed.
PAUSE = 64
FULL = (errno.ENOSPC, errno.EDQUOT)
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
# What says nothing about the file that could not be read.
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)


class DiskTier:
    """folder: see `CacheFolder`. fingerprint: of everything that what is stored depends on; asked
    for on the thread, since it may have to read the weights. budget: bytes; None takes a share of
    what is free.
    """

    def __init__(
        self, folder: Path, fingerprint: Callable[[], str], *, budget: int | None = None
    ) -> None:
        self.folder = CacheFolder(folder)
        self.budget = budget or 0
        self.state, self.detail = "opening", ""
        self.evictions: Counter[str] = Counter()
        self.fingerprint = ""
        # Differs after something was lost that had been offered or stored.
        self.losses = 0
        self._asked = budget
        self._fingerprint = fingerprint
        self._index = DiskIndex()
        self._guard = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        # Those of the jobs that somebody waits for.
        self._loads: set[Callable[[], None]] = set()
        # Files of no use, which are the writer's, as they were.
        self._left: dict[str, tuple[int, int]] = {}
        self._writes: deque[Record] = deque()
        self._waiting = 0
        self._paused = 0
        self._failing = False
        self._looked = -1
        self._ending = self._ended = False
        self._thread = threading.Thread(target=self._run, name="disk-tier", daemon=True)
        self._thread.start()

    # What the engine thread calls. Nothing here waits for the disk.

    def find(self, tokens: Tokens, reach: int, *, recurrent: bool) -> list[Stored]:
        """See `DiskIndex.find`."""
        with self._guard:
            return self._index.find(tokens, reach, recurrent=recurrent)

    def load(self, found: Sequence[Stored]) -> Future[list[Record]]:
        """Read and check these; ends before the first that is not what it should be."""
        return self._ask(lambda: self._load(found), load=True)

    def hottest(self, most_bytes: int) -> list[tuple[Tokens, Stored]]:
        """See `DiskIndex.hottest`."""
        with self._guard:
            return self._index.hottest(most_bytes)

    def names(self) -> set[str]:
        """Of all that is stored, or waits to be."""
        with self._guard:
            waiting = {record.head.name for record in self._writes}
            return waiting.union(stored.name for stored in self._index)

    def wrote(self, name: str) -> bool:
        """See `DiskIndex.wrote`."""
        with self._guard:
            return self._index.wrote(name)

    @property
    def opened(self) -> bool:
        return self.state not in ("off", "opening")

    def takes(self, nbytes: int) -> bool:
        """Whether a record of that size may be offered now."""
        return self.state == "writing" and self._waiting + nbytes <= MOST_WAITING

    def offer(self, record: Record) -> None:
        """Write this when there is time."""
        with self._guard:
            self._writes.append(record)
            self._waiting += record.nbytes
            self._guard.notify()

    def use(self, names: Sequence[str]) -> None:
        """A request went on from these records."""
        with self._guard:
            for name in names:
                self._index.use(name)

    def clear(self) -> Future[int]:
        """Remove every record of every model; how many that were."""
        return self._ask(self._clear)

    def verify(self) -> Future[tuple[int, int]]:
        """Read every file; how many there are, and how many were damaged, which go if this
        process is the writer. What is to be loaded comes in between."""
        return self._ask(self._verify)

    @property
    def nbytes(self) -> int:
        return self._index.nbytes

    @property
    def files(self) -> int:
        return len(self._index)

    def flush(self) -> None:
        """Return when all that was offered is written."""
        self._ask(self._write_all).result()

    def close(self, seconds: float = 2.0) -> None:
        """Write what waits, for at most so long, and end the thread."""
        with self._guard:
            self._ending = True
            self._guard.notify()
        self._thread.join(seconds)

    # The thread.

    def _ask(self, work: Callable[[], T], *, load: bool = False) -> Future[T]:
        """Have the thread do this before it writes on."""
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()

        def job() -> None:
            # Whoever asked has to hear of it, whatever it was.
            try:
                answer.set_result(work())
            except Exception as error:
                answer.set_exception(error)

        with self._guard:
            if not self._ended:
                self._jobs.append(job)
                if load:
                    self._loads.add(job)
                self._guard.notify()
                return answer
        answer.set_exception(EngineError("the prefix cache on disk is closed"))
        return answer

    def _run(self) -> None:
        # One broad except on purpose: without its disk the cache still works.
        try:
            self.state = self._open()
            self._work()
            self._keep_uses()
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) else None
            self.state, self.detail = "off", f"{self.folder.path}: {reason or error}"
            log.warning("the prefix cache keeps nothing on disk: %s", self.detail)
        with self._guard:
            self._ended = True
            left = list(self._jobs)
            self._jobs.clear()
        for job in left:
            job()
        self.folder.close()

    def _work(self) -> None:
        """Until `close`."""
        while True:
            with self._guard:
                if not self._jobs and not self._writes and not self._ending:
                    self._guard.wait(None if self.state == "writing" else LOOK_SECONDS)
                job = self._next_job()
                if job is None and not self._writes and self._ending:
                    return
            try:
                if job is not None:
                    job()
                elif self._writes:
                    self._write_one()
                elif self.state != "writing":
                    self._look()
            except OSError as error:
                self._failed(error)

    def _next_job(self) -> Callable[[], None] | None:
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        self._loads.discard(job)
        return job

    def _serve(self) -> None:
        """In the middle of something long: load what is asked for next."""
        while True:
            with self._guard:
                if not self._jobs or self._jobs[0] not in self._loads:
                    return
                job = self._jobs.popleft()
                self._loads.discard(job)
            job()

    def _open(self) -> str:
        """The state from now on."""
        try:
            state = "writing" if self.folder.open() else "reading"
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            if not self.folder.path.is_dir():
                raise
            state, self.detail = "read only", str(error.strerror)
        self.fingerprint = self._fingerprint()
        self._scan()
        if self._asked is None:
            room = self.folder.free() + self._index.nbytes
            self.budget = min(MOST_DISK, int(room * SHARE_OF_FREE))
        if self.folder.writable:
            self._make_room(0)
        return state

    def _scan(self) -> None:
        """Read the heads of what is new in the folder, forget what is gone."""
        self._looked = self.folder.changed()
        names = set(self.folder.records())
        with self._guard:
            gone = [stored.name for stored in self._index if stored.name not in names]
            for name in gone:
                self._index.discard(name)
            self.losses += bool(gone)
            fresh = [name for name in sorted(names) if name not in self._index]
        left = {name: seen for name in fresh if (seen := self._left.get(name)) is not None}
        self._left = {n: seen for n, seen in left.items() if seen == self.folder.version(n)}
        fresh = [name for name in fresh if name not in self._left]
        for name in fresh:
            if (stored := self._head(name)) is not None:
                with self._guard:
                    self._index.add(stored)
        with contextlib.suppress(OSError, ValueError):
            uses = json.loads(self.folder.read(USES))
            with self._guard:
                self._index.recall(uses if isinstance(uses, dict) else {})

    def _head(self, name: str) -> Stored | None:
        try:
            path = self.folder.path / name
            with path.open("rb") as stream:
                size = path.stat().st_size
                head = read_head(stream)
            if head.name != name:
                raise DamagedRecord("it has another record's name")
        except DamagedRecord as damage:
            self._lose(name, damage)
            return None
        except OSError as error:
            self._unread(name, error)
            return None
        ours = head.fingerprint == self.fingerprint
        return Stored(name, size, head if ours else None)

    def _lose(self, name: str, damage: DamagedRecord) -> None:
        """A file that is of no use here. Its writer may be of another version, to which it is."""
        if self.folder.writable:
            reason = "foreign" if "format" in str(damage) else "damaged"
            log.warning("prefix cache: %s: %s; it is removed", name, damage)
            self.evictions[reason] += 1
            self.folder.remove(name)
        else:
            log.warning("prefix cache: %s: %s; it is not used", name, damage)
            self._left[name] = self.folder.version(name)
        self._forget(name)

    def _unread(self, name: str, error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            self._forget(name)
        elif error.errno not in PASSING:
            self._lose(name, DamagedRecord(error.strerror or str(error)))

    def _forget(self, name: str) -> None:
        with self._guard:
            self._index.discard(name)
        self.losses += 1

    def _look(self) -> None:
        """Become the writer if the other one is gone, or one may write again; see what has been
        written if not."""
        if (self.state == "reading" or self.folder.permitted) and self.folder.try_lock():
            self.state = "writing"
            self._succeeded()
            # What was left to the other one is this one's now.
            self._left.clear()
            self._looked = -1
        if self.folder.changed() != self._looked:
            self._scan()

    def _load(self, found: Sequence[Stored]) -> list[Record]:
        records: list[Record] = []
        for stored in found:
            record = self._read(stored.name)
            if record is None:
                break
            records.append(record)
        return records

    def _read(self, name: str) -> Record | None:
        try:
            return self._checked(name)
        except DamagedRecord as damage:
            self._lose(name, damage)
        except OSError as error:
            self._unread(name, error)
        return None

    def _checked(self, name: str) -> Record:
        """Its name is a hash of all that tells whether it is of use."""
        record = decode(self.folder.read(name))
        if record.head.name != name:
            raise DamagedRecord("it has another record's name")
        return record

    def _write_all(self) -> None:
        while self._writes:
            self._write_one()

    def _write_one(self) -> None:
        with self._guard:
            record = self._writes.popleft()
            self._waiting -= record.nbytes
        head = record.head
        if self._paused:
            self._paused -= 1
            return
        with self._guard:
            known = self._index.claim(head.name)
        # Nothing has to go for what can never fit.
        if known or self.state != "writing" or record.nbytes > self.budget:
            return
        try:
            self._make_room(record.nbytes)
            size = self.folder.write(head.name, encode(record))
        except OSError as error:
            self._failed(error)
            return
        with self._guard:
            self._index.add(Stored(head.name, size, head, ours=True))
        self._succeeded()
        self._make_room(0)
        self._drop_plain(head)

    def _drop_plain(self, head: Head) -> None:
        """A record with a snapshot replaces the same one without."""
        if head.snapshot:
            plain = Head(
                head.fingerprint, head.before, head.after, head.tokens, head.start, snapshot=False
            ).name
            if plain in self._index:
                self.folder.remove(plain)
                with self._guard:
                    self._index.discard(plain)

    def _make_room(self, nbytes: int) -> None:
        while self._index.nbytes + nbytes > self.budget and len(self._index):
            self._evict("budget")

    def _evict(self, reason: str) -> None:
        with self._guard:
            victim = self._index.victim()
            if victim is None:
                return
            self._index.evict(victim)
        self.folder.remove(victim.name)
        self.evictions[reason] += 1

    def _failed(self, error: OSError) -> None:
        """Writing goes on where it can; a reply never depends on it."""
        self._failing, self.detail = True, f"{error.strerror or error}"
        if error.errno in READ_ONLY:
            self.state = "read only"
        elif error.errno == errno.ENOENT:
            # Somebody removed the folder: its lock is of no use any more.
            self.folder.close()
            self.state = "reading"
            with contextlib.suppress(OSError):
                self.state = "writing" if self.folder.open() else "reading"
                self._scan()
        elif self.folder.writable:
            self._paused = PAUSE
            # What is worth least makes room for somebody.
            for _ in range(len(self._index) // 8 if error.errno in FULL else 0):
                self._evict("space")
        log.warning("prefix cache: %s: %s", self.folder.path, self.detail)

    def _succeeded(self) -> None:
        """What was left out while writing failed can be written now."""
        self.losses += self._failing
        self._failing, self.detail = False, ""

    def _clear(self) -> int:
        names = self.folder.records() if self.folder.writable else []
        for name in names:
            self.folder.remove(name)
        with self._guard:
            # What still waits to be written is not to come back.
            self._writes.clear()
            self._waiting = 0
            for name in names:
                self._index.discard(name)
        self.losses += 1
        self.evictions["cleared"] += len(names)
        return len(names)

    def _verify(self) -> tuple[int, int]:
        names, damaged = self.folder.records(), 0
        for name in names:
            self._serve()
            try:
                self._checked(name)
            except DamagedRecord as damage:
                damaged += "format" not in str(damage)
                self._lose(name, damage)
            except OSError as error:
                self._unread(name, error)
        self._scan()
        return len(names), damaged

    def _keep_uses(self) -> None:
        if not self.folder.writable:
            return
        with self._guard:
            uses = self._index.uses()
        with contextlib.suppress(OSError):
            self.folder.write(USES, [json.dumps(uses).encode()])
