"""The kinds of cache that mlx-lm's models keep, and what of each can be kept and compared.

Attention state (full attention: keys and values of every token) is good at any length. The rest,
recurrent state and sliding windows, is only known at the length at which it was looked at.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache

from engine.targets.window import WindowCache

# mlx-lm's cache objects ship no types.
Caches = list[Any]
Arrays = tuple[mx.array | None, ...]


def attention_cache() -> Any:
    """An empty cache of one full-attention layer."""
    return KVCache()


def leaves(caches: Caches) -> Caches:
    """The caches with every CacheList replaced by its members."""
    return [leaf for c in caches for leaf in (c.caches if isinstance(c, CacheList) else (c,))]


def arrays_of(caches: Caches) -> list[mx.array]:
    """Every array the caches hold, for `mx.eval`."""
    arrays: list[mx.array] = []
    pending = [cache.state for cache in leaves(caches)]
    while pending:
        item = pending.pop()
        if isinstance(item, mx.array):
            arrays.append(item)
        elif isinstance(item, list | tuple):
            pending.extend(item)
    return arrays


def can_keep(cache: Any) -> bool:
    """Whether the functions below cover this kind."""
    return isinstance(cache, WindowCache | ArraysCache) or type(cache) is KVCache


def attention_of(cache: Any, length: int) -> Arrays | None:
    """Keys and values (1, heads, length, dim) of a full-attention cache; None for other kinds."""
    if type(cache) is not KVCache or cache.keys is None:
        return None
    # Slices are objects of their own: KVCache writes into its array object in place.
    return cache.keys[..., :length, :], cache.values[..., :length, :]


def state_of(cache: Any) -> Arrays | None:
    """What a recurrent or window cache holds now; None for other kinds."""
    if isinstance(cache, WindowCache):
        return cache.held()
    if isinstance(cache, ArraysCache):
        return tuple(cache.cache)
    return None


def resume(cache: Any, attention: Arrays | None, state: Arrays | None, length: int) -> None:
    """Make a fresh cache what it was at `length` tokens. The attention arrays, of `length` rows or
    with room for more, become the cache's own."""
    if isinstance(cache, WindowCache):
        if state is not None:
            cache.resume(state, length)
    elif state is not None:
        cache.cache = list(state)
    elif attention is not None:
        cache.keys, cache.values = attention
        cache.offset = length


def seen_by_the_next_row(cache: Any) -> Arrays:
    """Everything in a cache that can still reach a result: what two runs must agree on."""
    if isinstance(cache, WindowCache):
        return cache.visible()
    if isinstance(cache, ArraysCache):
        return tuple(cache.cache)
    return cache.keys[..., : cache.offset, :], cache.values[..., : cache.offset, :]
