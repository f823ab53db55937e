"""The most memory that a process has had."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def peak_memory(pid: int) -> int:
    """Bytes, of the process and of all below it that still run; 0 where the system does not tell.
    Source: proc(5), VmHWM."""
    return sum(map(_high_water, _tree(pid)))


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError, ValueError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))


def _high_water(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0
