"""Taking back the rows of a forward that were not accepted, per kind of cache.

The promise is bit-equality with never having seen them; tests/engine/decoding/test_rollback.py
holds every kind to it against a serial run.
"""

from __future__ import annotations

from typing import Any

# Caches whose `trim` only moves an offset: attention keys and values in temporal order.
TRIMMED = frozenset({"KVCache", "QuantizedKVCache", "ConcatenateKVCache", "WindowCache"})


def can_roll_back(cache: Any) -> bool:
    """Whether `roll_back` is exact for this kind of cache."""
    return hasattr(cache, "take_back") or type(cache).__name__ in TRIMMED


def roll_back(caches: list[Any], rows: int, keep: int) -> None:
    """Keep the first `keep` (at least 1) of the `rows` that the last forward appended."""
    if not 1 <= keep <= rows:
        raise ValueError(f"cannot keep {keep} of {rows} rows")
    if keep == rows:
        return
    for cache in caches:
        if hasattr(cache, "take_back"):
            cache.take_back(rows, keep)
        else:
            cache.trim(rows - keep)
