"""MLX's own kernels in the emulator: right, and as dependent on the number of rows as they are on a
GPU, which is why Pillion has kernels of its own."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from emulator import Machine, every_machine, mlx_kernels
from recording import RecordClaim

pytestmark = pytest.mark.metal

TYPES = [mx.float32, mx.bfloat16]
Matrix = tuple[mx.array, mx.array, mx.array]


def matrix(outputs: int, width: int, group_size: int, bits: int, dtype: mx.Dtype) -> Matrix:
    weight = mx.random.normal((outputs, width)) / width**0.5
    w, scales, biases = mx.quantize(weight.astype(dtype), group_size, bits)
    return w, scales, biases


def product(x: mx.array, packed: Matrix, group_size: int, bits: int) -> mx.array:
    weight = mx.dequantize(*packed, group_size, bits).astype(mx.float32)
    return x.astype(mx.float32) @ weight.T


@pytest.mark.parametrize(
    ("kernel", "rows", "width", "outputs", "group_size", "bits"),
    [
        ("fast", 3, 512, 24, 64, 4),
        ("fast", 2, 192, 16, 32, 4),
        ("fast", 2, 512, 16, 128, 8),
        ("wide", 7, 192, 24, 64, 4),
        ("wide", 4, 256, 20, 32, 8),
        ("matrix", 18, 128, 64, 64, 4),
        ("matrix", 13, 128, 40, 32, 8),
    ],
)
@pytest.mark.parametrize("dtype", TYPES)
def test_quantized_matmul(
    kernel: Any,
    rows: int,
    width: int,
    outputs: int,
    group_size: int,
    bits: int,
    dtype: mx.Dtype,
    record_claim: RecordClaim,
) -> None:
    mx.random.seed(rows)
    packed = matrix(outputs, width, group_size, bits, dtype)
    x = mx.random.normal((rows, width)).astype(dtype)
    got = mlx_kernels.quantized_matmul(
        Machine(), x, *packed, group_size=group_size, bits=bits, kernel=kernel
    )
    error = mx.abs(got.astype(mx.float32) - product(x, packed, group_size, bits)).max().item()
    # bfloat16: the result is rounded, and qmm_t rounds the weights too.
    bound = 2e-5 if dtype == mx.float32 else 5e-2
    record_claim(f"mlx {kernel}", f"error {error:.2g} is below {bound}", error < bound)


def test_mlx_changes_bits_with_the_number_of_rows(record_claim: RecordClaim) -> None:
    mx.random.seed(4)
    packed = matrix(64, 1024, 64, 4, mx.float32)
    x = mx.random.normal((16, 1024))
    for machine in every_machine():

        def multiplied(rows: mx.array, on: Machine = machine) -> mx.array:
            return mlx_kernels.quantized_matmul(on, rows, *packed, group_size=64, bits=4)

        one = mx.concatenate([multiplied(row[None]) for row in x])
        wide = {rows: multiplied(x[:rows]) for rows in (2, 5, 6, 12)}
        square = multiplied(x)
        for rows, got in wide.items():
            record_claim(
                "mlx wide", "two rows on are alike", _equal(got, wide[12][:rows]), bits=True
            )
            assert not _equal(got, one[:rows])
        assert not _equal(square, one)
        assert not _equal(square[:12], wide[12])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("heads", [2, 6])
def test_attention(dtype: mx.Dtype, heads: int, record_claim: RecordClaim) -> None:
    mx.random.seed(heads)
    queries = mx.random.normal((1, heads, 5, 64)).astype(dtype)
    keys, values = (mx.random.normal((1, 2, 45, 64)).astype(dtype) for _ in range(2))
    got = mlx_kernels.attention(Machine(), queries, keys, values, scale=0.125)
    wide = [value.astype(mx.float32) for value in (queries, keys, values)]
    expected = mx.fast.scaled_dot_product_attention(*wide, scale=0.125, mask="causal")
    error = mx.abs(got.astype(mx.float32) - expected).max().item()
    bound = 2e-6 if dtype == mx.float32 else 1e-2
    record_claim("mlx sdpa_vector", f"error {error:.2g} is below {bound}", error < bound)
    for machine in every_machine():
        together = mlx_kernels.attention(machine, queries, keys, values, scale=0.125)
        for row in range(5):
            until = 41 + row
            alone = mlx_kernels.attention(
                machine,
                queries[:, :, row : row + 1],
                keys[:, :, :until],
                values[:, :, :until],
                scale=0.125,
            )
            held = _equal(alone, together[:, :, row : row + 1])
            record_claim("mlx sdpa_vector", "a row does not know of the others", held, bits=True)


@pytest.mark.parametrize("length", [1, 8, 13])
def test_gated_delta(length: int, record_claim: RecordClaim) -> None:
    mx.random.seed(length)
    batch, key_heads, heads, size = 2, 2, 4, 32
    q, k = (mx.random.normal((batch, length, key_heads, size)) / size**0.5 for _ in range(2))
    v = mx.random.normal((batch, length, heads, size))
    g, beta = (mx.random.uniform(0.3, 1, (batch, length, heads)) for _ in range(2))
    state = mx.random.normal((batch, heads, size, size))
    y, after = mlx_kernels.gated_delta(Machine(), q, k, v, g, beta, state)
    rows = []
    for step in range(length):
        key, query = (mx.repeat(side[:, step], heads // key_heads, axis=1) for side in (k, q))
        state = state * g[:, step, :, None, None]
        seen = (state * key[:, :, None]).sum(-1)
        delta = (v[:, step] - seen) * beta[:, step, :, None]
        state = state + delta[..., None] * key[:, :, None]
        rows.append((state * query[:, :, None]).sum(-1))
    for name, got, expected in (("y", y, mx.stack(rows, 1)), ("state", after, state)):
        error = mx.abs(got - expected).max().item()
        claim = f"the error of {name}, {error:.2g}, is below 3e-6"
        record_claim("mlx gated_delta_fused_chunk", claim, error < 3e-6)


def test_the_kernels_are_clean_under_the_sanitizers() -> None:
    mx.random.seed(5)
    packed = matrix(32, 512, 64, 4, mx.float32)
    x = mx.random.normal((5, 512))
    for sanitizer in ("address", "thread"):
        machine = Machine(sanitizer=sanitizer)
        mlx_kernels.quantized_matmul(machine, x, *packed, group_size=64, bits=4, kernel="wide")


def _equal(left: mx.array, right: mx.array) -> bool:
    return bool(mx.array_equal(left, right))
