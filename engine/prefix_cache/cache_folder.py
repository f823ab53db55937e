"""The folder of the cache on disk: for the user alone, one writer, whole files or none.

A process that is killed while it writes leaves a temporary file, which the next writer removes.
Files whose names are not of this cache are not looked at, and never removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}\.safetensors")
TEMPORARY = re.compile(r"\.[0-9]+-[0-9]+\.tmp")
USES = "uses.json"


class CacheFolder:
    """path: made, with its parents, when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._written = 0

    def open(self) -> bool:
        """Make the folder if need be. Whether this process may write in it: another one may be
        doing so. Raises OSError if there can be no such folder."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            if not self.path.is_dir():
                raise
        found = self.path.stat()
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "belongs to another user", str(self.path))
        if found.st_mode & 0o077:
            self.path.chmod(0o700)
        return self.try_lock()

    def try_lock(self) -> bool:
        """Become the writer unless there is one. Raises OSError where nobody can write."""
        if self._lock is not None:
            return True
        lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        except OSError:
            os.close(lock)
            raise
        self._lock = lock
        for name in self._names(TEMPORARY):
            self.remove(name)
        return True

    @property
    def writable(self) -> bool:
        return self._lock is not None

    @property
    def permitted(self) -> bool:
        """Whether the file system would let one write here."""
        return os.access(self.path, os.W_OK)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _names(self, pattern: re.Pattern[str]) -> list[str]:
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            return [entry.name for entry in entries if pattern.fullmatch(entry.name)]
        return []

    def records(self) -> list[str]:
        """The names of the records that are there."""
        return self._names(NAME)

    def changed(self) -> int:
        """Differs after a file came or went."""
        with contextlib.suppress(OSError):
            return self.path.stat().st_mtime_ns
        return 0

    def version(self, name: str) -> tuple[int, int]:
        """Differs after the file was replaced or written to."""
        with contextlib.suppress(OSError):
            found = (self.path / name).stat()
            return found.st_ino, found.st_mtime_ns
        return 0, 0

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> int:
        """Put a file there as a whole, or not at all (OSError); its bytes."""
        self._written += 1
        temporary = self.path / f".{os.getpid()}-{self._written}.tmp"
        size = 0
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb", buffering=0) as stream:
                for piece in pieces:
                    rest = memoryview(piece)
                    while len(rest):
                        written = stream.write(rest) or 0
                        size, rest = size + written, rest[written:]
                os.fsync(stream.fileno())
            temporary.replace(self.path / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        with contextlib.suppress(OSError):
            folder = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return size

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def remove(self, name: str) -> None:
        """Gone is gone: that somebody else removed it is no error, and neither is that one
        cannot."""
        with contextlib.suppress(OSError):
            (self.path / name).unlink()

    def free(self) -> int:
        """Bytes that the file system has left."""
        with contextlib.suppress(OSError):
            return shutil.disk_usage(self.path).free
        return 0
