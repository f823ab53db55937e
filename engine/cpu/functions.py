"""Functions that mlx-lm's layers call by name, with a kernel where it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.cpu import extension
from engine.cpu.modules import DTYPES
from engine.targets.recurrent import with_names


def attention(stock: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """mlx-lm's `scaled_dot_product_attention` for plain caches; masks are causal or say which
    keys each row sees."""

    def scaled_dot_product_attention(
        queries: mx.array,
        keys: Any,
        values: Any,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        fits = (
            sinks is None
            and _fits_mask(mask)
            and isinstance(keys, mx.array)
            and keys.shape == values.shape
            and queries.dtype == keys.dtype == values.dtype
            and queries.dtype in DTYPES
            and not hasattr(cache, "bits")
        )
        if not fits:
            return stock(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
        causal = isinstance(mask, str) and queries.shape[2] > 1
        shown = mask if isinstance(mask, mx.array) else None
        output: mx.array = extension().attention(queries, keys, values, scale, causal, shown)
        return output

    return scaled_dot_product_attention


def _fits_mask(mask: Any) -> bool:
    if isinstance(mask, mx.array):
        return bool(mask.dtype == mx.bool_ and mask.ndim == 2)
    return mask is None or mask == "causal"


def swiglu(stock: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """silu(gate) * x."""

    def swiglu(gate: mx.array, x: mx.array) -> mx.array:
        if gate.shape != x.shape or gate.dtype != x.dtype or x.dtype not in DTYPES:
            return stock(gate, x)
        output: mx.array = extension().swiglu(gate, x)
        return output

    return swiglu


def normalize_qk(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The L2 norm of a GatedDeltaNet's queries and keys, with its scales."""

    def normalize_qk(
        q: mx.array, k: mx.array, *, inv_scale: float, eps: float
    ) -> tuple[mx.array, mx.array]:
        if q.dtype not in DTYPES or k.dtype != q.dtype:
            queries, keys = stock(q, k, inv_scale=inv_scale, eps=eps)
            return queries, keys
        norm, of_mean = extension().rms_norm, eps * inv_scale**2
        return norm(q, None, of_mean, inv_scale**2), norm(k, None, of_mean, inv_scale)

    return normalize_qk


def gated_delta_update(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The recurrence of a GatedDeltaNet layer, row after row."""

    def gated_delta_update(
        q: mx.array,
        k: mx.array,
        v: mx.array,
        a: mx.array,
        b: mx.array,
        a_log: mx.array,
        dt_bias: mx.array,
        state: mx.array | None = None,
        mask: mx.array | None = None,
        **options: Any,
    ) -> tuple[mx.array, mx.array]:
        fits = (
            mask is None
            and q.dtype in DTYPES
            and q.dtype == k.dtype == v.dtype == a.dtype == b.dtype
            and a_log.dtype in DTYPES
            and dt_bias.dtype in DTYPES
            and a.ndim == 3
            and (state is None or state.dtype == mx.float32)
            and not options.keys() - {"use_kernel"}
        )
        if not fits:
            output, after = stock(q, k, v, a, b, a_log, dt_bias, state, mask, **options)
            return output, after
        if state is None:
            state = mx.zeros((q.shape[0], v.shape[2], v.shape[3], q.shape[3]), mx.float32)
        output, after = extension().gated_delta(q, k, v, a, b, a_log, dt_bias, state)
        return output, after

    return gated_delta_update


FUNCTIONS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "scaled_dot_product_attention": attention,
    "swiglu": swiglu,
    "normalize_qk": normalize_qk,
    "gated_delta_update": gated_delta_update,
}


def names_in(module: nn.Module) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """The functions above that the module's own code calls: the stock one, and the kernel around
    it."""
    code = type(module).__call__
    # A module that is no layer (a drafter's selector) has no call of its own.
    if not isinstance(code, FunctionType):
        return {}
    return {
        name: (code.__globals__[name], around(code.__globals__[name]))
        for name, around in FUNCTIONS.items()
        if name in code.__code__.co_names and name in code.__globals__
    }


class Named(nn.Module):
    """Runs a module's own code with other functions under some of its names."""

    def __init__(self, inner: nn.Module, names: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.inner = inner
        self._forward = partial(with_names(type(inner).__call__, names), inner)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._forward(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name in self or "inner" not in self:
            return super().__getattr__(name)
        return getattr(self["inner"], name)
