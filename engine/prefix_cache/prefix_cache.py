"""Prefixes that need not be computed again, in memory, for this process's life.

Pure: what is kept per prefix is opaque here, only its size is known. Attention state is good at
any token of an entry; recurrent state only at the entry's checkpoints.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError


class Sized(Protocol):
    """What a byte budget can be kept of."""

    @property
    def nbytes(self) -> int: ...


A = TypeVar("A", bound=Sized)
R = TypeVar("R", bound=Sized)

# A long chat leaves two checkpoints a turn; the last few serve its next turn, its retry and a
# branch near its end. Older ones would only fill the budget (151 MB each on Qwen3.8-27B).
CHECKPOINTS_KEPT = 6


@dataclass
class Entry(Generic[A, R]):
    """tokens: (length,) uint32. attention: covers all of them. checkpoints: length -> state."""

    tokens: NDArray[np.uint32]
    attention: A
    checkpoints: dict[int, R]
    used: int

    @property
    def nbytes(self) -> int:
        """Bytes that this entry keeps alive."""
        return (
            self.tokens.nbytes
            + self.attention.nbytes
            + sum(c.nbytes for c in self.checkpoints.values())
        )


@dataclass(frozen=True)
class Hit(Generic[A, R]):
    """The first `length` tokens are known. recurrent: None for a model without such layers."""

    length: int
    attention: A
    recurrent: R | None


class PrefixCache(Generic[A, R]):
    """Least-recently-used entries within a byte budget.

    recurrent: whether the model has state that is only known at checkpoints.
    granularity: hits are cut to multiples of it (1: any length). An engine whose prefill is not
    row-invariant sets it to its chunk grid, where cached and fresh state are the same computation.
    """

    def __init__(self, budget: int, *, recurrent: bool, granularity: int = 1) -> None:
        self.budget = budget
        self.granularity = granularity
        self._recurrent = recurrent
        self._entries: list[Entry[A, R]] = []
        self._clock = itertools.count()

    def lookup(self, tokens: Sequence[int]) -> Hit[A, R] | None:
        """The longest known proper prefix of `tokens` (the last token is always left to compute,
        since its logits are needed)."""
        wanted = np.asarray(tokens[:-1], dtype=np.uint32)
        best: tuple[int, Entry[A, R]] | None = None
        for entry in self._entries:
            length = self._usable(entry, _common(wanted, entry.tokens))
            if length > 0 and (best is None or length > best[0]):
                best = (length, entry)
        if best is None:
            return None
        length, entry = best
        entry.used = next(self._clock)
        return Hit(length, entry.attention, entry.checkpoints.get(length))

    def _usable(self, entry: Entry[A, R], common: int) -> int:
        if self._recurrent:
            lengths = (n for n in entry.checkpoints if n <= common and n % self.granularity == 0)
            return max(lengths, default=0)
        return common - common % self.granularity

    def insert(self, tokens: Sequence[int], attention: A, checkpoints: Mapping[int, R]) -> None:
        """Remember `tokens`; an entry that is a prefix of it is taken over, one that it is a
        prefix of takes over its checkpoints."""
        known = np.asarray(tokens, dtype=np.uint32)
        if not len(known):
            return
        merged = dict(checkpoints)
        kept: list[Entry[A, R]] = []
        for entry in self._entries:
            common = _common(known, entry.tokens)
            if common == len(known) < len(entry.tokens):
                entry.checkpoints = _latest({**entry.checkpoints, **merged})
                entry.used = next(self._clock)
                self._evict()
                return
            if common == len(entry.tokens):
                merged = {**entry.checkpoints, **merged}
            else:
                kept.append(entry)
        self._entries = [*kept, Entry(known, attention, _latest(merged), next(self._clock))]
        self._evict()

    def _evict(self) -> None:
        self._entries.sort(key=lambda entry: entry.used)
        while self._entries and self.nbytes > self.budget:
            self._entries.pop(0)

    def clear(self) -> None:
        self._entries.clear()

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def check_integrity(self) -> None:
        """Raise EngineError if an invariant is broken."""
        if self.nbytes > self.budget:
            raise EngineError(f"prefix cache: {self.nbytes} bytes over budget {self.budget}")
        for one, other in itertools.combinations(self._entries, 2):
            shorter = min(len(one.tokens), len(other.tokens))
            if _common(one.tokens, other.tokens) == shorter:
                raise EngineError("prefix cache: one entry is a prefix of another")
        for entry in self._entries:
            if any(not 0 < n <= len(entry.tokens) for n in entry.checkpoints):
                raise EngineError("prefix cache: a checkpoint lies outside its entry")


def _latest(checkpoints: dict[int, R]) -> dict[int, R]:
    return {n: checkpoints[n] for n in sorted(checkpoints)[-CHECKPOINTS_KEPT:]}


def _common(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> int:
    """Length of the common prefix."""
    shorter = min(len(one), len(other))
    differs = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differs[0]) if len(differs) else shorter
