"""The function that MLX makes of a custom kernel's body, word for word.

MLX prints its own text when a call with ``verbose=True`` is traced, on machines without Metal too;
a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

# Inputs with fewer elements than this are in the constant address space.
CONSTANT_ELEMENTS = 8
TYPES = {
    mx.float32: "float",
    mx.float16: "float16_t",
    mx.bfloat16: "bfloat16_t",
    mx.bool_: "bool",
    mx.int8: "int8_t",
    mx.int16: "int16_t",
    mx.int32: "int32_t",
    mx.int64: "int64_t",
    mx.uint8: "uint8_t",
    mx.uint16: "uint16_t",
    mx.uint32: "uint32_t",
    mx.uint64: "uint64_t",
}
# Attribute: (its type, where the lane's context has it), in the order in which MLX lists them.
ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": (
        "uint",
        "8 * context->dispatch_simdgroups_per_threadgroup",
    ),
    "dispatch_simdgroups_per_threadgroup": (
        "uint",
        "context->dispatch_simdgroups_per_threadgroup",
    ),
    "dispatch_threads_per_threadgroup": (
        "uint3",
        "emulator::three(context->dispatch_threads_per_threadgroup)",
    ),
    "grid_origin": ("uint3", "uint3(0)"),
    "grid_size": ("uint3", "emulator::three(context->threads_per_grid)"),
    "quadgroup_index_in_threadgroup": ("uint", "context->thread_index_in_threadgroup / 4"),
    "quadgroups_per_threadgroup": ("uint", "8 * context->simdgroups_per_threadgroup"),
    "simdgroup_index_in_threadgroup": ("uint", "context->simdgroup_index_in_threadgroup"),
    "simdgroups_per_threadgroup": ("uint", "context->simdgroups_per_threadgroup"),
    "thread_execution_width": ("uint", "32u"),
    "thread_index_in_quadgroup": ("uint", "context->thread_index_in_simdgroup % 4"),
    "thread_index_in_simdgroup": ("uint", "context->thread_index_in_simdgroup"),
    "thread_index_in_threadgroup": ("uint", "context->thread_index_in_threadgroup"),
    "thread_position_in_grid": ("uint3", "emulator::three(context->thread_position_in_grid)"),
    "thread_position_in_threadgroup": (
        "uint3",
        "emulator::three(context->thread_position_in_threadgroup)",
    ),
    "threadgroup_position_in_grid": (
        "uint3",
        "emulator::three(context->threadgroup_position_in_grid)",
    ),
    "threadgroups_per_grid": ("uint3", "emulator::three(context->threadgroups_per_grid)"),
    "threads_per_grid": ("uint3", "emulator::three(context->threads_per_grid)"),
    "threads_per_simdgroup": ("uint", "32u"),
    "threads_per_threadgroup": ("uint3", "emulator::three(context->threads_per_threadgroup)"),
}


@dataclass(frozen=True)
class Signature:
    """The head of a kernel's function, and what a caller passes for each of its parameters."""

    head: str
    template_arguments: str
    # Input that a buffer belongs to, and what of it: "" its elements, else shape, strides or ndim.
    buffers: tuple[tuple[int, str], ...]
    attributes: tuple[str, ...]


def signature(
    function: str,
    source: str,
    inputs: Sequence[tuple[str, mx.array]],
    outputs: Sequence[tuple[str, mx.Dtype]],
    template: Sequence[tuple[str, Any]],
    atomic_outputs: bool,
) -> Signature:
    """The signature that MLX writes around `source` for these arguments."""
    parameters: list[str] = []
    buffers: list[tuple[int, str]] = []

    def parameter(declaration: str) -> None:
        parameters.append(f"  {declaration} [[buffer({len(parameters)})]]")

    for index, (name, array) in enumerate(inputs):
        space = "constant" if array.size < CONSTANT_ELEMENTS else "device"
        mark = "&" if array.ndim == 0 else "*"
        parameter(f"const {space} {TYPES[array.dtype]}{mark} {name}")
        buffers.append((index, ""))
        if array.ndim == 0:
            continue
        for kind, declared in (("shape", "int*"), ("strides", "int64_t*"), ("ndim", "int&")):
            if f"{name}_{kind}" in source:
                parameter(f"const constant {declared} {name}_{kind}")
                buffers.append((index, kind))
    for name, dtype in outputs:
        held = f"atomic<{TYPES[dtype]}>" if atomic_outputs else TYPES[dtype]
        parameter(f"device {held}* {name}")
    attributes = tuple(name for name in ATTRIBUTES if name in source)
    parameters += [f"  {ATTRIBUTES[name][0]} {name} [[{name}]]" for name in attributes]
    declared = ", ".join(f"{_kind(value)} {name}" for name, value in template)
    head = f"template <{declared}>\n" if template else ""
    head += f"[[kernel]] void {function}(\n" + ",\n".join(parameters) + ") {\n"
    arguments = ", ".join(_argument(value) for _, value in template)
    return Signature(head, f"<{arguments}>" if template else "", tuple(buffers), attributes)


def entry(function: str, buffers: int, attributes: Sequence[str]) -> str:
    """The function through which the scheduler calls a kernel for one lane."""
    passed = [f"emulator::Buffer{{buffers[{index}]}}" for index in range(buffers)]
    passed += [ATTRIBUTES[name][1] for name in attributes]
    return (
        '#line 1 "entry"\n'
        'extern "C" void emulator_entry(void** buffers, const emulator::LaneContext* context) {\n'
        f"  {function}({', '.join(passed)});\n}}\n"
    )


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else "typename"


def _argument(value: Any) -> str:
    return str(int(value)) if isinstance(value, int) else TYPES[value]
