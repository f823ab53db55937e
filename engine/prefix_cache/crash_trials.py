"""``python -m engine.prefix_cache.crash_trials SOURCE FOLDER TRIALS``: what is left of a cache
whose writer was killed.

SOURCE is the folder of a cache that is whole. Again and again a process writes its records to
FOLDER, under a budget that half of them exceed, and is killed at a random moment (SIGKILL). Then
the next process opens FOLDER. A line of JSON a trial: `CrashTrial`.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from engine.comparisons import CrashTrial
from engine.prefix_cache.disk_index import Stored
from engine.prefix_cache.disk_tier import DiskTier
from engine.prefix_cache.record import Record, decode

# A trial's writer lives so many seconds at most behind its first record.
LONGEST = 0.06
OPEN_SECONDS = 60.0


def trial(records: Mapping[str, Record], folder: Path, budget: int, seconds: float) -> CrashTrial:
    """Have a child write `records` (by name) to `folder`, kill it, and look at what is there.

    seconds: it lives behind its first write. The caller must have no other thread.
    """
    fingerprint = next(iter(records.values())).head.fingerprint
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        # Nothing of the parent's may run here: not even its exit handlers.
        _write(records, folder, fingerprint, budget, writes)
    os.close(writes)
    with os.fdopen(reads, "rb") as begun:
        begun.read(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return look(records, folder, fingerprint, budget, killed=os.WIFSIGNALED(status))


def _write(
    records: Mapping[str, Record], folder: Path, fingerprint: str, budget: int, begun: int
) -> None:
    try:
        tier = _opened(folder, fingerprint, budget)
        for count, record in enumerate(itertools.cycle(records.values())):
            tier.offer(record)
            tier.flush()
            if not count:
                os.write(begun, b"w")
    finally:
        os._exit(1)


def look(
    records: Mapping[str, Record], folder: Path, fingerprint: str, budget: int, *, killed: bool
) -> CrashTrial:
    """What is in `folder`, compared with what was offered (`records`, by name)."""
    tier = _opened(folder, fingerprint, budget)
    found = [
        record
        for name in tier.folder.records()
        for record in tier.load([Stored(name, 0, None)]).result()
    ]
    counted = sum((folder / name).stat().st_size for name in tier.folder.records())
    healed = tier.state == "writing" and not list(folder.glob(".*.tmp")) and counted <= budget
    wrong = sum(not _same(record, records.get(record.head.name)) for record in found)
    damaged = sum(tier.evictions[reason] for reason in ("damaged", "foreign"))
    tier.close()
    return CrashTrial(
        killed=killed, healed=healed, records=len(found), damaged=damaged, wrong=wrong
    )


def _same(one: Record, other: Record | None) -> bool:
    """Whether every bit is as it was offered."""
    return (
        other is not None
        and one.head.name == other.head.name
        and one.arrays.keys() == other.arrays.keys()
        and all(
            (a.dtype, a.shape, bytes(a.data)) == (b.dtype, b.shape, bytes(b.data))
            for a, b in ((one.arrays[name], other.arrays[name]) for name in one.arrays)
        )
    )


def _opened(folder: Path, fingerprint: str, budget: int) -> DiskTier:
    tier = DiskTier(folder, lambda: fingerprint, budget=budget)
    deadline = time.monotonic() + OPEN_SECONDS
    while tier.state == "opening" and time.monotonic() < deadline:
        time.sleep(0.001)
    return tier


def main() -> None:
    source, folder, trials = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    read = [decode(file.read_bytes()) for file in sorted(source.glob("*.safetensors"))]
    records = {record.head.name: record for record in read}
    budget = sum(record.nbytes for record in read) // 2
    draw = random.Random(3)
    for _ in range(trials if records else 0):
        made = trial(records, folder, budget, draw.uniform(0, LONGEST))
        sys.stdout.buffer.write(msgspec.json.encode(made) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
