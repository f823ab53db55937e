"""A program that can be pointed at the daemon, and what its configuration has to say for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

KEY_VARIABLE = "PILLION_HTTP_API_KEY"
"""Names the key where a client's configuration can name a variable."""


class Daemon(Struct, frozen=True, kw_only=True):
    """What clients are told of the running daemon. url: without a path. context: in tokens."""

    url: str
    model: str
    context: int
    api_key: str | None = None

    @property
    def key(self) -> str:
        """Clients insist on one, also where none is demanded."""
        return self.api_key or "unused"

    @property
    def output(self) -> int:
        """Tokens of a reply that clients may plan with."""
        return max(min(self.context // 4, 8192), 1)


class ClientFile(Struct, frozen=True):
    """One configuration file. write: the old text ("" where there is no file) -> the new one;
    raises ValueError where it cannot be changed. ours: no one else's settings are in it."""

    path: Path
    write: Callable[[str], str]
    ours: bool = False


class Client(Struct, frozen=True, kw_only=True):
    """title: as its makers write it. program: its command, "" for an editor. tokens: what its own
    words take in a first request. wire: the endpoint it uses. files: what to write for a daemon.
    start: how to use it then. once: arguments that make it answer one question and end, without a
    terminal. note: what else there is to know."""

    name: str
    title: str
    wire: str
    tokens: int
    files: Callable[[Daemon, Mapping[str, str]], tuple[ClientFile, ...]]
    start: Callable[[Daemon, Mapping[str, str]], str]
    program: str = ""
    once: Callable[[Daemon, Mapping[str, str]], tuple[str, ...]] | None = None
    note: str = ""


def home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def config_home(environ: Mapping[str, str]) -> Path:
    """Where programs that follow the XDG base directory specification keep their settings."""
    return Path(environ.get("XDG_CONFIG_HOME") or home(environ) / ".config")
