"""The verify forward's attention: right, exact by row whatever is beside it, and free of races."""

from __future__ import annotations

import mlx.core as mx
import pytest
from emulator import Machine, every_machine
from products import SMALLEST

from metal.chip import Chip
from metal.verify_attention import (
    BLOCK,
    DTYPES,
    WIDTHS,
    Shape,
    differs,
    fits,
    reference,
    verify_attention,
)

pytestmark = pytest.mark.metal

# Widths from the least to the most, groups up to 16; rows in ones, twos and fours.
CASES = [
    (Shape(2, 2, 64), mx.float32, 3, 21),
    (Shape(6, 1, 256), mx.bfloat16, 5, 19),
    (Shape(16, 1, 128), mx.float16, 2, 40),
    (Shape(4, 2, 96), mx.bfloat16, 3, 17),
    (Shape(3, 1, 160), mx.float32, 2, 20),
    (Shape(8, 2, 192), mx.float16, 4, 23),
    (Shape(5, 5, 224), mx.bfloat16, 4, 18),
]
# Of the largest value: sums of a few hundred products, exponentials; and a value's rounding.
SUMS = 2.0**-18
HALF_AN_ULP = {mx.float32: 0.0, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}


def made(
    shape: Shape, dtype: mx.Dtype, rows: int, keys: int, batch: int = 1
) -> tuple[mx.array, mx.array, mx.array]:
    random = mx.random.split(mx.random.key(keys), 3)
    narrow = (batch, shape.key_heads, keys, shape.width)
    q = mx.random.normal((batch, shape.heads, rows, shape.width), key=random[0])
    k, v = (mx.random.normal(narrow, key=key) for key in random[1:])
    return q.astype(dtype), k.astype(dtype), v.astype(dtype)


def attend(machine: Machine, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    return verify_attention(q, k, v, q.shape[3] ** -0.5, compiler=machine.metal_kernel)


def close(got: mx.array, q: mx.array, k: mx.array, v: mx.array, floor: float = 0.0) -> bool:
    """floor: what the smallest number there is adds to the error."""
    wide = (x.astype(mx.float32) for x in (q, k, v))
    expected = reference(*wide, q.shape[3] ** -0.5)
    allowed = SUMS * float(mx.abs(expected).max()) + HALF_AN_ULP[got.dtype] * mx.abs(expected)
    return bool(mx.all(mx.abs(got.astype(mx.float32) - expected) <= allowed + floor))


def alone(machine: Machine, row: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    """A row as decoding computes it: by itself, before the keys behind it are there."""
    seen = k.shape[2] - q.shape[2] + row + 1
    return attend(machine, q[:, :, row : row + 1], k[:, :, :seen], v[:, :, :seen])


@pytest.mark.parametrize(("shape", "dtype", "rows", "keys"), CASES)
def test_a_row_has_the_same_bits_alone_and_among_others(shape, dtype, rows, keys, record_claim):
    q, k, v = made(shape, dtype, rows, keys)
    for machine in every_machine(("off", "on", "fast")):
        got = attend(machine, q, k, v)
        record_claim("verify_attention", f"reference, {machine}", close(got, q, k, v))
        for row in range(rows):
            held = bool(mx.array_equal(alone(machine, row, q, k, v)[:, :, 0], got[:, :, row]))
            record_claim("verify_attention", f"row {row}, {machine}", held, bits=True)


def test_every_number_of_rows(record_claim):
    shape = Shape(4, 2, 64)
    fault = differs(shape, mx.float32, keys=40, compiler=Machine(schedule=6).metal_kernel)
    record_claim("verify_attention", f"1 to 16 rows: {fault}", not fault, bits=True)


def test_rows_on_both_sides_of_the_end_of_a_block(record_claim):
    """The first rows see one block, the others two; and the third begins behind the last."""
    shape = Shape(2, 1, 64)
    for keys in (BLOCK + 2, 2 * BLOCK, 2 * BLOCK + 1):
        q, k, v = made(shape, mx.float32, 4, keys)
        machine = Machine(schedule=keys)
        got = attend(machine, q, k, v)
        record_claim("verify_attention_blocks", f"{keys} keys", close(got, q, k, v))
        for row in range(4):
            held = bool(mx.array_equal(alone(machine, row, q, k, v)[:, :, 0], got[:, :, row]))
            record_claim("verify_attention_blocks", f"{keys} keys, row {row}", held, bits=True)


def test_all_heads_of_qwen(record_claim):
    """Twelve simdgroups a key head at 8 rows, two at one."""
    q, k, v = made(Shape(24, 4, 256), mx.bfloat16, 8, 30)
    machine = Machine(schedule=9)
    got = attend(machine, q, k, v)
    record_claim("verify_attention", "24 heads of 256", close(got, q, k, v))
    for row in (0, 7):
        held = bool(mx.array_equal(alone(machine, row, q, k, v)[:, :, 0], got[:, :, row]))
        record_claim("verify_attention", f"24 heads of 256, row {row}", held, bits=True)


@pytest.mark.parametrize(
    ("shape", "dtype", "rows", "keys"),
    [
        # 256 rows times heads, in four threadgroups, and 75, of which the second has a few.
        (Shape(16, 1, 64), mx.bfloat16, 16, 37),
        (Shape(10, 2, 128), mx.float16, 15, BLOCK + 7),
        (Shape(24, 2, 96), mx.float32, 16, 16),
    ],
)
def test_more_rows_and_heads_than_a_threadgroup_takes(shape, dtype, rows, keys, record_claim):
    q, k, v = made(shape, dtype, rows, keys)
    for machine in (Machine(schedule=5), Machine("sequential", "off", "backward")):
        got = attend(machine, q, k, v)
        record_claim("verify_attention", f"{shape}, {machine}", close(got, q, k, v))
        for row in (0, 7, rows - 1):
            held = bool(mx.array_equal(alone(machine, row, q, k, v)[:, :, 0], got[:, :, row]))
            record_claim("verify_attention", f"{shape}, row {row}, {machine}", held, bits=True)


def test_sequences_side_by_side(record_claim):
    q, k, v = made(Shape(4, 2, 64), mx.float32, 2, 18, batch=2)
    got = attend(Machine(), q, k, v)
    record_claim("verify_attention", "two sequences", close(got, q, k, v))
    for index in range(2):
        one = slice(index, index + 1)
        held = bool(mx.array_equal(attend(Machine(), q[one], k[one], v[one]), got[one]))
        record_claim("verify_attention", f"sequence {index}", held, bits=True)


def test_keys_and_values_are_slices_of_a_cache(record_claim):
    """MLX hands the whole buffer over, with its strides; the emulator only ever contiguous ones."""
    keys, capacity = 21, 32
    q, k, v = made(Shape(4, 2, 64), mx.float32, 3, capacity)
    k[:, :, keys:], v[:, :, keys:] = mx.nan, mx.nan
    few = k[:, :, :keys], v[:, :, :keys]

    def compiler(source, input_names, **described):
        for name in "kv":
            source = source.replace(f"{name}_shape[2]", str(keys))
        kernel = Machine().metal_kernel(source=source, input_names=input_names, **described)

        def launch(inputs, **launched):
            whole = (inputs[0], k, v, inputs[3]) if "k" in input_names else inputs
            return kernel(inputs=whole, **launched)

        return launch

    got = verify_attention(q, *few, 0.125, compiler=compiler)
    record_claim("verify_attention", "slices of a cache", close(got, q, *few))


# By dtype: a denormal value, a denormal query, a large value, and a query and a key that take all.
SIZES = {
    mx.float32: (1e-40, 1e-42, 1e37, 1e4),
    mx.bfloat16: (1e-39, 1e-39, 1e37, 1e4),
    mx.float16: (1e-5, 1e-6, 1e4, 1e2),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("flush", [False, True])
def test_extreme_values(flush, dtype, record_claim):
    q, k, v = made(Shape(4, 2, 64), mx.float32, 3, 21)
    machine = Machine(flush_denormals=flush)
    small, smaller, large, decisive = SIZES[dtype]
    for name, inputs in {
        "denormal values": (q, k, v * small),
        "denormal queries": (q * smaller, k, v),
        "large values": (q, k, v * large),
        "one key takes all": (q * decisive, k * decisive, v),
        "no key stands out": (q * 0, k, v),
    }.items():
        x, y, z = (each.astype(dtype) for each in inputs)
        # A product and a scaling for each key, and the rounding of a result.
        floor = 2 * 21 * (2.0**-126 if flush else 2.0**-149) + SMALLEST[dtype]
        got = attend(machine, x, y, z)
        held = close(got, x, y, z, floor)
        record_claim("verify_attention", name, held)
        for row in range(3):
            held = bool(mx.array_equal(alone(machine, row, x, y, z)[:, :, 0], got[:, :, row]))
            record_claim("verify_attention", f"{name}, row {row}", held, bits=True)
        # Zeros would be noticed.
        assert flush or not close(mx.zeros_like(x), x, y, z, floor)


def test_what_is_behind_a_row_cannot_spoil_it(record_claim):
    q, k, v = made(Shape(4, 2, 64), mx.float32, 4, 21)
    good = attend(Machine(), q, k, v)
    k[:, :, -2:], v[:, :, -2:] = mx.nan, mx.inf
    got = attend(Machine(), q, k, v)
    held = bool(mx.array_equal(got[:, :, :2], good[:, :, :2]))
    record_claim("verify_attention", "rows before a bad key", held, bits=True)
    assert not mx.any(mx.isfinite(got[:, :, 2:]))


# Rows times heads that a simdgroup takes one, two and four of, at every width; dtypes take turns.
VARIANTS = [
    (width, heads, rows, DTYPES[(i + j) % len(DTYPES)])
    for i, width in enumerate(WIDTHS)
    for j, (heads, rows) in enumerate([(1, 2), (3, 3), (6, 3)])
]
# Where races are looked for, rows and dtypes take turns.
WATCHED = [("address", *variant) for variant in VARIANTS]
WATCHED += [("thread", *VARIANTS[3 * i + i % 3]) for i in range(len(WIDTHS))]


@pytest.mark.parametrize(("sanitizer", "width", "heads", "rows", "dtype"), WATCHED)
def test_every_variant_is_clean(sanitizer, width, heads, rows, dtype, record_claim):
    q, k, v = made(Shape(heads, 1, width), dtype, rows, 13)
    machine = Machine(sanitizer=sanitizer, schedule=width + heads)
    got = attend(machine, q, k, v)
    record_claim("verify_attention", f"clean under {machine}", close(got, q, k, v))


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_nothing_is_read_or_written_where_it_should_not_be(sanitizer, record_claim):
    # Of several threadgroups the last is not full; two blocks of keys; two sequences.
    large = made(Shape(10, 2, 64), mx.float32, 15, 20)
    long = made(Shape(2, 1, 64), mx.float32, 2, BLOCK + 2)
    for schedule in ("backward", 1, 2):
        machine = Machine(sanitizer=sanitizer, schedule=schedule)
        for inputs in (made(Shape(6, 2, 64), mx.float32, 3, 13, batch=2), large, long):
            got = attend(machine, *inputs)
            claim = f"{sanitizer}, {schedule}, {inputs[0].shape}"
            record_claim("verify_attention", claim, close(got, *inputs))


def test_what_there_is_a_kernel_for():
    chip = Chip(17, "s")
    qwen = Shape(24, 4, 256)
    assert str(qwen) == "24 heads of 256, 4 of keys"
    assert fits(qwen, mx.bfloat16, chip)
    assert fits(Shape(32, 2, 64), mx.float16, chip)
    assert not fits(qwen, mx.bfloat16, None)
    assert not fits(qwen, mx.int8, chip)
    for shape in (Shape(24, 5, 128), Shape(34, 2, 128), Shape(8, 8, 80), Shape(8, 8, 512)):
        assert not fits(shape, mx.bfloat16, chip)


@pytest.mark.parametrize(("rows", "keys"), [(17, 40), (3, 2)])
def test_too_many_rows_are_refused(rows, keys):
    with pytest.raises(ValueError, match=f"{rows} rows of {keys} positions"):
        attend(Machine(), *made(Shape(2, 2, 64), mx.float32, rows, keys))
