"""Names of models, and where each comes from."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.builtin import TARGET
from engine.errors import ModelError, RequestError

BUILTIN = "builtin"
SMOLLM2 = "smollm2-135m"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Source:
    """kind: ``builtin``, ``smollm2``, ``hub`` or ``folder``. path: where it is or will be; None for
    the Hub, whose own cache decides."""

    name: str
    kind: str
    path: Path | None = None


def cache_dir() -> Path:
    """Where fetched and converted models go: ``$PILLION_CACHE``, else the platform's place."""
    chosen = os.environ.get("PILLION_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "pillion"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pillion"


def resolve(name: str) -> Source:
    """What `name` stands for; touches no network.

    ``org/name`` is always a Hub id: a folder of that name in the current directory, which may be
    anybody's, must not replace it. For the same reason a folder starts with ``.``, ``/`` or ``~``.
    Raises RequestError naming ``model`` for no name at all, ModelError for a folder that is none.
    """
    if name == BUILTIN:
        return Source(name, "builtin", TARGET)
    if name == SMOLLM2:
        return Source(name, "smollm2", cache_dir() / "models" / SMOLLM2)
    if HUB_ID.fullmatch(name):
        return Source(name, "hub")
    if name.startswith((".", "/", "~")):
        path = Path(name).expanduser().resolve()
        if not path.is_dir():
            raise ModelError(f"{name}: no such folder")
        return Source(path.name, "folder", path)
    raise RequestError(
        f"model {name!r} is unknown: use {BUILTIN}, {SMOLLM2}, a Hub id (organisation/name) or a "
        "folder (./name)",
        field="model",
    )
