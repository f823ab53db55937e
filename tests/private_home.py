"""A home that keeps a process away from the user's files, for tests and what they start."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def private_environment(home: Path) -> dict[str, str]:
    """The variables that keep a process away from the user's files: every state folder below
    `home`, no PILLION_* setting. For subprocesses and in-process tests alike."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PILLION_")}
    environment["HOME"] = str(home)
    for name, folder in (
        ("XDG_CONFIG_HOME", "config"),
        ("XDG_STATE_HOME", "state"),
        ("XDG_CACHE_HOME", "cache"),
        ("XDG_DATA_HOME", "data"),
        ("XDG_RUNTIME_DIR", "run"),
        ("HF_HOME", "hub"),
    ):
        path = home / folder
        path.mkdir(mode=0o700, exist_ok=True)
        environment[name] = str(path)
    return environment


def short_folder() -> Path:
    """A private folder with a path short enough for a Unix socket in it (104 bytes on macOS)."""
    return Path(tempfile.mkdtemp(prefix="pln-")).resolve()
