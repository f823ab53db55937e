"""A verify forward's product: a few rows times a quantised matrix, each row as if it were alone.

Source: MLX's one-row kernels (mlx/backend/metal/kernels/quantized.h, `qmv_fast` and `qmv`), whose
products and sums are made here in the same order, for every row, with the weights read once.

Order: a lane takes 16 (8-bit: 8) values in turn, 32 lanes a block; products of a lane's values are
summed first, then scaled, then added to the lane's total, block after block; `simd_sum` adds the
lanes. Where K is not a multiple of 512, MLX's `qmv` takes half as many values a lane, and so does
this. Neither rows nor tiling take part, so any M gives a row the same bits.

Traffic: w, scales and biases once; x once for each `results` outputs (from cache); y once.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from metal.chip import M1, Chip
from metal.kernel import Compiler, Kernel

MATMUL = Kernel("verify_matmul", inputs=("x", "w", "scales", "biases"), outputs=("y",))
GATHER = Kernel(
    "verify_gather",
    inputs=("x", "w", "scales", "biases", "indices"),
    outputs=("y",),
    functions="verify_matmul",
)

MOST_ROWS = 16
DTYPES = (mx.float32, mx.float16, mx.bfloat16)
SIMDGROUPS = 2


@dataclass(frozen=True)
class Tiling:
    """results: outputs of one simdgroup. tile: rows of x in registers at once. Registers of a lane:
    about M * results + (tile + 1) * 16 floats, of 128."""

    results: int = 4
    tile: int = 4


TILINGS = (Tiling(4, 4), Tiling(4, 2), Tiling(8, 4), Tiling(8, 2))


@dataclass(frozen=True)
class Shape:
    """Of affine weights: n outputs of k inputs, quantised in groups; a matrix for each expert."""

    k: int
    n: int
    group_size: int
    bits: int
    experts: int = 0

    def __str__(self) -> str:
        experts = f"{self.experts} x " if self.experts else ""
        return f"{experts}{self.k} -> {self.n}, {self.bits} bits in groups of {self.group_size}"

    @property
    def weight_bytes(self) -> int:
        """Of one matrix with 16-bit scales and biases."""
        return self.k * self.n * self.bits // 8 + 4 * self.k * self.n // self.group_size


def fits(shape: Shape, dtype: mx.Dtype, chip: Chip | None) -> bool:
    """Whether there is a kernel; whether it is worth using, only a race on the machine says."""
    return (
        chip is not None
        and chip.generation >= M1
        and shape.bits in (4, 8)
        and shape.group_size in (32, 64, 128)
        and shape.k % shape.group_size == 0
        # MLX hands smaller arrays over in another address space.
        and shape.k // shape.group_size * shape.n >= 8
        and dtype in DTYPES
    )


def verify_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    *,
    group_size: int,
    bits: int,
    tiling: Tiling = TILINGS[0],
    compiler: Compiler | None = None,
) -> mx.array:
    """x (M, K) times w (N, K) transposed: (M, N), M in 1..16, rounded once to x's dtype.

    w: uint32 (N, K * bits / 32) of `mx.quantize`. scales, biases: (N, K / group_size), x's dtype.
    """
    rows, k = x.shape
    n = scales.shape[-2]
    (y,) = MATMUL.compiled(compiler)(
        inputs=[x, w, scales, biases],
        template=[*_template(x.dtype, k, group_size, bits, tiling), ("M", rows)],
        grid=(32, _simdgroups(n, tiling), 1),
        threadgroup=(32, SIMDGROUPS, 1),
        output_shapes=[(rows, n)],
        output_dtypes=[x.dtype],
    )
    return y


def verify_gather(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    indices: mx.array,
    *,
    group_size: int,
    bits: int,
    tiling: Tiling = TILINGS[0],
    compiler: Compiler | None = None,
) -> mx.array:
    """Rows times the matrices of their experts: (slots, N).

    x: (slots, K), or (slots / s, K) when s slots in a row share one. w, scales, biases: as for
    `verify_matmul`, with the experts before them. indices: uint32 (slots,), experts in any order.
    An expert is read once for each 16 of its slots.
    """
    slots, k = indices.size, x.shape[1]
    n = scales.shape[-2]
    (y,) = GATHER.compiled(compiler)(
        inputs=[x, w, scales, biases, indices.astype(mx.uint32)],
        template=[
            *_template(x.dtype, k, group_size, bits, tiling),
            ("M", min(slots, MOST_ROWS)),
            ("SLOTS", slots),
            ("SLOTS_A_ROW", slots // x.shape[0]),
        ],
        grid=(32, _simdgroups(n, tiling), slots),
        threadgroup=(32, SIMDGROUPS, 1),
        output_shapes=[(slots, n)],
        output_dtypes=[x.dtype],
    )
    return y


def reference(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    *,
    group_size: int,
    bits: int,
) -> mx.array:
    """What `verify_matmul` computes, in MLX operations and float32: (M, N)."""
    scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    dense = mx.dequantize(w, scales, biases, group_size=group_size, bits=bits)
    return x.astype(mx.float32) @ mx.swapaxes(dense, -1, -2)


def reference_gather(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    indices: mx.array,
    *,
    group_size: int,
    bits: int,
) -> mx.array:
    """What `verify_gather` computes, in MLX operations and float32: (slots, N)."""
    rows = mx.repeat(x, indices.size // x.shape[0], axis=0)[:, None]
    matrix = w[indices], scales[indices], biases[indices]
    return reference(rows, *matrix, group_size=group_size, bits=bits)[:, 0]


def _simdgroups(n: int, tiling: Tiling) -> int:
    a_threadgroup = SIMDGROUPS * tiling.results
    return SIMDGROUPS * ((n + a_threadgroup - 1) // a_threadgroup)


def _template(
    dtype: mx.Dtype, k: int, group_size: int, bits: int, tiling: Tiling
) -> list[tuple[str, mx.Dtype | int]]:
    return [
        ("T", dtype),
        ("GROUP", group_size),
        ("BITS", bits),
        ("PACKS", 2 if k % 512 == 0 else 1),
        ("RESULTS", tiling.results),
        ("TILE", tiling.tile),
    ]
