"""Quantised matrices and rows for tests of the verify products, and how far a result is off."""

from __future__ import annotations

import mlx.core as mx
from emulator import Machine

from metal.verify_matmul import TILINGS, Tiling, reference, verify_gather, verify_matmul

Matrix = tuple[mx.array, mx.array, mx.array]

# What rounding a result may cost it, and the smallest number above zero.
HALF_AN_ULP = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}
SMALLEST = {mx.float32: 2.0**-149, mx.float16: 2.0**-24, mx.bfloat16: 2.0**-133}


def weights(
    k: int, n: int, group_size: int, bits: int, dtype: mx.Dtype, *experts: int
) -> tuple[mx.array, mx.array, mx.array]:
    w = mx.random.normal((*experts, n, k), key=mx.random.key(k))
    packed, scales, biases = mx.quantize(w, group_size, bits)
    return packed, scales.astype(dtype), biases.astype(dtype)


def rows_of(count: int, k: int, dtype: mx.Dtype) -> mx.array:
    return mx.random.normal((count, k), key=mx.random.key(7)).astype(dtype)


def multiply(
    machine: Machine,
    x: mx.array,
    matrix: Matrix,
    group_size: int,
    bits: int,
    tiling: Tiling = TILINGS[0],
) -> mx.array:
    return verify_matmul(
        x,
        *matrix,
        group_size=group_size,
        bits=bits,
        tiling=tiling,
        compiler=machine.metal_kernel,
    )


def gather(
    machine: Machine,
    x: mx.array,
    matrix: Matrix,
    indices: mx.array,
    group_size: int,
    bits: int,
    tiling: Tiling = TILINGS[0],
) -> mx.array:
    return verify_gather(
        x,
        *matrix,
        indices,
        group_size=group_size,
        bits=bits,
        tiling=tiling,
        compiler=machine.metal_kernel,
    )


def expert(matrix: Matrix, index: int) -> Matrix:
    packed, scales, biases = matrix
    return packed[index], scales[index], biases[index]


def off(
    got: mx.array, x: mx.array, matrix: Matrix, group_size: int, bits: int, *, small: bool = False
) -> float:
    """The largest error, as a share of the allowed one: rounding of a float32 sum of K products
    scale * q + bias, and of the result. small: whether denormal numbers may take part, which lose
    up to the smallest number there is."""
    _, scales, biases = matrix
    expected = reference(x, *matrix, group_size=group_size, bits=bits)
    most = (2**bits - 1) * mx.abs(scales).astype(mx.float32) + mx.abs(biases).astype(mx.float32)
    wide = mx.repeat(most, group_size, axis=-1)
    sums = mx.abs(x.astype(mx.float32)) @ wide.T
    allowed = 2.0**-21 * sums + HALF_AN_ULP[got.dtype] * mx.abs(expected)
    if small:
        # Elements are divided by up to 4096 before they meet a nibble that is as much too large.
        allowed = allowed + SMALLEST[mx.float32] * 4096 * wide.sum(-1) + SMALLEST[got.dtype]
    error = mx.abs(got.astype(mx.float32) - expected)
    return float(mx.where(error == 0, 0.0, error / allowed).max())


def extreme_rows(k: int, dtype: mx.Dtype) -> mx.array:
    """Five rows: denormal, hardly normal, ordinary, large, zero."""
    sizes = [6e-7, 1e-4, 1, 100, 0] if dtype == mx.float16 else [1e-44, 1e-38, 1, 1e30, 0]
    if dtype == mx.bfloat16:
        sizes[0] = 3e-40
    return (rows_of(5, k, mx.float32) * mx.array(sizes)[:, None]).astype(dtype)
