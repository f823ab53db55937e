"""The private folder where one user's daemon keeps its socket, lock and address.

Clients trust the folder before they trust the socket in it: a folder that somebody else could
write to may hold somebody else's socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from engine import PillionError
from sidecar.config import DaemonConfig


class RuntimeDirError(PillionError):
    """The folder, or something in it, cannot be trusted or used."""

    code = "runtime_dir"


class AlreadyRunning(PillionError):
    """Another daemon of this user holds the lock. `pid` is 0 while it has not said who it is."""

    code = "already_running"

    def __init__(self, pid: int) -> None:
        who = f" (pid {pid})" if pid else ""
        super().__init__(f"a daemon is already running{who}; `pillion stop` ends it")
        self.pid = pid


class Address(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a running daemon answers (``daemon.json``). `url` has no path. `api_key` lets the
    user's own commands in; the file is for the user alone."""

    pid: int
    socket: str
    url: str
    version: str
    model: str
    api_key: str | None = None


@dataclass(frozen=True)
class RuntimeDir:
    """The folder at `path`, which need not exist yet."""

    """The folder and what lies in it."""

    path: Path

    @classmethod
    def of(cls, config: DaemonConfig) -> RuntimeDir:
        if config.runtime_dir is not None:
            return cls(Path(config.runtime_dir).expanduser())
        return cls(_default())

    @property
    def socket(self) -> Path:
        return self.path / "pillion.sock"

    @property
    def lock(self) -> Path:
        return self.path / "daemon.lock"

    @property
    def address(self) -> Path:
        return self.path / "daemon.json"

    def create(self) -> None:
        """Make the folder (0700) where it is missing, then `check` it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError:
            raise self._refused("is not a folder") from None
        except OSError as error:
            raise self._refused(f"cannot be made: {error.strerror}") from None
        self.check()

    def check(self) -> None:
        """Raise RuntimeDirError unless the folder is a real one that only this user can enter."""
        try:
            found = self.path.lstat()
        except OSError as error:
            raise self._refused(f"cannot be read: {error.strerror}") from None
        if stat.S_ISLNK(found.st_mode):
            raise self._refused("is a symbolic link")
        if not stat.S_ISDIR(found.st_mode):
            raise self._refused("is not a folder")
        if found.st_uid != os.geteuid():
            raise self._refused(f"belongs to another user (uid {found.st_uid})")
        if found.st_mode & 0o022:
            raise self._refused("can be written by other users")
        if found.st_mode & 0o077:
            self.path.chmod(0o700)

    def _refused(self, reason: str) -> RuntimeDirError:
        return RuntimeDirError(
            f"{self.path} {reason}; correct that, or name another folder in [daemon] runtime_dir "
            "(PILLION_DAEMON_RUNTIME_DIR)"
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the daemon's lock. Raises AlreadyRunning. The kernel lets go of it with the
        process, so a crash leaves nothing to clear; the file itself stays."""
        lock = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if not _try_lock(lock):
                raise AlreadyRunning(self._written_pid())
            os.ftruncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())
            yield
            os.ftruncate(lock, 0)
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Be the only one that starts a daemon; the others wait here and then find it."""
        lock = os.open(self.path / "start.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def holder(self) -> int | None:
        """The pid of the daemon that holds the lock; 0 where it has not written it yet, None
        where nobody does."""
        try:
            lock = os.open(self.lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return self._written_pid()
        finally:
            os.close(lock)
        return None

    def _written_pid(self) -> int:
        text = self.lock.read_text(errors="replace").strip()
        return int(text) if text.isdecimal() else 0

    def write_address(self, address: Address) -> None:
        """Appear whole or not at all (0600)."""
        draft = self.path / "daemon.json.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
            file.write(msgspec.json.encode(address) + b"\n")
        draft.replace(self.address)

    def remove_address(self) -> None:
        self.address.unlink(missing_ok=True)

    def read_address(self) -> Address | None:
        """What the running (or a crashed) daemon wrote; None where nothing usable is there."""
        try:
            self.check()
            return msgspec.json.decode(self.address.read_bytes(), type=Address)
        except FileNotFoundError:
            return None
        except RuntimeDirError:
            if not self.path.exists():
                return None
            raise
        except msgspec.DecodeError:
            return None


def _try_lock(lock: int) -> bool:
    """`RuntimeDir.holder` takes the lock for an instant to see whether it is free, so ask twice."""
    for attempt in range(5):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.01 * (attempt + 1))
    return False


def _default() -> Path:
    """``$XDG_RUNTIME_DIR/pillion``; the same folder where a login manager made one but did not say
    so (cron, su); else one of this user's under the system's temporary folder."""
    uid = os.geteuid()
    if named := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(named) / "pillion"
    login = Path(f"/run/user/{uid}")
    if login.is_dir() and login.stat().st_uid == uid:
        return login / "pillion"
    return Path(tempfile.gettempdir()) / f"pillion-{uid}"
