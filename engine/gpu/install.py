"""Puts Metal kernels into a loaded model, at the shapes and numbers of rows where they are right,
exact by row, and worth it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.nn as nn

from engine.cpu.functions import Named
from engine.cpu.install import replace_parts
from engine.errors import RequestError
from engine.gpu import attention, recurrence
from engine.gpu.device import Device
from engine.gpu.examine import Trials, examine
from engine.gpu.modules import RowKernel, experts_a_token, kernel_for
from engine.targets.gated_delta import RecordingGatedDelta
from engine.targets.gated_delta_tape import TapeKernels
from metal.race import Findings, served
from metal.verify_matmul import Tiling

Verdict = tuple[frozenset[int], Tiling, Findings]


@dataclass
class Installed:
    """modules: on a kernel. products: by kind and shape, the numbers of rows that a kernel serves,
    how it is tiled, and what was found out about it. layers: what is against one, likewise."""

    modules: int = 0
    products: dict[tuple[Any, ...], Verdict] = field(default_factory=dict)
    layers: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def __str__(self) -> str:
        said = f"Metal kernels in {self.modules} modules"
        for (kind, *shape), (rows, _, findings) in self.products.items():
            name = f"{kind.__name__} {_named(shape)}"
            if rows:
                said += f"; {name}: {_ranges(rows)} rows"
            elif findings.fault:
                said += f"; not for {name}: {findings.fault}"
        for (kind, *shape), against in self.layers.items():
            name = f"{kind} {_named(shape)}"
            said += f"; not for {name}: {against}" if against else f"; {name}"
        return said


def install(
    model: nn.Module,
    asked: str,
    *,
    trials: Trials | None = None,
    device: Device | None = None,
) -> str:
    """Use Metal kernels in `model`; says what is used or why nothing is.

    asked: ``auto`` or ``off``. device: this machine's unless given. What takes time is Metal, which
    compiles for each shape. Raises RequestError for a CPU's instruction set.
    """
    if asked == "off":
        return "stock MLX: kernels are turned off"
    if asked != "auto":
        raise RequestError(
            f"kernels: {asked} cannot be used: MLX computes on a GPU here", field="kernels"
        )
    gpu = device or Device.here()
    if gpu is None:
        return "stock MLX: this GPU is not known"
    installed, tried, tops = Installed(), trials or Trials(), experts_a_token(model)

    def choose(module: nn.Module) -> nn.Module:
        if isinstance(module, RecordingGatedDelta):
            _use_tape(module, installed, gpu, tried)
            return module
        kernel = kernel_for(module, gpu, tops.get(id(module)))
        if kernel is not None:
            return kernel if _use(kernel, installed, tried) else kernel.inner
        chosen = attention.chosen(module, gpu, tried, installed.layers)
        installed.modules += chosen is not module
        return chosen

    replace_parts(model, choose)
    if not installed.products and not installed.layers:
        return "stock MLX: no module of this model has a Metal kernel"
    return str(installed)


def own_bits(model: nn.Module) -> str:
    """The kernels in `model` whose rows have other bits than stock MLX's, in words.

    Which numbers of rows the others serve is a matter of time, and may differ from load to load.
    """
    modules = list(model.modules())
    kernels = {
        f"{type(module).__name__} {module.shape}"
        for module in modules
        if isinstance(module, RowKernel) and not module.like_stock
    }
    if any(isinstance(module, Named) for module in modules):
        kernels.add("attention")
    return f"Metal, own bits: {', '.join(sorted(kernels)) or 'none'}"


def _use_tape(
    recorder: RecordingGatedDelta, installed: Installed, device: Device, trials: Trials
) -> None:
    key = recurrence.key_of(recorder)
    if key not in installed.layers:
        installed.layers[key] = recurrence.use_tape(recorder, device, trials)
    elif not installed.layers[key]:
        recorder.kernels = TapeKernels(device.chip, device.compiler)
    installed.modules += recorder.kernels is not None


def _use(kernel: RowKernel, installed: Installed, trials: Trials) -> frozenset[int]:
    key = kernel.key()
    if key not in installed.products:
        findings = examine(kernel, trials)
        installed.products[key] = (served(findings), kernel.tiling, findings)
    rows, tiling, findings = installed.products[key]
    kernel.use(rows, tiling, like_stock=findings.like_stock)
    installed.modules += bool(rows)
    return rows


def _named(shape: list[Any]) -> str:
    return " ".join(str(part).removeprefix("mlx.core.") for part in shape)


def _ranges(rows: frozenset[int]) -> str:
    """1, 2, 3, 6 as ``1-3, 6``."""
    firsts = [row for row in sorted(rows) if row - 1 not in rows]
    lasts = [row for row in sorted(rows) if row + 1 not in rows]
    return ", ".join(
        str(first) if first == last else f"{first}-{last}"
        for first, last in zip(firsts, lasts, strict=True)
    )
