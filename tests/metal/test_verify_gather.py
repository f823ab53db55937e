"""The products of rows with their experts' matrices: right, and each slot exact by itself."""

from __future__ import annotations

import mlx.core as mx
import pytest
from emulator import Machine, every_machine, mlx_kernels
from products import expert, extreme_rows, gather, multiply, off, rows_of, weights

from metal.verify_matmul import TILINGS, reference, reference_gather

pytestmark = pytest.mark.metal

EXPERTS = 4
# One expert with more slots than others, one with none, and slots in no order.
PICKS = [0, 2, 1, 2, 2, 2, 0, 1, 2, 2, 1, 2]
# Slots that share a row; K a multiple of 512 and not, every width, group and dtype, few outputs.
CASES = [
    (1, 1056, 7, 32, 4, mx.bfloat16),
    (3, 512, 9, 64, 4, mx.float16),
    (2, 640, 12, 128, 4, mx.float32),
    (1, 512, 3, 128, 8, mx.float16),
    (4, 640, 5, 128, 8, mx.bfloat16),
    (6, 192, 10, 64, 8, mx.float32),
    (1, 544, 1, 32, 8, mx.float16),
]


def each_is_right_and_as_alone(
    machine, x, matrix, picks, group_size, bits, record_claim, *, normal=None, small=False
):
    """normal: slots whose values are compared; all unless given."""
    got = gather(machine, x, matrix, mx.array(picks, mx.uint32), group_size, bits)
    shared = len(picks) // x.shape[0]
    for slot, pick in enumerate(picks):
        row, of_expert = x[slot // shared : slot // shared + 1], expert(matrix, pick)
        alone = multiply(machine, row, of_expert, group_size, bits)
        held = mx.array_equal(got[slot : slot + 1], alone)
        record_claim("verify_gather", f"slot {slot} is as alone, {machine}", held, bits=True)
        if normal is None or slot in normal:
            near = off(got[slot : slot + 1], row, of_expert, group_size, bits, small=small) <= 1
            record_claim("verify_gather", f"values of slot {slot}, {machine}", near)
    return got


@pytest.mark.parametrize(("shared", "k", "n", "group_size", "bits", "dtype"), CASES)
def test_slots_are_the_products_with_each_on_every_machine(
    shared, k, n, group_size, bits, dtype, record_claim
):
    matrix = weights(k, n, group_size, bits, dtype, EXPERTS)
    x = rows_of(len(PICKS) // shared, k, dtype)
    for machine in every_machine(("off", "on", "fast")):
        each_is_right_and_as_alone(machine, x, matrix, PICKS, group_size, bits, record_claim)


def test_the_reference_takes_each_slots_matrix():
    matrix, x = weights(96, 8, 32, 4, mx.float32, EXPERTS), rows_of(6, 96, mx.float32)
    got = reference_gather(x, *matrix, mx.array(PICKS, mx.uint32), group_size=32, bits=4)
    assert got.shape == (12, 8)
    for slot, pick in enumerate(PICKS):
        row = x[slot // 2 : slot // 2 + 1]
        alone = reference(row, *expert(matrix, pick), group_size=32, bits=4)
        assert mx.allclose(got[slot], alone[0], rtol=1e-5, atol=1e-5)


# Where MLX takes qmv_fast, and where it takes qmv.
@pytest.mark.parametrize(("k", "n", "group_size"), [(512, 8, 64), (192, 10, 32)])
def test_a_slot_has_the_bits_of_stock_mlx_s_single_row(k, n, group_size, record_claim):
    matrix, x = weights(k, n, group_size, 4, mx.float32, EXPERTS), rows_of(3, k, mx.float32)
    picks = [3, 0, 3]
    for machine in every_machine():
        got = gather(machine, x, matrix, mx.array(picks, mx.uint32), group_size, 4)
        for slot, pick in enumerate(picks):
            stock = mlx_kernels.quantized_matmul(
                machine,
                x[slot : slot + 1],
                *expert(matrix, pick),
                group_size=group_size,
                bits=4,
            )
            held = mx.array_equal(got[slot : slot + 1], stock)
            record_claim("verify_gather", f"MLX's slot {slot}, {machine}", held, bits=True)


@pytest.mark.parametrize(
    ("k", "n", "group_size", "bits", "dtype"),
    [
        (544, 11, 32, 4, mx.float32),
        (512, 9, 64, 4, mx.float16),
        (192, 10, 64, 8, mx.bfloat16),
        (640, 3, 128, 8, mx.float32),
    ],
)
@pytest.mark.parametrize("flush", [False, True])
def test_extreme_and_denormal_rows(k, n, group_size, bits, dtype, flush, record_claim):
    matrix, x = weights(k, n, group_size, bits, dtype, EXPERTS), extreme_rows(k, dtype)
    # Two slots a row; rows of all sizes meet one expert.
    picks = [0, 2, 2, 1, 1, 2, 2, 0, 1, 2]
    normal = range(4, 10) if flush else None
    for machine in (
        Machine(flush_denormals=flush),
        Machine("sequential", "off", 3, flush_denormals=flush),
    ):
        got = each_is_right_and_as_alone(
            *(machine, x, matrix, picks, group_size, bits, record_claim),
            normal=normal,
            small=not flush,
        )
        record_claim("verify_gather", f"finite on {machine}", bool(mx.all(mx.isfinite(got))))
        # Zeros in the place of small values would be noticed.
        zeros, one = mx.zeros_like(got[:1]), expert(matrix, picks[2])
        assert flush or off(zeros, x[1:2], one, group_size, bits, small=True) > 1


def test_a_bad_slot_spoils_itself_alone(record_claim):
    matrix, x = weights(96, 9, 32, 4, mx.float32, EXPERTS), rows_of(12, 96, mx.float32)
    indices = mx.array(PICKS, mx.uint32)
    expected = gather(Machine(), x, matrix, indices, 32, 4)
    x[3, 17], x[8, 3] = mx.nan, mx.inf
    got = gather(Machine(), x, matrix, indices, 32, 4)
    assert mx.all(mx.isnan(got[3]))
    assert not mx.any(mx.isfinite(got[8]))
    good = mx.array([slot for slot in range(12) if slot not in (3, 8)])
    held = mx.array_equal(got[good], expected[good])
    record_claim("verify_gather", "slots beside bad ones of their expert", held, bits=True)


def test_a_bad_expert_spoils_only_its_slots(record_claim):
    matrix, x = weights(96, 9, 32, 4, mx.float32, EXPERTS), rows_of(12, 96, mx.float32)
    indices = mx.array(PICKS, mx.uint32)
    expected = gather(Machine(), x, matrix, indices, 32, 4)
    matrix[1][1] = mx.nan
    # Experts that no slot takes are not read.
    matrix[1][3] = mx.nan
    got = gather(Machine(), x, matrix, indices, 32, 4)
    good = mx.array([slot for slot, pick in enumerate(PICKS) if pick != 1])
    held = mx.array_equal(got[good], expected[good])
    record_claim("verify_gather", "slots of other experts", held, bits=True)


@pytest.mark.parametrize("slots", [1, 2, 16, 17, 40])
def test_any_number_of_slots_of_one_expert(slots, record_claim):
    """From the 17th on they take another pass."""
    matrix, x = weights(64, 8, 32, 4, mx.float32, 2), rows_of(slots, 64, mx.float32)
    picks = [1] * (slots - slots // 10) + [0] * (slots // 10)
    for machine in (Machine(), Machine("sequential", "off", 4)):
        each_is_right_and_as_alone(machine, x, matrix, picks, 32, 4, record_claim)


@pytest.mark.parametrize("tiling", TILINGS[1:])
def test_the_tiling_does_not_show_in_the_bits(tiling, record_claim):
    matrix, x = weights(512, 9, 64, 4, mx.bfloat16, EXPERTS), rows_of(12, 512, mx.bfloat16)
    indices = mx.array(PICKS, mx.uint32)
    expected = gather(Machine(), x, matrix, indices, 64, 4)
    got = gather(Machine(), x, matrix, indices, 64, 4, tiling)
    held = mx.array_equal(got, expected)
    record_claim("verify_gather", f"{tiling} is as any other", held, bits=True)
