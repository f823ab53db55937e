"""Files below one folder, reached so that no name can lead out of it.

Every component is opened by itself, without following symbolic links (``openat`` with
``O_NOFOLLOW``), so neither ``..`` nor a link that appears meanwhile leads anywhere else.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine import PillionError, RequestError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a FIFO must not wait for its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PARTIAL = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(PillionError):
    """A file that is left as it is. The message goes on from the file's name: ``is read-only``."""

    code = "refused"


class Unwritable(Refused):
    """What its owner may mend: then the same can be done again."""


def sha256(data: bytes) -> str:
    """Hex, as journals and answers have it."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class FileContent:
    """data: all bytes. mode: permission bits. identity: changes when the file is written to."""

    data: bytes
    mode: int
    identity: tuple[int, ...]

    @property
    def sha256(self) -> str:
        return sha256(self.data)


def checked(path: str) -> tuple[str, ...]:
    """The components of a path below a root, ``/`` between them. Raises Refused."""
    parts = tuple(path.split("/"))
    if "\0" in path or not path:
        raise Refused("is no path")
    if path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise Refused("is not a plain path below the workspace")
    # Also where the file system does not tell cases apart.
    if any(part.lower() == ".git" for part in parts):
        raise Refused("belongs to git")
    return parts


class WritableRoot:
    """The folder at `path`, which is opened once: renaming it meanwhile leads nowhere else.
    Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
            self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise RequestError(f"{path}: {error.strerror}", field="root") from None

    def __enter__(self) -> WritableRoot:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)

    def read(self, path: str, *, most: int | None = None) -> FileContent:
        """A regular file of this repository, of at most `most` bytes. Raises Refused."""
        parts = checked(path)
        with self._parent(parts) as folder, _refusing():
            return _read(folder, parts[-1], most)

    def check_writable(self, path: str) -> None:
        """Raise Refused where `replace` would, as far as that can be known without writing."""
        parts = checked(path)
        with self._parent(parts) as folder, _refusing():
            _check_writable(folder, parts[-1])

    def replace(self, path: str, data: bytes, *, expected: str, partial: str) -> None:
        """Put `data` in the place of the content whose SHA-256 is `expected`, atomically: whatever
        happens, the file is the old one or the new one. The mode stays.

        partial: the name of the temporary file beside it. Raises Refused, and OSError where the
        disk does not take it; then nothing has changed.
        """
        parts = checked(path)
        with self._parent(parts) as folder, _refusing():
            name = parts[-1]
            _check_writable(folder, name)
            found = _read(folder, name, None)
            if found.sha256 != expected:
                raise Refused("was changed meanwhile")
            try:
                _write_durably(folder, partial, data, found.mode)
                if _identity(os.stat(name, dir_fd=folder, follow_symlinks=False)) != found.identity:
                    raise Refused("was changed meanwhile")
                os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _remove(folder, partial)
                raise

    def remove_partial(self, path: str, partial: str) -> None:
        """Remove what a `replace` that was killed left beside `path`."""
        with contextlib.suppress(Refused), self._parent(checked(path)) as folder:
            _remove(folder, partial)

    def flush(self, paths: Iterable[str]) -> None:
        """Make the renames of `replace` last: sync the folders of `paths`."""
        for parent in {checked(path)[:-1] for path in paths}:
            with contextlib.suppress(Refused, OSError), self._parent((*parent, "")) as folder:
                os.fsync(folder)

    @contextlib.contextmanager
    def _parent(self, parts: tuple[str, ...]) -> Iterator[int]:
        """The open folder that holds the last of `parts`. Raises Refused."""
        folder = os.dup(self._folder)
        try:
            for depth, part in enumerate(parts[:-1], 1):
                with _refusing():
                    below = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = below
                if _holds(folder, ".git"):
                    other = "/".join(parts[:depth])
                    raise Refused(f"belongs to another repository, {other}")
            yield folder
        finally:
            os.close(folder)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """What the system says of a name, as a reason."""
    try:
        yield
    except FileNotFoundError:
        raise Refused("is gone") from None
    except PermissionError:
        raise Unwritable("may not be read or written") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Refused("leads through a symbolic link") from None
        if error.errno == errno.ENAMETOOLONG:
            raise Refused("has too long a name") from None
        if error.errno == errno.EROFS:
            raise Unwritable("is on a read-only file system") from None
        raise


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _read(folder: int, name: str, most: int | None) -> FileContent:
    # Opening a socket fails with an error of its own; a device may even act on it.
    _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
    file = os.open(name, _FILE, dir_fd=folder)
    with os.fdopen(file, "rb") as stream:
        found = os.fstat(file)
        _check_regular(found)
        if most is not None and found.st_size > most:
            raise Refused(f"has {found.st_size} bytes; at most {most} are edited")
        return FileContent(stream.read(), stat.S_IMODE(found.st_mode), _identity(found))


def _check_regular(found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise Refused("is a symbolic link")
    if not stat.S_ISREG(found.st_mode):
        raise Refused("is no regular file")


def _check_writable(folder: int, name: str) -> None:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    _check_regular(found)
    # Renaming over it would get round all three.
    if not found.st_mode & 0o222:
        raise Unwritable("is read-only")
    if found.st_nlink > 1:
        raise Refused("has other names (hard links), which would keep the old content")
    if found.st_uid != os.geteuid():
        raise Refused("belongs to another user")
    if not os.access(
        name, os.W_OK, dir_fd=folder, effective_ids=os.access in os.supports_effective_ids
    ):
        raise Unwritable("is read-only")


def _write_durably(folder: int, name: str, data: bytes, mode: int) -> None:
    file = os.open(name, _PARTIAL, 0o600, dir_fd=folder)
    with os.fdopen(file, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fchmod(file, mode)
        os.fsync(file)


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _holds(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True
