"""Copies of a sequence's caches that share its buffers.

An attention cache writes into its own array object in place (`keys[...] = rows`), so a snapshot
takes a slice, which is another object over the same buffer; MLX copies the buffer when one of the
two is written to. Recurrent caches replace their arrays, so keeping the references is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from engine.targets.gated_delta import RecurrentCache
from engine.targets.target import Caches, Target


@dataclass(frozen=True)
class Recurrent:
    """The recurrent layers' windows and states at one length; None for attention layers."""

    arrays: tuple[tuple[mx.array | None, mx.array | None] | None, ...]

    @property
    def nbytes(self) -> int:
        return sum(
            a.nbytes for pair in self.arrays if pair is not None for a in pair if a is not None
        )


@dataclass(frozen=True)
class Attention:
    """Keys and values of the attention layers, good for every length up to `length`."""

    arrays: tuple[tuple[mx.array, mx.array] | None, ...]
    length: int

    @property
    def nbytes(self) -> int:
        return sum(k.nbytes + v.nbytes for k, v in (p for p in self.arrays if p is not None))


def take_recurrent(caches: Caches) -> Recurrent | None:
    """The recurrent part as it is now; None for a model that has none."""
    arrays = tuple((c[0], c[1]) if isinstance(c, RecurrentCache) else None for c in caches)
    return Recurrent(arrays) if any(a is not None for a in arrays) else None


def take_attention(caches: Caches, length: int) -> Attention:
    """The attention part, which holds `length` tokens."""
    arrays = tuple(
        None
        if isinstance(c, RecurrentCache) or c.keys is None
        else (c.keys[..., :length, :], c.values[..., :length, :])
        for c in caches
    )
    mx.eval([array for pair in arrays if pair is not None for array in pair])
    return Attention(arrays, length)


def can_snapshot(caches: Caches) -> bool:
    """Whether every cache is of a kind that these snapshots cover."""
    return all(isinstance(c, RecurrentCache) or type(c).__name__ == "KVCache" for c in caches)


def restore(
    target: Target, attention: Attention, recurrent: Recurrent | None, length: int
) -> Caches:
    """Fresh caches that hold the first `length` tokens of a snapshot."""
    caches = target.new_caches()
    for index, cache in enumerate(caches):
        if recurrent is not None and (pair := recurrent.arrays[index]) is not None:
            cache[0], cache[1] = pair
        elif (kept := attention.arrays[index]) is not None:
            cache.keys, cache.values = (array[..., :length, :] for array in kept)
            cache.offset = length
    return caches
