"""A Mac's GPU for the engine: stock modules run MLX's own Metal kernels, ours run ours, all of them
in the emulator."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from emulator import Machine, mlx_kernels

from engine.cpu.functions import Named
from engine.cpu.install import replace_parts
from engine.gpu.device import Device
from engine.gpu.examine import Trials
from metal.chip import Chip
from metal.verify_matmul import TILINGS

# From here on MLX takes a matrix kernel: lower than on any chip, so that tiny forwards meet it.
LIMIT = 6


class OnMachine(nn.Module):
    """A quantised linear layer or embedding that MLX's Metal kernels multiply with."""

    def __init__(self, inner: nn.Module, machine: Machine) -> None:
        super().__init__()
        self.inner, self.machine = inner, machine

    def __getattr__(self, name: str) -> Any:
        if name in self or "inner" not in self:
            return super().__getattr__(name)
        return getattr(self["inner"], name)

    def _product(self, x: mx.array) -> mx.array:
        inner = self.inner
        y = mlx_kernels.quantized_matmul(
            self.machine,
            x.reshape(-1, x.shape[-1]),
            inner.weight,
            inner.scales,
            inner.biases,
            group_size=inner.group_size,
            bits=inner.bits,
            limit=LIMIT,
        )
        return y.reshape(*x.shape[:-1], -1)

    def __call__(self, x: mx.array) -> mx.array:
        return self.inner(x) if isinstance(self.inner, nn.QuantizedEmbedding) else self._product(x)

    def as_linear(self, x: mx.array) -> mx.array:
        return self._product(x)


def gpu(machine: Machine) -> Device:
    """A base M4 whose every kernel runs on `machine`."""
    return Device(
        "emulated M4",
        Chip(16, "g"),
        machine.metal_kernel,
        lambda module: OnMachine(module, machine),
    )


def run_stock(model: nn.Module, machine: Machine) -> None:
    """Let every quantised product of `model` run MLX's Metal kernels."""

    def choose(module: nn.Module) -> nn.Module:
        quantised = type(module) in (nn.QuantizedLinear, nn.QuantizedEmbedding)
        return OnMachine(module, machine) if quantised else module

    replace_parts(model, choose)


def run_attention(model: nn.Module, function: Callable[..., mx.array]) -> None:
    """Let every attention layer of `model` call `function` for mlx-lm's own."""
    name = "scaled_dot_product_attention"

    def choose(module: nn.Module) -> nn.Module:
        calls = name in getattr(type(module).__call__, "__code__", run_attention.__code__).co_names
        return Named(module, {name: function}) if calls else module

    replace_parts(model, choose)


class EvenClock:
    """By which every chain of calls takes a second, whoever runs it."""

    def __init__(self) -> None:
        self._now = itertools.count()

    def __call__(self) -> float:
        return float(next(self._now))


def few(rows: int) -> Trials:
    """Trials that an emulator can afford."""
    return Trials(
        rows=rows,
        timed=(1, rows),
        values=1,
        contexts=(20, 30),
        edges=(),
        length=1,
        repeats=1,
        tilings=TILINGS[:1],
        clock=EvenClock(),
    )
