"""What a kernel is: a `.metal` file, the names of its arrays, and whatever can compile it.

`mx.fast.metal_kernel` takes the body of a function and writes its signature from the arguments. A
file here is laid out for that: functions first, then the body behind a line that says ``// body``.

    TRIPLE = Kernel("triple", inputs=("x",), outputs=("y",))

    def triple(x: mx.array, *, compiler: Compiler | None = None) -> mx.array:
        (y,) = TRIPLE.compiled(compiler)(
            inputs=[x],
            template=[("T", x.dtype)],
            grid=(x.size, 1, 1),          # in threads, as mx.fast.metal_kernel has it
            threadgroup=(32, 1, 1),
            output_shapes=[x.shape],
            output_dtypes=[x.dtype],
        )
        return y

The compiler is MLX's where there is Metal, and in the tests the emulator's: same parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx

FOLDER = Path(__file__).parent
BODY = "\n// body\n"


class Launch(Protocol):
    """A compiled kernel: what `mx.fast.metal_kernel` returns."""

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        template: Sequence[tuple[str, Any]],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> Sequence[mx.array]:
        """Run `grid` threads in groups of `threadgroup`; returns one array an output."""


# mx.fast.metal_kernel, or what has its parameters: name, input_names, output_names, source, header,
# ensure_row_contiguous.
Compiler = Callable[..., Launch]


@dataclass(frozen=True)
class Kernel:
    """name: of the function, and of its file ``metal/<name>.metal``.

    functions: name of a kernel whose file's functions this one's body uses too. inputs, outputs:
    names of the arrays in the body, in the order of a launch. contiguous: whether MLX makes inputs
    so first; else the body goes by their strides. A launch's `template` pairs are constants (int,
    bool) or types of the body.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    functions: str = ""
    contiguous: bool = True

    @property
    def header(self) -> str:
        """What stands before the body: functions, includes."""
        files = [self.functions, self.name] if self.functions else [self.name]
        return "".join(_parts(f"{name}.metal")[0] for name in files)

    @property
    def source(self) -> str:
        """The body."""
        return _parts(f"{self.name}.metal")[1]

    def compiled(self, compiler: Compiler | None = None) -> Launch:
        """By `compiler`, or by MLX for the GPU here. Made once for each compiler; a launch with new
        template values is compiled when it is first run."""
        return _compiled(self, compiler or mx.fast.metal_kernel)


@cache
def _compiled(kernel: Kernel, compiler: Compiler) -> Launch:
    return compiler(
        name=f"pillion_{kernel.name}",
        input_names=list(kernel.inputs),
        output_names=list(kernel.outputs),
        source=kernel.source,
        header=kernel.header,
        ensure_row_contiguous=kernel.contiguous,
    )


@cache
def _parts(file: str) -> tuple[str, str]:
    header, mark, body = (FOLDER / file).read_text(encoding="utf-8").partition(BODY)
    if not mark:
        raise ValueError(f"{file}: has no line `// body`")
    return header + "\n", body
