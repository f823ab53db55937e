"""The load-time proof: do rows of a wide forward equal one-row decoding, bit for bit?

On Metal the kernel, and with it the order of summation, may depend on the number of rows. A width
is used only if every width up to it gives the logits, the tokens and (after a rollback) the caches
that one-row steps give. (TensorFold probes the same way; reference: its published design.)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from engine.messages import Exactness
from engine.prefix_cache.snapshot import (
    can_snapshot,
    restore,
    take_rows,
    take_snapshot,
)
from engine.targets.caches import (
    Caches,
    arrays_of,
    attention_of,
    leaves,
    resume,
    seen_by_the_next_row,
)
from engine.targets.target import Target

# Tokens before the probed rows: behind a short prompt, and past the key length at which MLX's
# Metal attention changes kernels (two-pass attention starts at 1,024 keys).
SHORT, LONG = 8, 1200
PREFILL_CHUNKS = (4, 8, 16, 32, 64, 128, 256, 512)
CHUNK_SECONDS = 0.5
# More rows than any kernel for a few of them takes, on every chip: a prompt's own kernels.
MANY = 48


@dataclass(frozen=True)
class Serial:
    """One-row decoding behind one context: what every width is compared with.

    logits[i], checkpoints[i]: after row i. keys, values: of all rows.
    """

    start: Callable[[], Caches]
    length: int
    tokens: list[int]
    logits: list[mx.array]
    checkpoints: list[Any]
    caches: Caches


def probe(
    target: Target, vocabulary: int, context: int, asked: int, progress: Callable[[float], None]
) -> Exactness:
    """Probe widths 2..`asked` (rows, anchor included) and the prompt path.

    `progress` is told the share done. Takes about asked^2 / 2 row-forwards.
    """
    if not target.speculative or not can_snapshot(target.new_caches()):
        reason = f"{target.family}: rows of this model's caches cannot be taken back"
        return Exactness(exact=True, width=1, asked=asked, prefill=False, reason=reason)
    rows = max(asked, SHORT)
    short = _serial(target, vocabulary, SHORT, rows, target.new_caches, prompt=SHORT)
    prefill_fault = _prefill_fault(target, short)
    if not prefill_fault and context >= MANY:
        prefill_fault = _long_chunk_fault(target, vocabulary, rows)
    progress(0.3)
    width, reason = asked, ""
    for rows in range(2, asked + 1):
        fault = _width_fault(target, short, rows)
        progress(0.3 + 0.4 * rows / asked)
        if fault:
            width, reason = rows - 1, f"{target.family}: {rows} rows behind {SHORT} tokens: {fault}"
            break
    if width > 1 and context > LONG + asked:
        width, reason = _long_width(target, vocabulary, width, reason)
    progress(1.0)
    if prefill_fault:
        prefill_fault = f"prompt chunks differ from one-row decoding: {prefill_fault}"
    return Exactness(
        exact=width == asked and not prefill_fault,
        width=width,
        asked=asked,
        prefill=not prefill_fault,
        reason="; ".join(filter(None, (reason, prefill_fault))),
    )


def _long_width(target: Target, vocabulary: int, width: int, reason: str) -> tuple[int, str]:
    start = random_start(target, vocabulary, LONG)
    long = _serial(target, vocabulary, LONG, width, start, prompt=0)
    while width > 1 and (fault := _width_fault(target, long, width)):
        reason = f"{width} rows behind {LONG} tokens: {fault}"
        width -= 1
    return width, reason


def _tokens(vocabulary: int, count: int) -> list[int]:
    """Fixed, spread over the vocabulary; the bits are compared, not the sense."""
    return [(7919 * (i + 1)) % vocabulary for i in range(count)]


def _serial(
    target: Target,
    vocabulary: int,
    length: int,
    rows: int,
    new_caches: Callable[[], Caches],
    *,
    prompt: int,
) -> Serial:
    """Run `prompt` context tokens and `rows` more, one row at a time."""
    caches = new_caches()
    tokens = _tokens(vocabulary, prompt + rows)
    logits, checkpoints = [], []
    before = new_caches()
    for index, token in enumerate(tokens):
        if index == prompt:
            before = _copy(target, caches, length)
        row = target.forward([token], caches)[0]
        mx.eval(row, arrays_of(caches))
        logits.append(row)
        checkpoints.append(take_snapshot(caches))

    def start() -> Caches:
        return _copy(target, before, length)

    return Serial(start, length, tokens[prompt:], logits[prompt:], checkpoints[prompt:], caches)


def _copy(target: Target, caches: Caches, length: int) -> Caches:
    return restore(target, [take_rows(caches, 0, length)], take_snapshot(caches), length)


def random_start(target: Target, vocabulary: int, length: int) -> Callable[[], Caches]:
    """Caches of `length` tokens with made-up attention state: the kernels' choice depends on the
    shape only, and a real prompt would cost seconds."""
    caches = target.new_caches()
    target.prefill(_tokens(vocabulary, 2), caches)
    for layer, cache in enumerate(leaves(caches)):
        like = attention_of(cache, length)
        if like is None:
            continue
        made = (
            mx.random.normal((*a.shape[:2], length, a.shape[3]), key=mx.random.key(layer))
            for a in like
            if a is not None
        )
        dtype = cache.keys.dtype
        resume(cache, tuple(a.astype(dtype) for a in made), None, length)
    mx.eval(arrays_of(caches))
    return lambda: _copy(target, caches, length)


def _width_fault(target: Target, serial: Serial, rows: int) -> str:
    """What differs between one forward of `rows` and as many one-row steps; empty if nothing."""
    caches = serial.start()
    logits = target.forward(serial.tokens[:rows], caches)
    for row in range(rows):
        if not mx.array_equal(logits[row], serial.logits[row], equal_nan=True).item():
            gap = mx.abs(logits[row] - serial.logits[row]).max().item()
            same = mx.argmax(logits[row]).item() == mx.argmax(serial.logits[row]).item()
            token = "the same token" if same else "another token"
            return f"logits of row {row + 1} differ by up to {gap:.2g} ({token} chosen)"
    keep = max(1, rows // 2)
    target.roll_back(caches, rows, keep)
    if not same_state(
        target, caches, serial.caches, serial.length + keep, serial.checkpoints[keep - 1]
    ):
        return f"caches differ after keeping {keep} rows"
    return ""


def _prefill_fault(target: Target, serial: Serial) -> str:
    """What differs between a prompt chunk and as many one-row steps; empty if nothing."""
    caches = serial.start()
    target.prefill(serial.tokens, caches)
    rows = len(serial.tokens)
    if same_state(target, caches, serial.caches, serial.length + rows, serial.checkpoints[-1]):
        return ""
    return f"the caches after a chunk of {rows} tokens"


def _long_chunk_fault(target: Target, vocabulary: int, rows: int) -> str:
    """What differs between a chunk of many tokens and chunks of `rows`, which are as one-row steps;
    empty if nothing. Kernels for a few rows may be exact where those for many are not."""
    together, apart = target.new_caches(), target.new_caches()
    tokens = _tokens(vocabulary, MANY)
    target.prefill(tokens, together)
    for start in range(0, MANY, rows):
        target.prefill(tokens[start : start + rows], apart)
    if same_state(target, together, apart, MANY, take_snapshot(apart)):
        return ""
    return f"the caches after a chunk of {MANY} tokens"


def same_state(target: Target, caches: Caches, serial: Caches, length: int, state: Any) -> bool:
    """Bit-equality with a serial run at `length` tokens.

    serial: its caches, maybe of later; their attention state at `length` is a prefix of it.
    state: the `Snapshot` it left at `length`, for the rest.
    """
    there = restore(target, [take_rows(serial, 0, length)], state, length)
    return all(
        _equal(a, b)
        for one, other in zip(leaves(caches), leaves(there), strict=True)
        for a, b in zip(seen_by_the_next_row(one), seen_by_the_next_row(other), strict=True)
    )


def _equal(a: mx.array | None, b: mx.array | None) -> bool:
    if a is None or b is None:
        return a is b
    return bool(mx.array_equal(a, b, equal_nan=True).item())


def measured_chunk(target: Target, vocabulary: int) -> int:
    """The longest prompt chunk (tokens) that takes about half a second here."""
    caches = target.new_caches()
    rows = PREFILL_CHUNKS[1]
    target.prefill(_tokens(vocabulary, rows), caches)
    began = time.perf_counter()
    target.prefill(_tokens(vocabulary, rows), caches)
    per_row = (time.perf_counter() - began) / rows
    fitting = [c for c in PREFILL_CHUNKS if c * per_row <= CHUNK_SECONDS]
    return fitting[-1] if fitting else PREFILL_CHUNKS[0]
