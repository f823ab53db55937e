"""mlx-lm's own kernels of the gated delta rule, run by the emulator."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from emulator import Machine
from mlx_lm.models import gated_delta as theirs

from engine.targets.recurrent import with_names
from metal.gated_delta import Rows

Recurrence = Callable[[Rows, mx.array], tuple[mx.array, mx.array]]


def stock_kernel(machine: Machine) -> Recurrence:
    """mlx-lm's `gated_delta_kernel`, which picks a kernel as it does on a Mac."""
    run = with_names(theirs._gated_delta_kernel_impl, _kernels(machine))

    def single(rows: Rows, state: mx.array) -> tuple[mx.array, mx.array]:
        y, after = run(*rows, state, allow_packed=True)
        return y, after

    return single


def stock_update(machine: Machine) -> Callable[..., tuple[mx.array, mx.array]]:
    """mlx-lm's `gated_delta_update`, as if there were a GPU here."""
    single = stock_kernel(machine)
    gpu = SimpleNamespace(
        gpu=mx.default_device(),
        default_device=mx.default_device,
        metal=SimpleNamespace(is_available=lambda: True),
        **{name: getattr(mx, name) for name in ("sigmoid", "zeros", "float32", "array")},
    )
    names = {
        "mx": gpu,
        "gated_delta_kernel": lambda *rows_and_state: _unmasked(single, rows_and_state),
    }
    update = with_names(theirs.gated_delta_update, names)
    update.__kwdefaults__ = theirs.gated_delta_update.__kwdefaults__
    return update


def _unmasked(single: Recurrence, arguments: tuple[Any, ...]) -> tuple[mx.array, mx.array]:
    q, k, v, g, beta, state, mask = arguments
    assert mask is None
    return single((q, k, v, g, beta), state)


def _kernels(machine: Machine) -> dict[str, Any]:
    metal = SimpleNamespace(is_available=lambda: True)
    fast = SimpleNamespace(metal_kernel=machine.metal_kernel)
    here = {"mx": SimpleNamespace(metal=metal, fast=fast)}
    return {
        "_gated_delta_kernel": with_names(theirs._make_gated_delta_kernel, here)(),
        "_gated_delta_kernel_packed": with_names(theirs._make_gated_delta_packed_kernel, here)(),
    }
