"""The verify forward's products: right, exact by row whatever runs them, and free of races."""

from __future__ import annotations

import mlx.core as mx
import pytest
from emulator import Machine, every_machine, mlx_kernels

from metal.chip import Chip
from metal.verify_matmul import (
    TILINGS,
    Shape,
    Tiling,
    fits,
    reference,
    verify_gather,
    verify_matmul,
)

pytestmark = pytest.mark.metal

# K a multiple of 512 and not, N not a multiple of what a threadgroup makes, every width and group.
CASES = [
    (1024, 20, 64, 4, mx.bfloat16),
    (1056, 7, 32, 4, mx.float16),
    (640, 12, 128, 4, mx.float32),
    (512, 9, 32, 8, mx.bfloat16),
    (192, 10, 64, 8, mx.float32),
]
HALF_AN_ULP = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}


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
    matrix: tuple[mx.array, mx.array, mx.array],
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


def off(
    got: mx.array,
    x: mx.array,
    matrix: tuple[mx.array, ...],
    group_size: int,
    bits: int,
    smallest: float = 0.0,
) -> float:
    """The largest error, as a share of the allowed one: rounding of a float32 sum of K products
    scale * q + bias, and of the result. smallest: what an element may lose for being denormal."""
    _, scales, biases = matrix
    expected = reference(x, *matrix, group_size=group_size, bits=bits)
    most = (2**bits - 1) * mx.abs(scales).astype(mx.float32) + mx.abs(biases).astype(mx.float32)
    wide = mx.repeat(most, group_size, axis=-1)
    sums = mx.abs(x.astype(mx.float32)) @ wide.T
    allowed = 2.0**-21 * sums + HALF_AN_ULP[got.dtype] * mx.abs(expected)
    # Elements are scaled down by up to 4096 before they meet a nibble that is as much too large.
    allowed = allowed + smallest * 4096 * wide.sum(-1)
    error = mx.abs(got.astype(mx.float32) - expected)
    return float(mx.where(error == 0, 0.0, error / allowed).max())


@pytest.mark.parametrize(("k", "n", "group_size", "bits", "dtype"), CASES)
def test_a_row_has_the_same_bits_alone_and_among_others(
    k, n, group_size, bits, dtype, record_claim
):
    matrix, x = weights(k, n, group_size, bits, dtype), rows_of(16, k, dtype)
    for machine in every_machine():
        alone = [multiply(machine, x[i : i + 1], matrix, group_size, bits) for i in range(16)]
        expected = mx.concatenate(alone)
        for count in (5, 16):
            got = multiply(machine, x[:count], matrix, group_size, bits)
            held = mx.array_equal(got, expected[:count])
            record_claim("verify_matmul", f"{count} rows on {machine}", held, bits=True)
        held = off(expected, x, matrix, group_size, bits) <= 1
        record_claim("verify_matmul", f"values on {machine}", held)


# Where MLX takes qmv_fast, and where it takes qmv.
@pytest.mark.parametrize(("k", "n", "group_size"), [(1024, 8, 64), (192, 10, 32)])
def test_a_row_has_the_bits_of_stock_mlx_s_single_row(k, n, group_size, record_claim):
    dtype = mx.float32
    matrix, x = weights(k, n, group_size, 4, dtype), rows_of(1, k, dtype)
    for machine in every_machine():
        stock = mlx_kernels.quantized_matmul(machine, x, *matrix, group_size=group_size, bits=4)
        held = mx.array_equal(multiply(machine, x, matrix, group_size, 4), stock)
        record_claim("verify_matmul", f"MLX's single row on {machine}", held, bits=True)


@pytest.mark.parametrize("count", range(1, 17))
def test_every_number_of_rows(count, record_claim):
    matrix, x = weights(544, 11, 32, 4, mx.bfloat16), rows_of(count, 544, mx.bfloat16)
    machine = Machine()
    alone = [multiply(machine, x[i : i + 1], matrix, 32, 4) for i in range(count)]
    held = mx.array_equal(multiply(machine, x, matrix, 32, 4), mx.concatenate(alone))
    record_claim("verify_matmul", f"{count} rows are as alone", held, bits=True)


@pytest.mark.parametrize("tiling", TILINGS[1:])
def test_the_tiling_does_not_show_in_the_bits(tiling, record_claim):
    matrix, x = weights(1024, 9, 64, 4, mx.float32), rows_of(6, 1024, mx.float32)
    expected = multiply(Machine(), x, matrix, 64, 4)
    held = mx.array_equal(multiply(Machine(), x, matrix, 64, 4, tiling), expected)
    record_claim("verify_matmul", f"{tiling} is as any other", held, bits=True)


@pytest.mark.parametrize("flush", [False, True])
def test_extreme_and_denormal_rows(flush, record_claim):
    dtype = mx.float32
    matrix, x = weights(544, 11, 32, 4, dtype), rows_of(5, 544, dtype)
    size = mx.array([1e-44, 1e-38, 1.0, 1e30, 0.0])[:, None]
    x = x * size
    machine = Machine(flush_denormals=flush)
    got = multiply(machine, x, matrix, 32, 4)
    normal = slice(2, 5) if flush else slice(0, 5)
    smallest = 0.0 if flush else 2.0**-149
    held = off(got[normal], x[normal], matrix, 32, 4, smallest) <= 1 and mx.all(mx.isfinite(got))
    record_claim("verify_matmul", "extreme values", held)
    # Zeros in the place of small values would be noticed.
    assert flush or off(mx.zeros_like(got[1:2]), x[1:2], matrix, 32, 4, smallest) > 1
    # A small nibble's element is scaled down by 4096 first, which takes it under the smallest.
    assert float(mx.abs(got[:2]).max()) < 1e-35
    alone = [multiply(machine, x[i : i + 1], matrix, 32, 4) for i in range(5)]
    held = mx.array_equal(got, mx.concatenate(alone))
    record_claim("verify_matmul", "rows of extreme values are as alone", held, bits=True)


def test_a_bad_row_spoils_itself_alone():
    matrix, x = weights(544, 11, 32, 4, mx.float32), rows_of(5, 544, mx.float32)
    expected = multiply(Machine(), x, matrix, 32, 4)
    x[2, 17], x[4, 3] = mx.nan, mx.inf
    got = multiply(Machine(), x, matrix, 32, 4)
    assert mx.all(mx.isnan(got[2]))
    assert not mx.any(mx.isfinite(got[4]))
    good = mx.array([0, 1, 3])
    assert mx.array_equal(got[good], expected[good])


@pytest.mark.parametrize("shared", [1, 3], ids=["a row a slot", "a row for three slots"])
def test_rows_of_experts_are_the_products_with_each(shared, record_claim):
    dtype, slots = mx.bfloat16, 12
    matrix, x = weights(544, 11, 32, 4, dtype, 4), rows_of(slots // shared, 544, dtype)
    # One expert with more slots than others, one with none, and slots in no order.
    indices = mx.array([0, 2, 1, 2, 2, 2, 0, 1, 2, 2, 1, 2], mx.uint32)
    for machine in (Machine(), Machine(sum_order="sequential", contraction="off", schedule=3)):
        got = verify_gather(
            x,
            *matrix,
            indices,
            group_size=32,
            bits=4,
            compiler=machine.metal_kernel,
        )
        for slot, expert in enumerate(indices.tolist()):
            of_expert = tuple(part[expert] for part in matrix)
            row = slot // shared
            alone = multiply(machine, x[row : row + 1], of_expert, 32, 4)
            held = mx.array_equal(got[slot : slot + 1], alone)
            record_claim("verify_gather", f"slot {slot} is as alone, {machine}", held, bits=True)


def test_an_expert_with_more_than_sixteen_slots_takes_another_pass():
    matrix, x = weights(64, 8, 32, 4, mx.float32, 2), rows_of(40, 64, mx.float32)
    indices = mx.array([1] * 37 + [0] * 3, mx.uint32)
    machine = Machine()
    got = verify_gather(x, *matrix, indices, group_size=32, bits=4, compiler=machine.metal_kernel)
    for slot in (0, 15, 16, 36, 37, 39):
        of_expert = tuple(part[int(indices[slot])] for part in matrix)
        alone = multiply(machine, x[slot : slot + 1], of_expert, 32, 4)
        assert mx.array_equal(got[slot : slot + 1], alone)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize("schedule", ["backward", 1, 2])
def test_nothing_is_read_or_written_where_it_should_not_be(sanitizer, schedule, record_claim):
    machine = Machine(sanitizer=sanitizer, schedule=schedule)
    matrix, x = weights(1056, 7, 32, 4, mx.float16), rows_of(3, 1056, mx.float16)
    held = off(multiply(machine, x, matrix, 32, 4), x, matrix, 32, 4) <= 1
    record_claim("verify_matmul", f"clean under {machine}", held)
    experts = weights(96, 9, 32, 8, mx.float32, 3)
    indices = mx.array([2, 0, 2, 2, 0, 1, 2, 1], mx.uint32)
    y = verify_gather(
        rows_of(4, 96, mx.float32),
        *experts,
        indices,
        group_size=32,
        bits=8,
        compiler=machine.metal_kernel,
    )
    record_claim("verify_gather", f"clean under {machine}", mx.all(mx.isfinite(y)))


def test_what_there_is_a_kernel_for():
    chip = Chip.of("applegpu_g16s")
    assert chip == Chip(16, "s")
    assert Chip.of("x86_64") is None
    shape = Shape(5120, 17408, 64, 4)
    assert str(shape) == "5120 -> 17408, 4 bits in groups of 64"
    # 4 bits a weight, and a scale and a bias of 16 bits for 64.
    assert shape.weight_bytes == 5120 * 17408 * 4.5 / 8
    assert fits(shape, mx.bfloat16, chip)
    assert not fits(shape, mx.bfloat16, None)
    assert not fits(shape, mx.bfloat16, Chip(12, "g"))
    assert not fits(shape, mx.int8, chip)
    assert not fits(Shape(5120, 17408, 64, 6), mx.bfloat16, chip)
    assert not fits(Shape(5120, 17408, 16, 4), mx.bfloat16, chip)
    assert not fits(Shape(32, 7, 32, 4), mx.bfloat16, chip)
