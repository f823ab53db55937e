"""Figures in a file: what was measured, on which machine, with which versions."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine import RequestError

if TYPE_CHECKING:
    from rich.console import Console

PACKAGES = ("pillion", "mlx", "mlx-lm", "numpy")


def check_writable(path: Path | None, option: str = "--json") -> None:
    """Raises RequestError, which names `option`, now rather than after minutes of measuring."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir() or not folder.is_dir():
        what = "is a folder" if path.is_dir() else f"there is no folder {folder}"
        raise RequestError(f"{option} {path}: {what}", field=option.removeprefix("--"))
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise RequestError(
            f"{option} {path}: no permission to write there", field=option.removeprefix("--")
        )


def write_report(path: Path, figures: Mapping[str, Any], **more: object) -> None:
    """Write `figures` and `more` with the machine, the versions and the date, as JSON."""
    document = {
        "figures": figures,
        **more,
        "machine": machine(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    encoded = msgspec.json.format(msgspec.json.encode(document), indent=2)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(encoded + b"\n")
    partial.replace(path)


def report_console() -> Console:
    """Prints tables. In a pipe they get room enough not to be cut."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140)


def machine() -> dict[str, Any]:
    """Enough to tell whether two reports can be compared."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide about speed and numerics."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
