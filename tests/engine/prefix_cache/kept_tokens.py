"""Payloads that remember which tokens they are of, so that a wrong one is noticed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.prefix_cache.prefix_cache import PrefixCache
from engine.prefix_cache.record import Array


@dataclass(frozen=True)
class TokenRows:
    tokens: tuple[int, ...]
    each: int = 10

    @property
    def nbytes(self) -> int:
        return self.each * len(self.tokens)

    def split(self, at: int) -> tuple[TokenRows, TokenRows]:
        return TokenRows(self.tokens[:at], self.each), TokenRows(self.tokens[at:], self.each)


@dataclass(frozen=True)
class TokenState:
    tokens: tuple[int, ...]
    nbytes: int = 100


def rows_of(tokens: Sequence[int], each: int = 10) -> Any:
    return lambda start, end: TokenRows(tuple(tokens[start:end]), each)


def pack(rows: TokenRows, state: TokenState | None) -> Mapping[str, Array]:
    def array(tokens: tuple[int, ...]) -> Array:
        return Array("U32", (len(tokens),), np.asarray(tokens, "<u4").tobytes())

    named = {"rows": array(rows.tokens)}
    return named if state is None else {**named, "state": array(state.tokens)}


def unpack(
    arrays: Mapping[str, Array], length: int, end: int
) -> tuple[TokenRows, TokenState | None]:
    def tokens(name: str) -> tuple[int, ...]:
        return tuple(np.frombuffer(arrays[name].data, "<u4").tolist())

    state = TokenState(tokens("state")) if "state" in arrays else None
    rows = TokenRows(tokens("rows"))
    assert len(rows.tokens) == length
    assert state is None or len(state.tokens) == end
    return rows, state


def cache(budget: int = 10**6, **options: Any) -> PrefixCache[TokenRows, TokenState]:
    options.setdefault("recurrent", False)
    return PrefixCache(budget, empty=TokenRows(()), pack=pack, unpack=unpack, **options)


def put(
    cache: PrefixCache[TokenRows, TokenState],
    tokens: Sequence[int],
    *,
    state: bool = False,
    **more: Any,
) -> Any:
    kept = TokenState(tuple(tokens)) if state else None
    return cache.insert(tokens, rows_of(tokens), kept, **more)


def found(cache: PrefixCache[TokenRows, TokenState], tokens: Sequence[int]) -> int:
    """How many of `tokens` are known, after a check that what is kept is of these tokens."""
    hit = cache.lookup(tokens)
    if hit is None:
        return 0
    kept = [t for node in hit.nodes for t in node.rows.tokens]
    assert tuple(kept[: hit.length]) == tuple(tokens[: hit.length])
    if cache.memory.recurrent:
        assert hit.snapshot is not None
        assert hit.snapshot.tokens == tuple(tokens[: hit.length])
    return hit.length


def use(cache: PrefixCache[TokenRows, TokenState], tokens: Sequence[int]) -> Any:
    hit = cache.lookup(tokens)
    assert hit is not None
    return cache.use(hit, kind="turn", rate=0.001)
