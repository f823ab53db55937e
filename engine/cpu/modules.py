"""Modules that run a kernel where it fits and the stock module they hold where it does not.

Each takes the place of one instance in a loaded model; no class is touched. `fits` says of a stock
module whether there is a kernel for it, `rows` makes input of the kind that the module gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn

from engine.cpu import extension

DTYPES = (mx.float32, mx.bfloat16)


class Kernel(nn.Module):
    """inner: the stock module, whose weights these are.

    `_compute` and `_dtype` are what a call needs, at hand: looking up a weight in an nn.Module
    takes as long as a small kernel.
    """

    # Of the largest value: rounding of float32 sums, and of one bfloat16 result.
    tolerance: ClassVar[dict[mx.Dtype, float]] = {mx.float32: 2e-5, mx.bfloat16: 1e-2}

    # Whether the bits of a row must not depend on the others: a drafter's may.
    row_exact: ClassVar[bool] = True

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._compute = self.bound()

    def bound(self) -> Callable[..., mx.array]:
        """The kernel on this module's weights, which stay what they are."""
        raise TypeError("a kind of module says itself what it computes")

    def __getattr__(self, name: str) -> Any:
        # Models read weights and settings of their parts.
        if name in self or "inner" not in self:
            return super().__getattr__(name)
        return getattr(self["inner"], name)

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether there is a kernel for this stock module."""
        raise TypeError("a kind of module says itself what fits")

    def rows(self, count: int) -> mx.array:
        """Random input of `count` rows, (1, count, width)."""
        return _random(count, self.inner.weight.shape[-1], self.inner.weight.dtype)

    def key(self) -> tuple[Any, ...]:
        """Modules of one key are equally fast."""
        weight = self.inner.weight
        return type(self), weight.shape, weight.dtype

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        """What `module`, this one or the stock one, makes of `rows`."""
        output: mx.array = module(rows)
        return output

    def accepted(self) -> None:
        """Called when this module takes the stock one's place."""


def _random(count: int, width: int, dtype: mx.Dtype) -> mx.array:
    return mx.random.normal((1, count, width), key=mx.random.key(count)).astype(dtype)


class DenseLinear(Kernel):
    """nn.Linear."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.Linear and module.weight.dtype in DTYPES

    def bound(self) -> Callable[..., mx.array]:
        dense, weight = extension().dense, self.inner.weight
        self._dtype, self._biased = weight.dtype, "bias" in self.inner
        return lambda x: dense(x, weight)

    def __call__(self, x: mx.array) -> mx.array:
        if x.dtype != self._dtype:
            return self.run(self.inner, x)
        output = self._compute(x)
        return output + self.inner.bias if self._biased else output


class DenseHead(Kernel):
    """nn.Embedding, also used as the output layer."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.Embedding and module.weight.dtype in DTYPES

    def bound(self) -> Callable[..., mx.array]:
        dense, weight = extension().dense, self.inner.weight
        self._dtype = weight.dtype
        return lambda x: dense(x, weight)

    def __call__(self, tokens: mx.array) -> mx.array:
        rows: mx.array = self.inner(tokens)
        return rows

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits (..., vocabulary) of x (..., width)."""
        return self._compute(x) if x.dtype == self._dtype else self.run(self.inner, x)

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        output: mx.array = module.as_linear(rows)
        return output


def _fits_quantized(module: nn.Module) -> bool:
    return (
        module.bits in (4, 8)
        and module.group_size in (32, 64, 128)
        and module.get("biases") is not None
        and getattr(module, "mode", "affine") == "affine"
        and module.scales.dtype in DTYPES
    )


def narrow(scales: mx.array, biases: mx.array) -> tuple[mx.array, mx.array]:
    """The same numbers in 16 bits, where they are: checkpoints have them so, and the cast to
    float32 that stock MLX needs to be fast makes the weights a third larger."""
    for dtype in (mx.bfloat16, mx.float16):
        narrow = scales.astype(dtype), biases.astype(dtype)
        if all(
            mx.array_equal(short.astype(wide.dtype), wide).item()
            for short, wide in zip(narrow, (scales, biases), strict=True)
        ):
            return narrow
    return scales, biases


class _Quantized(Kernel):
    # x in fixed point is off by up to 1.5e-5 of its group's largest, at random.
    tolerance: ClassVar[dict[mx.Dtype, float]] = {mx.float32: 1e-4, mx.bfloat16: 1e-2}

    def bound(self) -> Callable[..., mx.array]:
        inner = self.inner
        scales, biases = narrow(inner.scales, inner.biases)
        # In the kernels' own packing; a fused layer computes with the same.
        self.weights: Any = extension().Weights(
            [inner.weight, scales, biases], inner.group_size, inner.bits
        )
        self._dtype, self._biased = inner.scales.dtype, "bias" in inner
        multiply: Callable[..., mx.array] = self.weights
        return multiply

    def accepted(self) -> None:
        """Let the stock module's weights go: it packs them again should it ever be asked."""
        inner = self.inner
        weight, scales, biases = self.weights.rows()
        inner.weight = weight
        inner.scales, inner.biases = scales.astype(self._dtype), biases.astype(self._dtype)

    def rows(self, count: int) -> mx.array:
        width = self.inner.scales.shape[-1] * self.inner.group_size
        return _random(count, width, self.inner.scales.dtype)

    def key(self) -> tuple[Any, ...]:
        inner = self.inner
        return type(self), inner.weight.shape, inner.scales.dtype, inner.bits, inner.group_size


class QuantizedLinear(_Quantized):
    """nn.QuantizedLinear, affine."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.QuantizedLinear and _fits_quantized(module)

    def __call__(self, x: mx.array) -> mx.array:
        if x.dtype != self._dtype:
            return self.run(self.inner, x)
        output = self._compute(x)
        return output + self.inner.bias if self._biased else output


class QuantizedHead(_Quantized):
    """nn.QuantizedEmbedding, affine, also used as the output layer."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.QuantizedEmbedding and _fits_quantized(module)

    def __call__(self, tokens: mx.array) -> mx.array:
        weight, scales, biases = self.weights.rows(tokens)
        scales, biases = scales.astype(self._dtype), biases.astype(self._dtype)
        inner = self.inner
        return mx.dequantize(weight, scales, biases, group_size=inner.group_size, bits=inner.bits)

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits (..., vocabulary) of x (..., width)."""
        return self._compute(x) if x.dtype == self._dtype else self.run(self.inner, x)

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        output: mx.array = module.as_linear(rows)
        return output


class Norm(Kernel):
    """nn.RMSNorm."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.RMSNorm and module.weight.dtype in DTYPES

    def bound(self) -> Callable[..., mx.array]:
        norm, weight, eps = extension().rms_norm, self.inner.weight, self.inner.eps
        self._dtype = weight.dtype
        return lambda x: norm(x, weight, eps)

    def __call__(self, x: mx.array) -> mx.array:
        return self._compute(x) if x.dtype == self._dtype else self.run(self.inner, x)


class GatedNorm(Kernel):
    """mlx-lm's RMSNorm behind a GatedDeltaNet, times the SiLU of a gate."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        # A module that is no layer (a drafter's selector) has no call of its own.
        code = getattr(type(module).__call__, "__code__", None)
        return (
            code is not None
            and "precise_swiglu" in code.co_names
            and set(module.parameters()) == {"weight"}
            and module.weight.dtype in DTYPES
        )

    def bound(self) -> Callable[..., mx.array]:
        norm, weight, eps = extension().rms_norm, self.inner.weight, self.inner.eps
        self._dtype = weight.dtype
        return lambda x, gate: norm(x, weight, eps, 1.0, gate)

    def __call__(self, x: mx.array, gate: mx.array | None = None) -> mx.array:
        if gate is None or not x.dtype == self._dtype == gate.dtype:
            output: mx.array = self.inner(x, gate)
            return output
        return self._compute(x, gate)

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        output: mx.array = module(rows, rows[..., ::-1])
        return output


class Rotary(Kernel):
    """nn.RoPE, halves of a head against each other (not ``traditional``)."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.RoPE and not module.traditional and module.dims % 2 == 0

    def bound(self) -> Callable[..., mx.array]:
        rope, inner = extension().rope, self.inner
        dims, base, scale = inner.dims, inner.base, inner.scale
        return lambda x, offset: rope(x, dims, base, scale, offset)

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        if not isinstance(offset, int) or x.ndim != 4 or x.dtype not in DTYPES:
            output: mx.array = self.inner(x, offset=offset)
            return output
        return self._compute(x, offset)

    def rows(self, count: int) -> mx.array:
        return _random(count, self.inner.dims, mx.float32)

    def key(self) -> tuple[Any, ...]:
        return type(self), self.inner.dims, self.inner.base, self.inner.scale

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        output: mx.array = module(rows[:, None], offset=5)
        return output[:, 0]


class Convolution(Kernel):
    """nn.Conv1d with one filter a channel, as recurrent layers have it."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return (
            type(module) is nn.Conv1d
            and module.weight.shape[2] == 1
            and module.groups == module.weight.shape[0]
            and (module.stride, module.padding, module.dilation) == (1, 0, 1)
            and module.weight.dtype in DTYPES
        )

    def bound(self) -> Callable[..., mx.array]:
        convolve, weight = extension().convolve, self.inner.weight
        taps = mx.contiguous(weight[:, :, 0].T.astype(mx.float32))
        self._dtype, self._biased = weight.dtype, "bias" in self.inner
        return lambda x: convolve(x, taps)

    def __call__(self, x: mx.array) -> mx.array:
        if x.dtype != self._dtype:
            return self.run(self.inner, x)
        output = self._compute(x)
        return output + self.inner.bias if self._biased else output

    def rows(self, count: int) -> mx.array:
        channels, taps, _ = self.inner.weight.shape
        # As many rows come out as `count`.
        return _random(count + taps - 1, channels, self.inner.weight.dtype)


KINDS: tuple[type[Kernel], ...] = (
    DenseLinear,
    DenseHead,
    QuantizedLinear,
    QuantizedHead,
    Norm,
    GatedNorm,
    Rotary,
    Convolution,
)
