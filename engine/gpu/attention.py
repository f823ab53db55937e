"""Attention layers whose verify forwards run on Metal kernels, where every number of rows does.

A row's bits there are not those of MLX's kernels, so a layer's decode steps run on them too, or
none of its forwards. Prompts stay with MLX.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from engine.cpu.functions import Named
from engine.gpu.device import Device
from engine.gpu.examine import Trials, off_by
from metal.race import Findings, race, served
from metal.verify_attention import DTYPES, Shape, differs, fits, verify_attention

NAME = "scaled_dot_product_attention"
# What mlx-lm's layers call the numbers of their heads.
HEADS = ("num_attention_heads", "n_heads", "num_heads")
KEY_HEADS = ("num_key_value_heads", "n_kv_heads", "num_kv_heads")

Function = Callable[..., mx.array]


def shape_of(module: nn.Module) -> Shape | None:
    """Of a layer of mlx-lm's that calls `scaled_dot_product_attention`; None of anything else."""
    code = type(module).__call__
    # A layer may call MLX's own function of this name, as an attribute.
    calls = isinstance(code, FunctionType) and NAME in code.__code__.co_names
    if not calls or NAME not in code.__globals__:
        return None
    heads, key_heads = (
        next((getattr(module, name) for name in names if hasattr(module, name)), None)
        for names in (HEADS, KEY_HEADS)
    )
    scale = getattr(module, "scale", None)
    width = getattr(module, "head_dim", None) or (scale and round(float(scale) ** -2))
    if heads is None or key_heads is None or width is None:
        return None
    return Shape(int(heads), int(key_heads), int(width))


def dtype_of(module: nn.Module) -> mx.Dtype:
    """What the layer computes in."""
    floats = (x.dtype for _, x in tree_flatten(module.parameters()) if x.dtype in DTYPES)
    return next(floats, mx.float32)


def kernel_attention(stock: Function, shape: Shape, most: int, device: Device) -> Function:
    """mlx-lm's function of this name, on the kernels for up to `most` rows of `shape`."""

    def scaled_dot_product_attention(
        queries: mx.array,
        keys: Any,
        values: Any,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        rows = queries.shape[2]
        covered = (
            rows <= most
            and sinks is None
            and (mask == "causal" if isinstance(mask, str) else mask is None and rows == 1)
            and isinstance(keys, mx.array)
            # Quantised keys, and windows: their single rows come without a mask, others with one.
            and not hasattr(cache, "bits")
            and not hasattr(cache, "max_size")
            and queries.dtype == keys.dtype == values.dtype
            and keys.shape == values.shape
            and (queries.shape[1], keys.shape[1], keys.shape[3])
            == (shape.heads, shape.key_heads, shape.width)
        )
        if covered:
            return verify_attention(queries, keys, values, scale, compiler=device.compiler)
        return stock(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)

    return scaled_dot_product_attention


def chosen(
    module: nn.Module, device: Device, trials: Trials, verdicts: dict[tuple[Any, ...], str]
) -> nn.Module:
    """An attention layer that runs on the kernels where they are worth it, else `module`.

    verdicts: what is against them, by shape and dtype; empty where nothing is.
    """
    shape = shape_of(module)
    if shape is None:
        return module
    stock, dtype = type(module).__call__.__globals__[NAME], dtype_of(module)
    key = "attention", shape, dtype
    if key not in verdicts:
        findings = examine_attention(stock, shape, dtype, device, trials)
        slow = "" if served(findings) else "stock MLX is as fast, or exact and faster"
        verdicts[key] = findings.fault or slow
    if verdicts[key]:
        return module
    return Named(module, {NAME: kernel_attention(stock, shape, trials.rows, device)})


def examine_attention(
    stock: Function,
    shape: Shape,
    dtype: mx.Dtype,
    device: Device,
    trials: Trials,
) -> Findings:
    """What the kernels are worth in the place of `stock`, over all contexts together."""
    if not fits(shape, dtype, device.chip):
        return Findings(fault="there is no kernel")
    ours = kernel_attention(stock, shape, trials.rows, device)
    exact = dict.fromkeys(range(2, trials.rows + 1), True)
    like_stock = True
    seconds: dict[str, dict[int, float]] = {"ours": {}, "stock": {}}
    try:
        for context in (*trials.contexts[:-1], *trials.edges):
            keys = context + trials.rows
            if fault := differs(shape, dtype, keys, count=trials.rows, compiler=device.compiler):
                return Findings(fault=fault)
            rows = Rows.made_up(shape, dtype, context, trials.rows)
            alone = mx.concatenate([rows.run(stock, i, 1) for i in range(trials.rows)], axis=2)
            together = rows.run(ours, 0, trials.rows)
            if fault := off_by(together, alone):
                return Findings(fault=fault)
            like_stock = like_stock and _same(together, alone)
            for count in exact:
                exact[count] = exact[count] and _same(
                    rows.run(stock, 0, count), alone[:, :, :count]
                )
        for count in trials.timed:
            for context in trials.contexts:
                took = _race(Rows.made_up(shape, dtype, context, count), ours, stock, trials)
                for name in seconds:
                    seconds[name][count] = seconds[name].get(count, 0.0) + took[name]
    except (ValueError, RuntimeError, TypeError) as error:
        return Findings(fault=str(error).strip().split("\n", 1)[0])
    return Findings("", like_stock, exact, seconds["ours"], seconds["stock"])


@dataclass(frozen=True)
class Rows:
    """Random query rows (1, H, T, D) at the end of keys and values (1, H_kv, N, D)."""

    queries: mx.array
    keys: mx.array
    values: mx.array

    @classmethod
    def made_up(cls, shape: Shape, dtype: mx.Dtype, before: int, count: int) -> Rows:
        """`count` rows behind `before` keys."""
        narrow = (1, shape.key_heads, before + count, shape.width)
        wide = (1, shape.heads, count, shape.width)
        made = (
            mx.random.normal(size, key=mx.random.key(i)).astype(dtype)
            for i, size in enumerate((wide, narrow, narrow))
        )
        return cls(*made)

    def run(
        self, function: Function, first: int, count: int, queries: mx.array | None = None
    ) -> mx.array:
        """What `function` makes of `count` rows from `first` on, before there are more."""
        end = self.keys.shape[2] - self.queries.shape[2] + first + count
        which = self.queries if queries is None else queries
        return function(
            which[:, :, first : first + count],
            self.keys[:, :, :end],
            self.values[:, :, :end],
            cache=None,
            scale=which.shape[3] ** -0.5,
            mask="causal" if count > 1 else None,
        )


def _race(rows: Rows, ours: Function, stock: Function, trials: Trials) -> dict[str, float]:
    def step(function: Function) -> Callable[[mx.array], mx.array]:
        return lambda queries: rows.run(function, 0, rows.queries.shape[2], queries)

    return race(
        {"ours": step(ours), "stock": step(stock)},
        rows.queries,
        length=trials.length,
        repeats=trials.repeats,
        clock=trials.clock,
    )


def _same(one: mx.array, other: mx.array) -> bool:
    return bool(mx.array_equal(one, other).item())
