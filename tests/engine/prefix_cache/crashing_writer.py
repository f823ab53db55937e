"""Writes records until it is killed; says when it has begun. Arguments: the folder."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kept_tokens import cache, put

from engine.prefix_cache.disk_tier import DiskTier

kept = cache(recurrent=True, disk=DiskTier(Path(sys.argv[1]), lambda: "f" * 64, budget=400_000))
assert kept.disk is not None
while not kept.disk.opened:
    pass
sys.stdout.write(f"{kept.disk.state}\n")
sys.stdout.flush()
for n in itertools.count():
    prompt = [n % 40, *range(n % 7, n % 7 + 200)]
    for length in (60, 201):
        kept.save(put(kept, prompt[:length], state=True))
    while kept.step():
        pass
    kept.disk.flush()
