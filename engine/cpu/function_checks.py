"""What the functions of `functions.py` are tried with before they are used: as modules are, against
the stock function, row by row and for time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from engine.cpu.modules import Kernel

Function = Callable[..., Any]

HEADS, KEY_HEADS, WIDTH = 4, 2, 64
# Keys before the rows.
BEFORE = 64


def _heads(rows: mx.array, start: int, count: int) -> mx.array:
    """(1, T, count, WIDTH) out of rows (1, T, ...)."""
    part = rows[..., start * WIDTH : (start + count) * WIDTH]
    return part.reshape(1, rows.shape[1], count, WIDTH)


def _attention(function: Function, rows: mx.array) -> mx.array:
    count = rows.shape[1]
    before = mx.random.normal((1, KEY_HEADS, BEFORE, WIDTH), key=mx.random.key(1))
    queries, keys, values = (
        _heads(rows, start, heads).swapaxes(1, 2)
        for start, heads in ((0, HEADS), (HEADS, KEY_HEADS), (HEADS + KEY_HEADS, KEY_HEADS))
    )
    keys, values = (mx.concatenate([before.astype(x.dtype), x], axis=2) for x in (keys, values))
    mask = "causal" if count > 1 else None
    output: mx.array = function(queries, keys, values, cache=None, scale=WIDTH**-0.5, mask=mask)
    return mx.flatten(output.swapaxes(1, 2), 2)


def _swiglu(function: Function, rows: mx.array) -> mx.array:
    output: mx.array = function(rows, rows[..., ::-1])
    return output


def _normalize_qk(function: Function, rows: mx.array) -> mx.array:
    queries, keys = _heads(rows, 0, KEY_HEADS), _heads(rows, KEY_HEADS, KEY_HEADS)
    both = function(queries, keys, inv_scale=WIDTH**-0.5, eps=1e-6)
    return mx.concatenate(both, axis=2).reshape(1, rows.shape[1], -1)


def _gated_delta_update(function: Function, rows: mx.array) -> mx.array:
    queries, keys = (_heads(rows, start, KEY_HEADS) * WIDTH**-0.5 for start in (0, KEY_HEADS))
    values, gates = _heads(rows, HEADS, HEADS), rows[..., :HEADS]
    constants = mx.zeros(HEADS), mx.ones(HEADS, dtype=rows.dtype)
    output: mx.array = function(queries, keys, values, gates, -gates, *constants)[0]
    return mx.flatten(output, 2)


CASES: dict[str, Callable[[Function, mx.array], mx.array]] = {
    "scaled_dot_product_attention": _attention,
    "swiglu": _swiglu,
    "normalize_qk": _normalize_qk,
    "gated_delta_update": _gated_delta_update,
}


class CheckedFunction:
    """A kernel in the shape in which `install` checks modules; a call is the kernel's.

    dtype: what the layer that calls it computes in.
    """

    tolerance = Kernel.tolerance
    row_exact = True

    def __init__(self, name: str, stock: Function, kernel: Function, dtype: mx.Dtype) -> None:
        self.name, self.inner, self._kernel, self._dtype = name, stock, kernel, dtype

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._kernel(*arguments, **options)

    def rows(self, count: int) -> mx.array:
        """Random input of `count` rows, (1, count, 2 * HEADS * WIDTH)."""
        rows = mx.random.normal((1, count, 2 * HEADS * WIDTH), key=mx.random.key(count))
        return rows.astype(self._dtype)

    def key(self) -> tuple[Any, ...]:
        """Calls of one key are equally fast."""
        return self.name, str(self._dtype)

    def run(self, function: Function, rows: mx.array) -> mx.array:
        """What `function`, this one or the stock one, makes of `rows`."""
        return CASES[self.name](function, rows)
