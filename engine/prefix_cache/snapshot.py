"""Copies of a sequence's caches that share its buffers: MLX copies one when it is written to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from engine.targets.caches import Arrays, Caches, attention_of, can_keep, leaves, resume, state_of
from engine.targets.target import Target


@dataclass(frozen=True)
class Attention:
    """Keys and values of the full-attention layers, good for every length up to `length`; None
    for the other layers.

    context: what a drafter knows of the same tokens (`ContextRows`), if one watched.
    """

    arrays: tuple[Arrays | None, ...]
    length: int
    context: Any = None

    @property
    def nbytes(self) -> int:
        context = self.context.nbytes if self.context is not None else 0
        return int(context) + sum(a.nbytes for a in _flat(self.arrays))


@dataclass(frozen=True)
class Checkpoint:
    """State that is only known at one length: recurrent layers and sliding windows. None for the
    other layers."""

    arrays: tuple[Arrays | None, ...]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in _flat(self.arrays))


def _flat(arrays: tuple[Arrays | None, ...]) -> list[mx.array]:
    return [a for layer in arrays if layer is not None for a in layer if a is not None]


def take_attention(caches: Caches, length: int, context: Any = None) -> Attention:
    """The full-attention part, which holds `length` tokens, and the drafter's context of them."""
    arrays = tuple(attention_of(cache, length) for cache in leaves(caches))
    mx.eval(_flat(arrays))
    return Attention(arrays, length, context)


def take_checkpoint(caches: Caches) -> Checkpoint | None:
    """The rest as it is now; None for a model that has only full attention."""
    arrays = tuple(state_of(cache) for cache in leaves(caches))
    mx.eval(_flat(arrays))
    return Checkpoint(arrays) if any(a is not None for a in arrays) else None


def can_snapshot(caches: Caches) -> bool:
    """Whether every cache is of a kind that these snapshots cover."""
    return all(map(can_keep, leaves(caches)))


def restore(
    target: Target, attention: Attention, checkpoint: Checkpoint | None, length: int
) -> Caches:
    """Fresh caches that hold the first `length` tokens of a snapshot."""
    caches = target.new_caches()
    for index, cache in enumerate(leaves(caches)):
        state = None if checkpoint is None else checkpoint.arrays[index]
        resume(cache, attention.arrays[index], state, length)
    return caches
