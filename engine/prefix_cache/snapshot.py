"""What the prefix cache keeps of a sequence's caches: copies, so that it holds on to nothing else.

A slice of an MLX array keeps the whole buffer alive, and a buffer that somebody else holds on to is
copied as a whole when a cache writes its next row into it. So what is kept is copied once, a
stretch of tokens at a time, and begun from by joining the stretches to one new buffer: branches
share all stretches but their own, and the bytes counted are the bytes held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from engine.drafters.dflash_drafter import ContextRows
from engine.prefix_cache.record import Array
from engine.targets.caches import Arrays, Caches, attention_of, can_keep, leaves, resume, state_of
from engine.targets.target import Target

# KVCache grows its buffers by so many rows.
STEP = 256
# safetensors' names of MLX's types, and the integer type that has the same bytes where numpy has
# no such floats.
DTYPES = {
    "F32": mx.float32,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "I32": mx.int32,
    "U8": mx.uint8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class KeptRows:
    """Keys and values of the full-attention layers for `length` tokens; None for other layers.

    context: what a drafter knows of the same tokens, maybe only of the last ones; None where none
    watched.
    """

    arrays: tuple[Arrays | None, ...]
    length: int
    context: ContextRows | None = None

    @property
    def nbytes(self) -> int:
        context = self.context.nbytes if self.context is not None else 0
        return context + sum(int(a.nbytes) for a in _flat(self.arrays))

    def split(self, at: int) -> tuple[KeptRows, KeptRows]:
        """Of the first `at` tokens, and of the rest, each with buffers of its own."""
        context = self.context
        start = context.end - self.length + at if context is not None else 0
        return (
            KeptRows(
                self._rows(0, at), at, _first(context, start) if context is not None else None
            ),
            KeptRows(
                self._rows(at, self.length),
                self.length - at,
                context_behind(context, start) if context is not None else None,
            ),
        )

    def _rows(self, start: int, end: int) -> tuple[Arrays | None, ...]:
        rows = tuple(
            None if layer is None else tuple(_copy(a, start, end) for a in layer)
            for layer in self.arrays
        )
        mx.eval(_flat(rows))
        return rows

    def until(self, length: int) -> tuple[Arrays | None, ...]:
        """Views of the first `length` tokens' rows."""
        if length >= self.length:
            return self.arrays
        return tuple(
            None
            if layer is None
            else tuple(None if a is None else a[..., :length, :] for a in layer)
            for layer in self.arrays
        )


@dataclass(frozen=True)
class Snapshot:
    """State that is only known at one length: recurrent layers and sliding windows; None for the
    other layers. logits: (vocabulary,) of the last token, where they were computed."""

    arrays: tuple[Arrays | None, ...]
    logits: mx.array | None = None

    @property
    def nbytes(self) -> int:
        logits = int(self.logits.nbytes) if self.logits is not None else 0
        return logits + sum(int(a.nbytes) for a in _flat(self.arrays))

    def evaluated(self) -> Snapshot:
        """Itself, holding on to nothing but its own arrays."""
        mx.eval(_flat(self.arrays), [] if self.logits is None else self.logits)
        return self


NO_ROWS = KeptRows((), 0)


def _flat(arrays: tuple[Arrays | None, ...]) -> list[mx.array]:
    return [a for layer in arrays if layer is not None for a in layer if a is not None]


def _copy(array: mx.array | None, start: int, end: int) -> mx.array | None:
    return None if array is None else mx.contiguous(array[..., start:end, :])


def _first(context: ContextRows, length: int) -> ContextRows:
    first = context.first(length)
    return ContextRows(first.start, mx.contiguous(first.rows))


def context_behind(context: ContextRows, start: int) -> ContextRows:
    """What is known of the tokens from `start` on, in a buffer of its own."""
    if start <= context.start:
        return context
    if start >= context.end:
        return ContextRows.empty(context.end)
    return ContextRows(start, mx.contiguous(context.rows[:, start - context.start :]))


def take_rows(caches: Caches, start: int, end: int, context: ContextRows | None = None) -> KeptRows:
    """The full-attention rows of positions [start, end), and the drafter's context of them."""
    arrays = []
    for cache in leaves(caches):
        layer = attention_of(cache, end)
        arrays.append(None if layer is None else tuple(_copy(a, start, end) for a in layer))
    kept = context_behind(context, start) if context is not None else None
    mx.eval(_flat(tuple(arrays)), [] if kept is None else kept.rows)
    return KeptRows(tuple(arrays), end - start, kept)


def take_snapshot(caches: Caches, logits: mx.array | None = None) -> Snapshot | None:
    """The rest as it is now, and `logits`, (vocabulary,); None if there is neither."""
    snapshot = lazy_snapshot(caches, logits)
    return None if snapshot is None else snapshot.evaluated()


def lazy_snapshot(caches: Caches, logits: mx.array | None = None) -> Snapshot | None:
    """`take_snapshot`, copied later: what the caches take in until then does not reach it."""
    arrays = tuple(
        None if (state := state_of(cache)) is None else tuple(map(_own, state))
        for cache in leaves(caches)
    )
    if logits is None and not any(a is not None for a in arrays):
        return None
    return Snapshot(arrays, logits)


def _own(array: mx.array | None) -> mx.array | None:
    """The same without what it may be a part of."""
    return None if array is None else mx.contiguous(array)


def can_snapshot(caches: Caches) -> bool:
    """Whether every cache is of a kind that these functions cover."""
    return all(map(can_keep, leaves(caches)))


def restore(
    target: Target,
    rows: Sequence[KeptRows],
    snapshot: Snapshot | None,
    length: int,
    room: int = 0,
) -> Caches:
    """Fresh caches that hold the first `length` tokens of `rows`, with room for `room` more."""
    caches = target.new_caches()
    parts, left = list[tuple[Arrays | None, ...]](), length
    for stretch in rows:
        parts.append(stretch.until(left))
        left -= stretch.length
        if left <= 0:
            break
    capacity = -(-(length + room) // STEP) * STEP
    for index, cache in enumerate(leaves(caches)):
        state = None if snapshot is None else snapshot.arrays[index]
        attention = None
        if parts and (first := parts[0][index]) is not None:
            layers = [part[index] or () for part in parts]
            attention = tuple(
                _joined([layer[k] for layer in layers], capacity) for k in range(len(first))
            )
        resume(cache, attention, state, length)
    return caches


def _joined(layers: Sequence[mx.array | None], capacity: int) -> mx.array:
    """One buffer with the stretches at its front."""
    stretches = [layer for layer in layers if layer is not None]
    rows = sum(s.shape[-2] for s in stretches)
    *leading, _, width = stretches[0].shape
    if capacity > rows:
        stretches = [*stretches, mx.zeros((*leading, capacity - rows, width), stretches[0].dtype)]
    return mx.concatenate(stretches, axis=-2)


def join_context(rows: Sequence[KeptRows], length: int) -> ContextRows:
    """What a drafter knows of the first `length` tokens: all that hangs together up to there."""
    end, parts = length, list[mx.array]()
    start = sum(stretch.length for stretch in rows)
    for stretch in reversed(rows):
        start -= stretch.length
        if start >= length:
            continue
        context = stretch.context.first(length) if stretch.context is not None else None
        if context is None or context.end != end or not context.rows.shape[1]:
            break
        parts.insert(0, context.rows)
        end = context.start
        if end > start:
            break
    if not parts:
        return ContextRows.empty(length)
    return ContextRows(end, mx.concatenate(parts, axis=1) if len(parts) > 1 else parts[0])


def arrays_of_rows(rows: KeptRows, snapshot: Snapshot | None) -> dict[str, Array]:
    """All arrays by name, as bytes that no longer depend on MLX."""
    named = {
        f"rows.{layer}.{k}": a
        for layer, arrays in enumerate(rows.arrays)
        for k, a in enumerate(arrays or ())
    }
    if rows.context is not None and rows.context.rows.shape[1]:
        named["context"] = rows.context.rows
    if snapshot is not None:
        named |= {
            f"state.{layer}.{k}": a
            for layer, arrays in enumerate(snapshot.arrays)
            for k, a in enumerate(arrays or ())
        }
        named["logits"] = snapshot.logits
    return {name: _bytes(a) for name, a in named.items() if a is not None}


def _bytes(array: mx.array) -> Array:
    plain = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return Array(NAMES[array.dtype], tuple(array.shape), np.asarray(plain).tobytes())


def _array(stored: Array) -> mx.array:
    dtype = DTYPES[stored.dtype]
    plain = {mx.bfloat16: "<u2", mx.float16: "<f2", mx.float32: "<f4", mx.int32: "<i4"}
    flat = np.frombuffer(stored.data, plain.get(dtype, "u1")).reshape(stored.shape)
    array = mx.array(flat)
    return array.view(mx.bfloat16) if dtype == mx.bfloat16 else array


def rows_of_arrays(
    arrays: Mapping[str, Array], layers: int, length: int, end: int
) -> tuple[KeptRows, Snapshot | None]:
    """What `arrays_of_rows` was given. layers: of the model's caches; end: the position after the
    last of the `length` tokens."""
    read = {name: _array(array) for name, array in arrays.items()}

    def group(kind: str) -> tuple[Arrays | None, ...]:
        found: list[Arrays | None] = []
        for layer in range(layers):
            count = sum(name.startswith(f"{kind}.{layer}.") for name in read)
            names = [f"{kind}.{layer}.{k}" for k in range(count)]
            found.append(tuple(read[name] for name in names) or None)
        return tuple(found)

    context = read.get("context")
    kept = ContextRows(end - context.shape[1], context) if context is not None else None
    states = group("state")
    logits = read.get("logits")
    known = logits is not None or any(state is not None for state in states)
    snapshot = Snapshot(states, logits) if known else None
    rows = KeptRows(group("rows"), length, kept)
    mx.eval(list(read.values()))
    return rows, snapshot
