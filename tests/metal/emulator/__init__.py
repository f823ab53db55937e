"""Runs Metal kernels on the CPU, lane by lane, so that they can be tested without a Mac.

A `Machine` has the place of `mx.fast`: its `metal_kernel` takes the same arguments and returns what
is called the same way, so a kernel's own Python runs on either::

    from emulator import Machine

    def double(x, metal_kernel=mx.fast.metal_kernel):
        kernel = metal_kernel(
            name="double", input_names=["x"], output_names=["y"],
            source="uint i = thread_position_in_grid.x; y[i] = 2 * x[i];",
        )
        return kernel(
            inputs=[x], template=[("T", x.dtype)], grid=(x.size, 1, 1), threadgroup=(64, 1, 1),
            output_shapes=[x.shape], output_dtypes=[x.dtype],
        )[0]

    double(x, Machine().metal_kernel)                                # runs, or raises KernelFault
    double(x, Machine(sum_order="sequential", contraction="off").metal_kernel)
    double(x, Machine(schedule=7).metal_kernel)                      # a random schedule
    double(x, Machine(sanitizer="thread").metal_kernel)              # race detection

`every_machine()` are the machines on which a claim about bits has to hold. Arrays come back as
`mx.array`; what was compiled is kept in build/metal-emulator. Its README says what is covered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from .fault import KernelFault
from .machine import Contraction, EmulatedKernel, Machine, Schedule, SumOrder
from .toolchain import PACKAGES, compiler

__all__ = ["EmulatedKernel", "KernelFault", "Machine", "available", "every_machine", "missing"]

missing = f"needs Linux and clang: apt-get install --no-install-recommends {PACKAGES}"


def available() -> bool:
    """Whether there is a compiler that can build kernels; else `missing` says what to do."""
    return compiler() is not None


def every_machine(contractions: Sequence[Contraction] = ("off", "on")) -> Iterator[Machine]:
    """All orders of simd_sum, each under every contraction; schedules take turns."""
    orders: list[SumOrder] = ["ascending", "descending", "sequential"]
    schedules: Iterator[Schedule] = itertools.cycle(["forward", "backward", 1, 2, 3])
    for contraction in contractions:
        for order in orders:
            yield Machine(order, contraction, next(schedules))
