"""Modules that run a Metal kernel on a few rows and the stock module they hold on all others.

Each takes the place of one instance in a loaded model; no class is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.cpu.modules import Kernel
from engine.gpu.device import Device
from metal.kernel import Compiler
from metal.verify_matmul import (
    MOST_ROWS,
    TILINGS,
    Shape,
    Tiling,
    fits,
    verify_gather,
    verify_matmul,
)

# What mlx-lm's blocks call the number of experts that a token takes.
TOP = ("top_k", "num_experts_per_tok")


class RowKernel(Kernel):
    """inner: the stock module, whose weights these are. served: numbers of rows that the kernel
    takes; all, until a choice is made. like_stock: whether its rows have the bits of the stock
    module's single row."""

    def __init__(self, inner: nn.Module, compiler: Compiler | None = None) -> None:
        self.compiler = compiler
        self.served = frozenset(range(1, MOST_ROWS + 1))
        self.tiling = TILINGS[0]
        self.like_stock = False
        super().__init__(inner)

    def bound(self) -> Callable[..., mx.array]:
        self._dtype, self._biased = self.inner.scales.dtype, "bias" in self.inner
        return self._multiply

    def _multiply(self, x: mx.array) -> mx.array:
        """x (rows, K) times the weights: (rows, N)."""
        inner = self.inner
        return verify_matmul(
            x,
            inner.weight,
            inner.scales,
            inner.biases,
            group_size=inner.group_size,
            bits=inner.bits,
            tiling=self.tiling,
            compiler=self.compiler,
        )

    @property
    def shape(self) -> Shape:
        """Of the weights."""
        inner = self.inner
        *experts, n, groups = inner.scales.shape
        k = groups * inner.group_size
        return Shape(k, n, inner.group_size, inner.bits, *experts)

    def use(self, served: frozenset[int], tiling: Tiling, *, like_stock: bool = False) -> None:
        """Serve these numbers of rows, computed in tiles as given."""
        self.served, self.tiling, self.like_stock = served, tiling, like_stock

    def rows(self, count: int, seed: int = 0) -> mx.array:
        width, dtype = self.shape.k, self.inner.scales.dtype
        return mx.random.normal((1, count, width), key=mx.random.key(seed)).astype(dtype)

    def largest_weight(self) -> float:
        """At least as large as any magnitude of the matrix."""
        inner = self.inner
        scales, biases = (mx.abs(x.astype(mx.float32)) for x in (inner.scales, inner.biases))
        return float(((2**inner.bits - 1) * scales + biases).max())

    def key(self) -> tuple[Any, ...]:
        return type(self), self.shape, self.inner.scales.dtype

    def _takes(self, x: mx.array) -> bool:
        return x.dtype == self._dtype and x.size // x.shape[-1] in self.served

    def _product(self, x: mx.array) -> mx.array:
        output = self._compute(x.reshape(-1, x.shape[-1]))
        return output.reshape(*x.shape[:-1], output.shape[-1])


class VerifyLinear(RowKernel):
    """nn.QuantizedLinear, affine."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.QuantizedLinear and _affine(module)

    def __call__(self, x: mx.array) -> mx.array:
        if not self._takes(x):
            return self.run(self.inner, x)
        output = self._product(x)
        return output + self.inner.bias if self._biased else output


class VerifyHead(RowKernel):
    """nn.QuantizedEmbedding, affine, also used as the output layer."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is nn.QuantizedEmbedding and _affine(module)

    def __call__(self, tokens: mx.array) -> mx.array:
        rows: mx.array = self.inner(tokens)
        return rows

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits (..., vocabulary) of x (..., width)."""
        return self._product(x) if self._takes(x) else self.run(self.inner, x)

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        output: mx.array = module.as_linear(rows)
        return output


class VerifySwitch(RowKernel):
    """mlx-lm's QuantizedSwitchLinear, affine: a matrix for each expert. Each slot is a row of its
    own for stock MLX too; here an expert that several of them take is read once.

    top: experts that a token takes."""

    top = 1

    @staticmethod
    def fits(module: nn.Module) -> bool:
        # Whoever loads models imports mlx-lm; here its name says enough.
        kind = type(module)
        named = kind.__module__.startswith("mlx_lm.") and kind.__name__ == "QuantizedSwitchLinear"
        return named and _affine(module)

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        slots, rows = indices.size, x.size // x.shape[-1]
        # Sorted slots have lost their rows.
        tokens = slots // (indices.shape[-1] if indices.ndim > 1 else self.top)
        if (
            x.dtype != self._dtype
            or tokens not in self.served
            or x.shape[-2] != 1
            or not _slots_follow_rows(x, indices)
        ):
            output: mx.array = self.inner(x, indices, sorted_indices=sorted_indices)
            return output
        inner = self.inner
        output = verify_gather(
            x.reshape(rows, x.shape[-1]),
            inner.weight,
            inner.scales,
            inner.biases,
            indices.flatten(),
            group_size=inner.group_size,
            bits=inner.bits,
            tiling=self.tiling,
            compiler=self.compiler,
        ).reshape(*indices.shape, 1, -1)
        return output + mx.expand_dims(inner.bias[indices], -2) if self._biased else output

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        # Each row picks its own, whatever rows are beside it.
        scores = rows[..., mx.arange(self.shape.experts) % rows.shape[-1]]
        indices = mx.argsort(scores)[..., : self.top].astype(mx.uint32)
        output: mx.array = module(mx.expand_dims(rows, (-2, -3)), indices)
        return output.reshape(1, rows.shape[1], -1)


KINDS: tuple[type[RowKernel], ...] = (VerifyLinear, VerifyHead, VerifySwitch)


def experts_a_token(model: nn.Module) -> dict[int, int]:
    """Experts that a token takes, by the id of each layer of experts whose block says it."""
    found: dict[int, int] = {}
    # From the outermost in: what the nearest block says counts.
    for block in model.modules():
        said = (getattr(block, name, None) for name in TOP)
        top = next((number for number in said if isinstance(number, int)), 0)
        if top > 0:
            found |= {id(part): top for part in block.modules() if VerifySwitch.fits(part)}
    return found


def kernel_for(module: nn.Module, device: Device, top: int | None = None) -> RowKernel | None:
    """A module with a kernel in the place of a stock one; None where there is no kernel.

    top: of a layer of experts, how many a token takes; without it there is no kernel.
    """
    for kind in KINDS:
        if kind.fits(module) and (top or kind is not VerifySwitch):
            kernel = kind(device.stock(module), device.compiler)
            if isinstance(kernel, VerifySwitch):
                kernel.top = top or 1
            if fits(kernel.shape, module.scales.dtype, device.chip):
                return kernel
    return None


def _affine(module: nn.Module) -> bool:
    return module.get("biases") is not None and getattr(module, "mode", "affine") == "affine"


def _slots_follow_rows(x: mx.array, indices: mx.array) -> bool:
    """Whether slot i takes row i, or each row has the slots of one token."""
    batch, slots = tuple(x.shape[:-2]), tuple(indices.shape)
    return batch == slots or batch == (*slots[:-1], 1)
