"""What cached state depends on. Two engines with the same fingerprint compute the same bits."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from engine.messages import EngineOptions
from engine.prefix_cache.record import FORMAT

# What decides about numbers or token ids; a README does not.
SUFFIXES = (".safetensors", ".gguf", ".json", ".jinja", ".model", ".txt")
DIGESTS = "digests.json"
ARITHMETIC = 2
"""Raised when a kernel of ours begins to compute other bits: a report names only which are used."""


def fingerprint(folders: Sequence[Path], facts: Sequence[str], cache: Path) -> str:
    """SHA-256 over every byte of the files in `folders` (target, drafter) that count, and `facts`.

    Reading the weights takes a while, so each file's digest is kept in `cache` for as long as its
    size, times and inode stay what they were.
    """
    kept = cache / DIGESTS
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        read = json.loads(kept.read_text())
        known = read if isinstance(read, dict) else {}
    digest = hashlib.sha256(json.dumps([FORMAT, *facts]).encode())
    used: dict[str, str] = {}
    for folder in folders:
        for file in sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and p.is_file()):
            found = file.stat()
            times = f"{found.st_mtime_ns} {found.st_ctime_ns}"
            key = f"{file} {found.st_dev} {found.st_ino} {found.st_size} {times}"
            used[key] = known.get(key) or _digest(file)
            digest.update(f"{file.name} {used[key]}\0".encode())
        digest.update(b"\0")
    if used.keys() - known.keys():
        _keep(kept, used)
    return digest.hexdigest()


def computed_by(options: EngineOptions, drafter: str, kernels: str, chunk: int) -> list[str]:
    """What besides the files decides about bits: versions, number formats, kernels.

    chunk: tokens that prompts are cut into; 0 where that makes no difference, because it is
    measured anew at every start.
    """
    import mlx.core as mx

    return [
        *(f"{name} {metadata.version(name)}" for name in ("pillion", "mlx", "mlx-lm")),
        f"{mx.default_device()} {platform.machine()} {platform.processor()}",
        f"{options.dtype} {options.draft_bits} {options.fast} {drafter}",
        f"{kernels} {ARITHMETIC} {chunk}",
    ]


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _keep(file: Path, digests: dict[str, str]) -> None:
    """A file that cannot be kept is read again at the next start."""
    temporary = file.with_suffix(f".{os.getpid()}.new")
    with contextlib.suppress(OSError):
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(digests))
        temporary.replace(file)
