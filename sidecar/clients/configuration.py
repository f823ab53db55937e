"""A client's configuration files: what setting them up changes, and changing it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from engine import PillionError
from sidecar.clients.client import Client, Daemon

_LONGEST = 4 << 20


class ConfigurationError(PillionError):
    """A file that is not what the client would read. The message names it."""

    code = "client_configuration"


class FileChange(Struct, frozen=True):
    """before: None where there is no file."""

    path: Path
    before: str | None
    after: str

    @property
    def needed(self) -> bool:
        return self.before != self.after


def changes(client: Client, daemon: Daemon, environ: Mapping[str, str]) -> Iterator[FileChange]:
    """What each file would become. Nothing is written. Raises ConfigurationError."""
    for file in client.files(daemon, environ):
        before = _read(file.path)
        try:
            after = file.write(before or "")
        except ValueError as error:
            raise ConfigurationError(f"{file.path}: {error}") from None
        yield FileChange(file.path, before, after)


def write(change: FileChange) -> None:
    """Atomically. A symbolic link stays one; a file keeps its mode, a new one is for its owner
    alone. Raises ConfigurationError where the file is not any more what the change was made for."""
    path = Path(os.path.realpath(change.path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if _read(change.path) != change.before:
            raise ConfigurationError(f"{change.path} changed meanwhile: run it again")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(change.after)
                file.flush()
                os.fsync(file.fileno())
            if change.before is not None:
                Path(name).chmod(path.stat().st_mode & 0o777)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise ConfigurationError(f"{change.path}: {error.strerror}") from error


def _read(path: Path) -> str | None:
    try:
        if path.stat().st_size > _LONGEST:
            raise ConfigurationError(f"{path} is too large to be a configuration")
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
