"""A CUDA GPU in the place of `mx.fast`: the kernels' bodies, really in parallel. Needs cupy.

It shows what an emulator that runs one lane after another cannot: that nothing depends on the
order in which thousands of threads really run. Of Apple's compiler, its arithmetic or its speed it
says nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

SHIM = Path(__file__).with_name("shim.h")
TYPES = {
    mx.float32: "float",
    mx.float16: "half",
    mx.bfloat16: "bfloat",
    mx.int32: "int",
    mx.uint32: "uint",
    mx.int64: "long long",
    mx.uint8: "uchar",
    mx.bool_: "bool",
}
Size = tuple[int, int, int]
Template = Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class CudaGpu:
    """contract: whether the compiler may fuse a * b + c."""

    contract: bool = True

    def metal_kernel(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
    ) -> CudaKernel:
        """Takes the place of `mx.fast.metal_kernel`; inputs are made contiguous in any case."""
        return CudaKernel(self, name, tuple(input_names), tuple(output_names), source, header)


@dataclass(frozen=True)
class CudaKernel:
    """What `mx.fast.metal_kernel` returns, on a CUDA GPU."""

    gpu: CudaGpu
    name: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    source: str
    header: str

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        template: Template,
        grid: Size,
        threadgroup: Size,
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        import cupy

        text = self.unit([(x.dtype, x.ndim) for x in inputs], output_dtypes, template, grid)
        kernel = _compiled(text, self.name, self.gpu.contract)
        outputs = [
            _poisoned(cupy, tuple(shape), dtype)
            for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
        ]
        arguments: list[Any] = []
        for x in inputs:
            arguments.append(cupy.asarray(_host(x)))
            if x.ndim:
                arguments += [
                    cupy.asarray(np.array(x.shape, np.int32)),
                    cupy.asarray(np.array(_strides(x.shape), np.int64)),
                ]
        blocks = tuple(-(-size // own) for size, own in zip(grid, threadgroup, strict=True))
        kernel(blocks, threadgroup, tuple(arguments + outputs))
        return [
            _device(cupy.asnumpy(output), dtype)
            for output, dtype in zip(outputs, output_dtypes, strict=True)
        ]

    def unit(
        self,
        inputs: Sequence[tuple[mx.Dtype, int]],
        outputs: Sequence[mx.Dtype],
        template: Template,
        grid: Size,
    ) -> str:
        """The translation unit. inputs: dtype and number of dimensions of each. Each array comes
        with its shape and strides; one without dimensions is a value."""
        parameters = []
        values = ""
        for name, (dtype, dimensions) in zip(self.input_names, inputs, strict=True):
            if dimensions:
                parameters += [
                    f"const {TYPES[dtype]}* {name}",
                    f"const int* {name}_shape",
                    f"const long long* {name}_strides",
                ]
            else:
                parameters.append(f"const {TYPES[dtype]}* {name}_at")
                values += f"const {TYPES[dtype]}& {name} = *{name}_at;\n"
        for name, dtype in zip(self.output_names, outputs, strict=True):
            parameters.append(f"{TYPES[dtype]}* {name}")
        # Metal cuts the last threadgroups to the grid; CUDA's blocks are all of one size.
        inside = " || ".join(
            f"thread_position_in_grid.{axis} >= {size}u"
            for axis, size in zip("xyz", grid, strict=True)
        )
        return (
            f"{SHIM.read_text(encoding='utf-8')}\nusing namespace metal;\n{self.header}\n"
            f'extern "C" __global__ void {self.name}({", ".join(parameters)}) {{\n'
            f"{_constants(template)}if ({inside}) return;\n{values}{self.source}\n}}\n"
        )


def _constants(template: Mapping[str, Any] | Template) -> str:
    lines = ""
    for name, value in dict(template).items():
        if isinstance(value, bool):
            lines += f"constexpr bool {name} = {str(value).lower()};\n"
        elif isinstance(value, int):
            lines += f"constexpr int {name} = {value};\n"
        else:
            lines += f"using {name} = {TYPES[value]};\n"
    return lines


@functools.cache
def _compiled(text: str, name: str, contract: bool) -> Any:
    import cupy

    options = ("--std=c++17", "-default-device", f"--fmad={str(contract).lower()}")
    return cupy.RawModule(code=text, options=options).get_function(name)


def _host_type(dtype: mx.Dtype) -> str:
    if dtype in (mx.float16, mx.bfloat16):
        return "uint16"
    return "bool" if dtype == mx.bool_ else str(dtype).removeprefix("mlx.core.")


def _poisoned(cupy: Any, shape: tuple[int, ...], dtype: mx.Dtype) -> Any:
    """An output full of NaN, so that what nobody writes is seen."""
    filled = cupy.full(shape, np.iinfo(f"uint{8 * dtype.size}").max, f"uint{8 * dtype.size}")
    return filled.view(_host_type(dtype))


def _host(x: mx.array) -> np.ndarray[Any, Any]:
    """The same bytes; 16-bit floats as integers."""
    return np.array(x.view(mx.uint16) if x.dtype in (mx.float16, mx.bfloat16) else x)


def _device(x: np.ndarray[Any, Any], dtype: mx.Dtype) -> mx.array:
    made = mx.array(x)
    return made.view(dtype) if dtype in (mx.float16, mx.bfloat16) else made


def _strides(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides
