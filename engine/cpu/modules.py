"""Modules that run a kernel where it fits and the stock module they hold where it does not.

Each takes the place of one instance in a loaded model; no class is touched. `fits` says of a stock
module whether there is a kernel for it, `rows` makes input of the kind that the module gets.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.cpu import extension

DTYPES = (mx.float32, mx.bfloat16)


class Kernel(nn.Module):
    """inner: the stock module, whose weights these are."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

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


def _random(count: int, width: int, dtype: mx.Dtype) -> mx.array:
    return mx.random.normal((1, count, width), key=mx.random.key(count)).astype(dtype)


class DenseLinear(Kernel):
    """nn.Linear."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.Linear and module.weight.dtype in DTYPES

    def __call__(self, x: mx.array) -> mx.array:
        weight = self.inner.weight
        if x.dtype != weight.dtype:
            return self.run(self.inner, x)
        output: mx.array = extension().dense(x, weight)
        return output + self.inner.bias if "bias" in self.inner else output


class DenseHead(Kernel):
    """nn.Embedding, also used as the output layer."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.Embedding and module.weight.dtype in DTYPES

    def __call__(self, tokens: mx.array) -> mx.array:
        rows: mx.array = self.inner(tokens)
        return rows

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits (..., vocabulary) of x (..., width)."""
        output: mx.array
        if x.dtype != self.inner.weight.dtype:
            output = self.inner.as_linear(x)
        else:
            output = extension().dense(x, self.inner.weight)
        return output

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


def _narrow(scales: mx.array, biases: mx.array) -> tuple[mx.array, mx.array]:
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
    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self._scales, self._biases = _narrow(inner.scales, inner.biases)

    def rows(self, count: int) -> mx.array:
        width = self.inner.scales.shape[-1] * self.inner.group_size
        return _random(count, width, self.inner.scales.dtype)

    def key(self) -> tuple[Any, ...]:
        inner = self.inner
        return type(self), inner.weight.shape, inner.scales.dtype, inner.bits, inner.group_size

    def multiply(self, x: mx.array) -> mx.array:
        inner = self.inner
        output: mx.array = extension().quantized(
            x, inner.weight, self._scales, self._biases, inner.group_size, inner.bits
        )
        return output


class QuantizedLinear(_Quantized):
    """nn.QuantizedLinear, affine."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.QuantizedLinear and _fits_quantized(module)

    def __call__(self, x: mx.array) -> mx.array:
        if x.dtype != self.inner.scales.dtype:
            return self.run(self.inner, x)
        output = self.multiply(x)
        return output + self.inner.bias if "bias" in self.inner else output


class QuantizedHead(_Quantized):
    """nn.QuantizedEmbedding, affine, also used as the output layer."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.QuantizedEmbedding and _fits_quantized(module)

    def __call__(self, tokens: mx.array) -> mx.array:
        rows: mx.array = self.inner(tokens)
        return rows

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits (..., vocabulary) of x (..., width)."""
        if x.dtype != self.inner.scales.dtype:
            output: mx.array = self.inner.as_linear(x)
            return output
        return self.multiply(x)

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        output: mx.array = module.as_linear(rows)
        return output


class Norm(Kernel):
    """nn.RMSNorm."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.RMSNorm and module.weight.dtype in DTYPES

    def __call__(self, x: mx.array) -> mx.array:
        weight = self.inner.weight
        if x.dtype != weight.dtype:
            return self.run(self.inner, x)
        output: mx.array = extension().rms_norm(x, weight, self.inner.eps)
        return output


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

    def __call__(self, x: mx.array, gate: mx.array | None = None) -> mx.array:
        weight = self.inner.weight
        output: mx.array
        if gate is None or not x.dtype == weight.dtype == gate.dtype:
            output = self.inner(x, gate)
        else:
            output = extension().rms_norm(x, weight, self.inner.eps, 1.0, gate)
        return output

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        output: mx.array = module(rows, rows[..., ::-1])
        return output


class Rotary(Kernel):
    """nn.RoPE, halves of a head against each other (not ``traditional``)."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.RoPE and not module.traditional and module.dims % 2 == 0

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        inner = self.inner
        output: mx.array
        if not isinstance(offset, int) or x.ndim != 4 or x.dtype not in DTYPES:
            output = inner(x, offset=offset)
        else:
            output = extension().rope(x, inner.dims, inner.base, inner.scale, offset)
        return output

    def rows(self, count: int) -> mx.array:
        return _random(count, self.inner.dims, mx.float32)

    def key(self) -> tuple[Any, ...]:
        return type(self), self.inner.dims, self.inner.base, self.inner.scale

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        output: mx.array = module(rows[:, None], offset=5)
        return output[:, 0]


class Convolution(Kernel):
    """nn.Conv1d with one filter a channel, as recurrent layers have it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self._taps = mx.contiguous(inner.weight[:, :, 0].T.astype(mx.float32))

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return (
            type(module) is nn.Conv1d
            and module.weight.shape[2] == 1
            and module.groups == module.weight.shape[0]
            and (module.stride, module.padding, module.dilation) == (1, 0, 1)
            and module.weight.dtype in DTYPES
        )

    def __call__(self, x: mx.array) -> mx.array:
        if x.dtype != self.inner.weight.dtype:
            return self.run(self.inner, x)
        output: mx.array = extension().convolve(x, self._taps)
        return output + self.inner.bias if "bias" in self.inner else output

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
