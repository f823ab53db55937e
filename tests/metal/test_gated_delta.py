"""The gated delta rule's kernels: right, exact by row and from the tape, and free of races."""

from __future__ import annotations

import mlx.core as mx
import pytest
from emulator import Machine, every_machine
from products import SMALLEST
from stock_gated_delta import stock_kernel

from metal.chip import Chip
from metal.gated_delta import (
    DTYPES,
    Rows,
    Shape,
    Single,
    Tape,
    differs,
    fits,
    gated_delta,
    part,
    random_rows,
    reference,
    reference_replay,
    replay,
    resume,
    window,
)

pytestmark = pytest.mark.metal

ROWS = 5
# Several value heads a key head; widths of Qwen's layers and others; one and two simdgroups.
CASES = [
    (Shape(2, 4, 64, 16), mx.float32),
    (Shape(1, 3, 128, 8), mx.bfloat16),
    (Shape(1, 2, 192, 8), mx.float16),
    (Shape(2, 2, 32, 24), mx.bfloat16),
    (Shape(1, 4, 96, 16), mx.float16),
    (Shape(1, 1, 160, 8), mx.float32),
    (Shape(1, 2, 224, 8), mx.bfloat16),
    (Shape(1, 2, 256, 8), mx.float16),
]
# Of the largest value, from sums of up to 256 products; and of a value, from its rounding.
SUMS = 2.0**-20
HALF_AN_ULP = {mx.float32: 0.0, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}


def close(got: mx.array, expected: mx.array, rows: int = ROWS, floor: float = 0.0) -> bool:
    """Whether values are as near as `rows` steps of float32 sums and one rounding leave them;
    floor: what the smallest number there is adds to that."""
    wide, rounding = expected.astype(mx.float32), HALF_AN_ULP[got.dtype]
    allowed = rows * SUMS * float(mx.abs(wide).max()) + rounding * mx.abs(wide) + floor
    return bool(mx.all(mx.abs(got.astype(mx.float32) - wide) <= allowed))


def unrounded(
    rows: Rows, state: mx.array, mask: mx.array | None = None
) -> tuple[mx.array, mx.array, Tape]:
    """What the reference makes of the same values in float32: it rounds no result, as a value
    between two that can be held may be rounded either way."""
    return reference(*(x.astype(mx.float32) for x in rows), state, mask)


def same(one: mx.array, other: mx.array) -> bool:
    return bool(mx.array_equal(one, other))


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_the_state_from_the_tape_is_that_of_fewer_rows(shape, dtype, record_claim):
    rows, state = random_rows(shape, dtype, ROWS)
    expected = unrounded(rows, state)
    for machine in every_machine(("off", "on", "fast")):
        compiler = machine.metal_kernel
        y, after, tape = gated_delta(*rows, state, compiler=compiler)
        right = (
            close(y, expected[0])
            and close(after, expected[1])
            and close(tape.delta, expected[2].delta)
        )
        record_claim("gated_delta", f"reference, {machine}", right)
        for keep in range(ROWS + 1):
            got = replay(tape, keep, compiler=compiler)
            if keep == 0:
                record_claim("gated_delta_replay", "no row", same(got, state), bits=True)
                continue
            few = part(rows, slice(0, keep))
            some, behind, _ = gated_delta(*few, state, compiler=compiler)
            record_claim(
                "gated_delta", f"{keep} rows, {machine}", same(some, y[:, :keep]), bits=True
            )
            record_claim(
                "gated_delta_replay", f"{keep} rows, {machine}", same(got, behind), bits=True
            )
    assert close(reference_replay(expected[2], 3), replay(tape, 3, compiler=compiler))


@pytest.mark.parametrize(("shape", "dtype"), CASES[:2])
def test_rows_behind_a_tape_are_those_behind_its_state(shape, dtype, record_claim):
    rows, state = random_rows(shape, dtype, ROWS + 3, batch=2)
    first, second = part(rows, slice(0, ROWS)), part(rows, slice(ROWS, None))
    for machine in every_machine():
        compiler = machine.metal_kernel
        _, _, tape = gated_delta(*first, state, compiler=compiler)
        for keep in (0, 2, ROWS):
            start = replay(tape, keep, compiler=compiler)
            y, after, _ = gated_delta(*second, start, compiler=compiler)
            later, behind = resume(tape, keep, *second, compiler=compiler)
            held = (
                same(later, y)
                and same(behind.state, start)
                and same(replay(behind, 3, compiler=compiler), after)
            )
            record_claim("gated_delta", f"behind {keep} rows, {machine}", held, bits=True)


def test_single_rows_of_mlx_lm_have_the_same_bits(record_claim):
    """Where products and sums are fused, as Apple's compiler has it, and simd_sum adds neighbours
    first; at 128, mlx-lm writes its tree out as well. The check at load sees where it is not so."""
    for width, dtype in ((128, mx.bfloat16), (64, mx.float32)):
        rows, state = random_rows(Shape(1, 2, width, 8), dtype, 4)
        machine = Machine(contraction="on", sum_order="ascending", schedule=4)
        compiler = machine.metal_kernel
        fault = differs(rows, state, single_rows(machine, rows), compiler=compiler)
        record_claim("gated_delta", f"mlx-lm at {width}: {fault}", not fault, bits=True)
    other = Machine(contraction="on", sum_order="descending")
    fault = differs(rows, state, single_rows(other, rows), compiler=compiler)
    assert "row 1 has other bits" in fault


def single_rows(machine: Machine, rows: Rows) -> Single:
    stock = stock_kernel(machine)
    return lambda t, state: stock(part(rows, slice(t, t + 1)), state)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (Shape(1, 2, 32, 8), mx.float32),
        (Shape(2, 4, 64, 16), mx.bfloat16),
        (Shape(1, 3, 128, 8), mx.float16),
    ],
)
def test_rows_that_are_masked_leave_the_state(shape, dtype, record_claim):
    rows, state = random_rows(shape, dtype, 4, batch=2)
    mask = mx.array([[True, False, True, True], [False, True, True, False]])
    # A row that is not there may hold anything.
    for x in rows[:3]:
        x[0, 1] = mx.nan
    for machine in every_machine(("off", "on", "fast")):
        compiler = machine.metal_kernel
        y, after, tape = gated_delta(*rows, state, mask, compiler=compiler)
        for index in range(2):
            there = [t for t in range(4) if mask[index, t]]
            few = tuple(x[index : index + 1, there] for x in rows)
            alone = gated_delta(*few, state[index : index + 1], compiler=compiler)
            record_claim(
                "gated_delta",
                f"sequence {index}, {machine}",
                same(y[index, there], alone[0][0]),
                bits=True,
            )
            record_claim(
                "gated_delta",
                f"state {index}, {machine}",
                same(after[index], alone[1][0]),
                bits=True,
            )
        for keep in range(1, 5):
            few = part(rows, slice(0, keep))
            state_then = gated_delta(*few, state, mask[:, :keep], compiler=compiler)[1]
            got = replay(tape, keep, compiler=compiler)
            record_claim(
                "gated_delta_replay", f"{keep} masked, {machine}", same(got, state_then), bits=True
            )
        assert mx.all(y[0, 1] == 0)
        clean = part(rows, slice(2, 4))
        expected = unrounded(clean, state, mask[:, 2:])
        got = gated_delta(*clean, state, mask[:, 2:], compiler=compiler)
        record_claim(
            "gated_delta",
            f"masked, {machine}",
            close(got[0], expected[0]) and close(got[1], expected[1]),
        )
        with pytest.raises(ValueError, match="replay it"):
            resume(tape, 1, *clean, compiler=compiler)


# Denormal, small and large values that each dtype has.
SIZES = [
    *((mx.float32, size) for size in (1e-40, 1e-30, 1e30)),
    *((mx.bfloat16, size) for size in (1e-39, 1e30)),
    *((mx.float16, size) for size in (1e-6, 1e3)),
]


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_extreme_values(dtype, size, flush, record_claim):
    shape = Shape(2, 4, 64, 16)
    (q, k, v, g, beta), state = random_rows(shape, dtype, 3)
    # Gates that keep everything, and that forget everything.
    g[:, 1, 0], g[:, 1, 1], g[:, 2, 2], beta[:, 0, 3] = 1, 0, 1e-40, 0
    rows, state = (q, k, (v * size).astype(dtype), g, beta), state * size
    compiler = Machine(flush_denormals=flush).metal_kernel
    # Of 3 rows with sums of 64 products, each of which loses as much.
    floor = 3 * 64 * (2.0**-126 if flush else 2.0**-149)
    for mask in (None, mx.array([[True, False, True]])):
        y, after, tape = gated_delta(*rows, state, mask, compiler=compiler)
        expected = unrounded(rows, state, mask)
        kind = f"values of {size}" if mask is None else f"masked values of {size}"
        right = close(y, expected[0], floor=floor + SMALLEST[dtype])
        right = right and close(after, expected[1], floor=floor)
        record_claim("gated_delta", kind, right)
        # Zeros would be noticed.
        zeros = mx.zeros_like(y), mx.zeros_like(after)
        assert flush or not close(zeros[0], expected[0], floor=floor + SMALLEST[dtype])
        assert flush or not close(zeros[1], expected[1], floor=floor)
        for keep in (1, 2, 3):
            few, seen = part(rows, slice(0, keep)), None if mask is None else mask[:, :keep]
            then = gated_delta(*few, state, seen, compiler=compiler)[1]
            got = replay(tape, keep, compiler=compiler)
            record_claim("gated_delta_replay", f"{kind}, {keep}", same(got, then), bits=True)


def test_a_bad_row_spoils_only_what_is_behind_it(record_claim):
    rows, state = random_rows(Shape(2, 4, 64, 16), mx.float32, 4)
    compiler = Machine().metal_kernel
    good, _, _ = gated_delta(*rows, state, compiler=compiler)
    rows[2][0, 2, 1, 3] = mx.inf
    y, _, tape = gated_delta(*rows, state, compiler=compiler)
    record_claim("gated_delta", "rows before an infinity", same(y[:, :2], good[:, :2]), bits=True)
    assert not mx.all(mx.isfinite(y[0, 2, 1]))
    assert mx.all(mx.isfinite(replay(tape, 2, compiler=compiler)))


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_nothing_is_read_or_written_where_it_should_not_be(sanitizer, record_claim):
    rows, state = random_rows(Shape(1, 2, 32, 16), mx.float16, 3, batch=2)
    for schedule in ("backward", 1, 2):
        compiler = Machine(sanitizer=sanitizer, schedule=schedule).metal_kernel
        # Any tape will do here; its own kernel is the one that resumes.
        _, _, before = unrounded(rows, state)
        y, tape = resume(before, 2, *rows, compiler=compiler)
        after = replay(tape, 3, compiler=compiler)
        expected = unrounded(rows, reference_replay(before, 2))
        right = close(y, expected[0]) and close(after, expected[1])
        record_claim("gated_delta", f"{sanitizer}, schedule {schedule}", right)


# Every width of keys; dtypes take turns, and where races are looked for widths do, too.
VARIANTS = [(Shape(1, 2, 32 * (i + 1), (8, 16)[i % 2]), DTYPES[i % 3]) for i in range(8)]
WATCHED = [("address", *variant) for variant in VARIANTS]
WATCHED += [("thread", *variant) for variant in VARIANTS[::3]]


@pytest.mark.parametrize(("sanitizer", "shape", "dtype"), WATCHED)
def test_every_variant_is_clean(sanitizer, shape, dtype, record_claim):
    rows, state = random_rows(shape, dtype, 3, batch=2)
    machine = Machine(sanitizer=sanitizer, schedule=shape.key_width)
    compiler = machine.metal_kernel
    for mask in (None, mx.array([[True, False, True], [True, True, False]])):
        y, after, tape = gated_delta(*rows, state, mask, compiler=compiler)
        expected = unrounded(rows, state, mask)
        right = close(y, expected[0]) and close(after, expected[1])
        kind = "" if mask is None else "masked, "
        record_claim("gated_delta", f"{kind}clean under {machine}", right)
        right = close(replay(tape, 2, compiler=compiler), reference_replay(expected[2], 2))
        record_claim("gated_delta_replay", f"{kind}clean under {machine}", right)
    before = reference(*rows, state)[2]
    y, tape = resume(before, 2, *rows, compiler=compiler)
    expected = unrounded(rows, reference_replay(before, 2))
    record_claim("gated_delta", f"resumed, clean under {machine}", close(y, expected[0]))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        # Qwen3.5 27B, 3.6 27B and 3.8 27B; 4B, 9B and 35B; 0.8B and 2B; 122B and 397B.
        (Shape(16, 48, 128, 128), mx.bfloat16),
        (Shape(16, 32, 128, 128), mx.float16),
        (Shape(16, 16, 128, 128), mx.float32),
        (Shape(16, 64, 128, 128), mx.bfloat16),
    ],
)
def test_all_heads_of_qwen(shape, dtype, record_claim):
    rows, state = random_rows(shape, dtype, 3)
    compiler = Machine(schedule=9).metal_kernel
    y, after, tape = gated_delta(*rows, state, compiler=compiler)
    expected = unrounded(rows, state)
    right = close(y, expected[0]) and close(after, expected[1])
    record_claim("gated_delta", str(shape), right)
    few = gated_delta(*part(rows, slice(0, 2)), state, compiler=compiler)[1]
    held = same(replay(tape, 2, compiler=compiler), few)
    record_claim("gated_delta_replay", str(shape), held, bits=True)


def test_the_convolution_window():
    conv_input = mx.random.normal((1, 3 + 4, 10)).astype(mx.bfloat16)
    for keep in range(5):
        assert same(window(conv_input, 4, keep), conv_input[:, keep : keep + 3])


def test_what_there_is_a_kernel_for():
    chip = Chip(16, "s")
    qwen = Shape(16, 48, 128, 128)
    assert str(qwen) == "16 heads of 128, 48 of values of 128"
    for shape in (qwen, Shape(16, 32, 128, 128), Shape(16, 64, 192, 128), Shape(2, 4, 64, 64)):
        assert fits(shape, mx.bfloat16, chip)
    assert not fits(qwen, mx.bfloat16, None)
    assert not fits(qwen, mx.int8, chip)
    for shape in (Shape(16, 48, 120, 128), Shape(16, 48, 512, 128), Shape(16, 48, 128, 100)):
        assert not fits(shape, mx.bfloat16, chip)
    assert not fits(Shape(16, 40, 128, 128), mx.bfloat16, chip)


@pytest.mark.parametrize("keep", [-1, 4])
def test_rows_that_are_not_there_cannot_be_kept(keep):
    rows, state = random_rows(Shape(1, 1, 32, 8), mx.float32, 3)
    with pytest.raises(ValueError, match=f"cannot keep {keep} of 3 rows"):
        replay(reference(*rows, state)[2], keep)
