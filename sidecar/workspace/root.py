"""One folder that a client opened, and the only way to a file's bytes: from inside it.

No symbolic link is followed below the root, so nothing outside it can be read through one, whatever
is swapped for what while we look.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK a pipe that lies in the tree would hang whoever opens it.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BINARY = 8192


class Stamp(NamedTuple):
    """What changes when a file does."""

    inode: int
    size: int
    mtime_ns: int


class Root:
    """folder: as the client names it; `path` is the same place with its links resolved, once."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.normpath(folder))
        self.path = Path(os.path.realpath(folder))

    @property
    def too_wide(self) -> bool:
        """Whether it is a whole disk, or a home with everything in it, rather than a project."""
        home = Path(os.path.realpath(Path.home()))
        return self.path == home or self.path in home.parents

    def exists(self) -> bool:
        """Whether the folder is there and may be looked into."""
        return self.path.is_dir() and os.access(self.path, os.R_OK | os.X_OK)

    def relative(self, path: str) -> str | None:
        """An absolute path as seen from the root, with ``/`` between its parts; None if outside."""
        found = Path(os.path.normpath(path))
        for folder in (self.folder, self.path):
            if found.is_relative_to(folder) and found != folder:
                return found.relative_to(folder).as_posix()
        return None

    def stamp(self, relative: str) -> Stamp | None:
        """None where there is no regular file."""
        with contextlib.ExitStack() as held:
            opened = self._open(relative, held)
            return None if opened is None else opened[1]

    def read(self, relative: str, limit: int) -> tuple[bytes, Stamp] | None:
        """The bytes of a regular file of at most `limit` bytes; None for anything else, a link and
        a path out of the root included."""
        with contextlib.ExitStack() as held:
            opened = self._open(relative, held)
            if opened is None or opened[1].size > limit:
                return None
            descriptor, stamp = opened
            data = bytearray()
            with contextlib.suppress(OSError):
                while len(data) <= limit and (more := os.read(descriptor, limit + 1)):
                    data += more
                return (bytes(data), stamp) if len(data) <= limit else None
            return None

    def _open(self, relative: str, held: contextlib.ExitStack) -> tuple[int, Stamp] | None:
        """Go down from the root a folder at a time; what was opened is closed with `held`."""
        *folders, name = relative.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in (*folders, name)):
            return None
        try:
            at = os.open(self.path, _FOLDER)
            held.callback(os.close, at)
            for folder in folders:
                at = os.open(folder, _FOLDER, dir_fd=at)
                held.callback(os.close, at)
            descriptor = os.open(name, _FILE, dir_fd=at)
            held.callback(os.close, descriptor)
            found = os.fstat(descriptor)
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return descriptor, Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def text_of(data: bytes) -> str | None:
    """A file's text: UTF-8 or UTF-16 with a mark, else Latin-1. None if it is not text."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encodings = ["utf-16"]
    elif b"\0" in data[:_BINARY]:
        return None
    else:
        encodings = ["utf-8-sig", "latin-1"]
    for encoding in encodings:
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode(encoding)
    return None
