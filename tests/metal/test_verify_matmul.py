"""The verify forward's products: right, and exact by row whatever runs them."""

from __future__ import annotations

import mlx.core as mx
import pytest
from emulator import Machine, every_machine, mlx_kernels
from products import extreme_rows, multiply, off, rows_of, weights

from metal.chip import Chip
from metal.verify_matmul import TILINGS, Shape, fits

pytestmark = pytest.mark.metal

# K a multiple of 512 and not, N not a multiple of what a threadgroup makes and less than that,
# every width, group and dtype.
CASES = [
    (1024, 20, 64, 4, mx.bfloat16),
    (1056, 7, 32, 4, mx.float16),
    (640, 12, 128, 4, mx.float32),
    (512, 9, 32, 8, mx.bfloat16),
    (192, 10, 64, 8, mx.float32),
    (512, 3, 128, 8, mx.float16),
    (640, 5, 128, 8, mx.bfloat16),
    (576, 1, 64, 8, mx.float16),
]
EXTREMES = [(544, 11, 32, 4, mx.float32), *CASES[:2], *CASES[4:6]]
# What the models that Pillion has drafters for multiply with, and the small ones it is tested with.
WIDTHS = (256, 576, 768, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 9728, 12288, 17408)


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


@pytest.mark.parametrize(("k", "n", "group_size", "bits", "dtype"), EXTREMES)
@pytest.mark.parametrize("flush", [False, True])
def test_extreme_and_denormal_rows(k, n, group_size, bits, dtype, flush, record_claim):
    matrix, x = weights(k, n, group_size, bits, dtype), extreme_rows(k, dtype)
    machine = Machine(flush_denormals=flush)
    got = multiply(machine, x, matrix, group_size, bits)
    normal = slice(2, 5) if flush else slice(0, 5)
    near = off(got[normal], x[normal], matrix, group_size, bits, small=not flush) <= 1
    held = near and mx.all(mx.isfinite(got))
    record_claim("verify_matmul", "extreme values", held)
    # Zeros in the place of small values would be noticed.
    zeros = mx.zeros_like(got[1:2])
    assert flush or off(zeros, x[1:2], matrix, group_size, bits, small=True) > 1
    alone = [multiply(machine, x[i : i + 1], matrix, group_size, bits) for i in range(5)]
    held = mx.array_equal(got, mx.concatenate(alone))
    record_claim("verify_matmul", "rows of extreme values are as alone", held, bits=True)


@pytest.mark.parametrize("k", WIDTHS)
def test_every_width_of_the_models(k, record_claim):
    matrix, x = weights(k, 5, 64, 4, mx.bfloat16), rows_of(16, k, mx.bfloat16)
    machine = Machine(schedule=k)
    got = multiply(machine, x, matrix, 64, 4)
    record_claim("verify_matmul", f"values of {k}", off(got, x, matrix, 64, 4) <= 1)
    alone = [multiply(machine, x[i : i + 1], matrix, 64, 4) for i in range(16)]
    held = mx.array_equal(got, mx.concatenate(alone))
    record_claim("verify_matmul", f"rows of {k} are as alone", held, bits=True)


def test_a_bad_row_spoils_itself_alone():
    matrix, x = weights(544, 11, 32, 4, mx.float32), rows_of(5, 544, mx.float32)
    expected = multiply(Machine(), x, matrix, 32, 4)
    x[2, 17], x[4, 3] = mx.nan, mx.inf
    got = multiply(Machine(), x, matrix, 32, 4)
    assert mx.all(mx.isnan(got[2]))
    assert not mx.any(mx.isfinite(got[4]))
    good = mx.array([0, 1, 3])
    assert mx.array_equal(got[good], expected[good])


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
