"""Kernels for Linux on x86-64 and Arm: an MLX extension with what decode, verify and prefill use.

Stock MLX on a CPU computes one row after the other and most of a layer as many small operations.
Here a forward of several rows reads the weights once, and every row has the bits it would have
alone. The C++ is in `kernels/`, compiled when Pillion is installed (`build.py`); elsewhere, and
where there was no compiler, stock MLX is what runs.
"""

from __future__ import annotations

import functools
import importlib
import sys
from importlib.metadata import version
from typing import Any

from engine.cpu.build import MODULE, BuildError, compiler, fingerprint

# From the slowest to the fastest. A process uses one: products with quantised weights have the same
# bits on each, other kernels do not.
INSTRUCTION_SETS = (
    "neon",
    "avx2",
    "avx2_vnni",
    "avx512",
    "avx512_vnni",
    "avx512_bf16",
    "amx",
)


class Unavailable(Exception):
    """Why stock MLX is used here."""


@functools.cache
def extension() -> Any:
    """The extension module, using the best instruction set of this processor.

    Raises Unavailable, which says what is missing.
    """
    if not MODULE.exists():
        try:
            compiler()
        except BuildError as error:
            raise Unavailable(str(error)) from error
        raise Unavailable(f"they are not built: {sys.executable} -m engine.cpu builds them")
    import mlx.core as mx

    if mx.default_device().type != mx.DeviceType.cpu:
        raise Unavailable(f"MLX computes on {mx.default_device()}")
    try:
        module: Any = importlib.import_module("engine.cpu._kernels")
    except ImportError as error:
        raise Unavailable(f"{MODULE.name} does not load: {error}") from error
    again = f"{sys.executable} -m engine.cpu builds them again"
    if module.mlx_version != (running := version("mlx")):
        raise Unavailable(
            f"they are built for mlx {module.mlx_version} and this is {running}: {again}"
        )
    if module.sources != fingerprint():
        raise Unavailable(f"they are built from other sources: {again}")
    if not module.instruction_sets():
        raise Unavailable("this processor has no AVX2")
    try:
        # The two share `mlx.core.array` only where both are built with one version of nanobind.
        module.use(module.instruction_sets()[0])
        module.swiglu(mx.zeros(1), mx.zeros(1))
    except TypeError as error:
        raise Unavailable(f"they were built for another mlx: {error}") from error
    module.use(max(module.instruction_sets(), key=INSTRUCTION_SETS.index))
    return module


def use(asked: str) -> None:
    """From now on compute with this instruction set: a name, or ``auto`` for the best.

    Raises Unavailable, also where the processor lacks it.
    """
    module = extension()
    there = sorted(module.instruction_sets(), key=INSTRUCTION_SETS.index)
    if asked != "auto" and asked not in there:
        raise Unavailable(f"this processor has {', '.join(there)}")
    module.use(there[-1] if asked == "auto" else asked)


def describe() -> str:
    """What is used here, for `doctor`; raises Unavailable."""
    name: str = extension().used()
    return name.replace("_", "-").upper()
