"""A GPU to run kernels on: how it adds, fuses and schedules, and who watches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from . import launch
from .dialect import refused
from .fault import KernelFault
from .signature import entry, signature
from .toolchain import build
from .translate import translate

Size = tuple[int, int, int]
SumOrder = Literal["ascending", "descending", "sequential"]
Contraction = Literal["off", "on", "fast"]
Schedule = Literal["forward", "backward"] | int
Sanitizer = Literal["address", "thread", "memory"]


@dataclass(frozen=True)
class Machine:
    """One way in which a GPU may run a kernel.

    What is not specified of the hardware is a field here; a claim that must hold on hardware must
    hold for every value.

    sum_order: the tree in which simd_sum adds its 32 values.
    contraction: whether a * b + c is fused: never, within an expression (as Apple's compiler
        does), wherever the optimiser sees it.
    schedule: the order in which lanes, simdgroups and threadgroups get their turns; a number is
        the seed of a random one.
    sanitizer: "address" (with undefined behaviour), "thread" or "memory"; in a process of its own.
    flush_denormals: whether denormal numbers are zero.
    portable_fibers: whether lanes switch by the C library's ucontext, as on other CPUs than x86-64.
    check_outputs: whether a floating-point output that shows a value nobody wrote is a fault.
    """

    sum_order: SumOrder = "ascending"
    contraction: Contraction = "on"
    schedule: Schedule = "forward"
    sanitizer: Sanitizer | None = None
    flush_denormals: bool = False
    portable_fibers: bool = False
    check_outputs: bool = True

    def metal_kernel(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
        atomic_outputs: bool = False,
        compile_options: Mapping[str, Any] | None = None,
    ) -> EmulatedKernel:
        """Takes the place of `mx.fast.metal_kernel`, and so does what it returns."""
        return EmulatedKernel(
            self,
            name,
            tuple(input_names),
            tuple(output_names),
            source,
            header,
            ensure_row_contiguous,
            atomic_outputs,
        )

    def run_function(
        self,
        source: str,
        function: str,
        arguments: Sequence[mx.array | int | float | bool],
        outputs: Mapping[int, tuple[tuple[int, ...], mx.Dtype]],
        attributes: Sequence[str],
        threadgroups: Size,
        threadgroup: Size,
        constants: Mapping[int, bool | int] | None = None,
    ) -> list[mx.array]:
        """Runs a whole [[kernel]] function, such as one of MLX's headers.

        `arguments` are its buffers in order without the outputs, `outputs` gives (shape, dtype) at
        the places of those; numbers are int32, float32 or bool, arrays keep their type. The grid is
        in threadgroups. `constants` are function constants by number.
        """
        given = iter(arguments)
        buffers: launch.Buffers = []
        for index in range(len(arguments) + len(outputs)):
            if index in outputs:
                buffers.append(empty(*outputs[index], None))
            else:
                value = next(given)
                buffers.append(host(value if isinstance(value, mx.array) else mx.array(value)))
        unit = (
            f"{translate(source, frozenset((constants or {}).items()))}\n"
            f"{entry(function, len(buffers), attributes)}"
        )
        grid = (
            threadgroups[0] * threadgroup[0],
            threadgroups[1] * threadgroup[1],
            threadgroups[2] * threadgroup[2],
        )
        self.launch(unit, grid, threadgroup, buffers)
        return [
            self._result(str(index), buffers[index], dtype)
            for index, (_, dtype) in sorted(outputs.items())
        ]

    def launch(
        self, unit: str, grid: Size, threadgroup: Size, buffers: launch.Buffers
    ) -> launch.Counts:
        """Builds a translation unit and runs it over `grid`, a size in threads."""
        path = build(
            unit,
            contraction=self.contraction,
            sanitizer=self.sanitizer,
            portable=self.portable_fibers,
        )
        seeded = isinstance(self.schedule, int)
        dispatch = launch.Dispatch(
            grid=grid,
            threadgroup=threadgroup,
            schedule=launch.SCHEDULES.index("random" if seeded else str(self.schedule)),
            sum_order=launch.SUM_ORDERS.index(self.sum_order),
            flush_denormals=self.flush_denormals,
            seed=int(self.schedule) if seeded else 0,
        )
        if self.sanitizer is not None:
            return launch.run_program(path, dispatch, buffers)
        return launch.library(path).run(dispatch, buffers)

    def _result(self, name: str, buffer: NDArray[np.generic], dtype: mx.Dtype) -> mx.array:
        if self.check_outputs and dtype in (mx.float32, mx.float16, mx.bfloat16):
            bits = buffer.view(f"u{buffer.itemsize}")
            unwritten = np.flatnonzero(bits == np.iinfo(bits.dtype).max)
            if len(unwritten):
                raise KernelFault(
                    "poison",
                    f"output {name} of shape {buffer.shape} has {len(unwritten)} elements that "
                    f"nobody wrote or that come from such a value, first at flat index "
                    f"{unwritten[0]}",
                )
        result = mx.array(buffer)
        return result.view(dtype) if dtype == mx.bfloat16 else result


@dataclass
class EmulatedKernel:
    """What `mx.fast.metal_kernel` returns, run by a `Machine`."""

    machine: Machine
    name: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    source: str
    header: str
    ensure_row_contiguous: bool
    atomic_outputs: bool
    # Of the last run.
    counts: launch.Counts | None = field(default=None, compare=False)

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array | int | float | bool],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: Size,
        threadgroup: Size,
        template: Iterable[tuple[str, Any]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
    ) -> list[mx.array]:
        """Runs the kernel now and returns its outputs, which are NaN where it wrote nothing and
        no `init_value` is given. Raises KernelFault."""
        arrays = [value if isinstance(value, mx.array) else mx.array(value) for value in inputs]
        unit, passed = self._unit(arrays, output_dtypes, list(template or ()))
        if verbose:
            print(unit)
        buffers: launch.Buffers = [self._buffer(arrays[index], kind) for index, kind in passed]
        outputs = [
            empty(tuple(shape), dtype, init_value)
            for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
        ]
        self.counts = self.machine.launch(unit, grid, threadgroup, buffers + outputs)
        return [
            self.machine._result(name, output, dtype)
            for name, output, dtype in zip(self.output_names, outputs, output_dtypes, strict=True)
        ]

    def _buffer(self, array: mx.array, kind: str) -> NDArray[np.generic]:
        """What MLX passes for an input: its elements, or what its shape says."""
        if kind == "ndim":
            return np.array([array.ndim], np.int32)
        if kind == "shape":
            return np.array(array.shape, np.int32)
        if self.ensure_row_contiguous:
            if kind == "":
                return host(array)
            return np.array(np.cumprod([1, *array.shape[:0:-1]])[::-1], np.int64)
        memory, strides = _as_laid_out(array)
        return memory if kind == "" else np.array(strides, np.int64)

    def _unit(
        self, arrays: list[mx.array], output_dtypes: Sequence[mx.Dtype], template: list[Any]
    ) -> tuple[str, tuple[tuple[int, str], ...]]:
        types = frozenset(name for name, value in template if not isinstance(value, int))
        wrong = refused(self.header, self.source, types)
        if wrong:
            raise KernelFault("compile", f"{self.name} for Metal: {'; '.join(wrong)}")
        function = f"custom_kernel_{self.name}"
        written = signature(
            function,
            self.source,
            list(zip(self.input_names, arrays, strict=True)),
            list(zip(self.output_names, output_dtypes, strict=True)),
            template,
            self.atomic_outputs,
        )
        buffers = len(written.buffers) + len(self.output_names)
        unit = (
            "using namespace metal;\n"
            f'#line 1 "{self.name}.header.metal"\n{translate(self.header)}\n'
            f"{written.head}"
            f'#line 1 "{self.name}.metal"\n{translate(self.source)}\n}}\n'
            f"{entry(function + written.template_arguments, buffers, written.attributes)}"
        )
        return unit, written.buffers


def host(array: mx.array) -> NDArray[np.generic]:
    """The elements of an array in row-major order, read-only; bfloat16 as its bits."""
    # An array of its own: what MLX shares may lie in the middle of something larger.
    copied = np.array(_view(array), order="C")
    copied.setflags(write=False)
    return copied


def _view(array: mx.array) -> NDArray[np.generic]:
    """The array where MLX has it, with its strides."""
    bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    mx.eval(bits)
    return np.array(bits, copy=False)


def _as_laid_out(array: mx.array) -> tuple[NDArray[np.generic], list[int]]:
    """The memory between an array's first and last element, and its strides in elements."""
    view = _view(array)
    strides = [stride // view.itemsize for stride in view.strides]
    reach = 1 + sum((size - 1) * stride for size, stride in zip(view.shape, strides, strict=True))
    memory = np.lib.stride_tricks.as_strided(view, (reach,), (view.itemsize,)).copy()
    memory.setflags(write=False)
    return memory, strides


def empty(shape: tuple[int, ...], dtype: mx.Dtype, value: float | None) -> NDArray[np.generic]:
    """An output before the kernel ran: bytes of ones, which read as NaN, or `value`."""
    held = host(mx.full(shape, 0 if value is None else value, dtype)).copy()
    if value is None:
        return np.frombuffer(b"\xff" * held.nbytes, held.dtype).reshape(shape).copy()
    return held
