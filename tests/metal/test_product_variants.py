"""Every variant that the products are compiled in, watched by the sanitizers."""

from __future__ import annotations

import itertools

import mlx.core as mx
import pytest
from emulator import Machine
from products import expert, gather, multiply, off, rows_of, weights

from metal.verify_matmul import DTYPES, TILINGS

pytestmark = pytest.mark.metal

# Of a variant: bits, groups, one word a lane or two (K is a multiple of 512), the dtype. Beside it
# every number of rows and every tiling take turns.
VARIANTS = list(itertools.product((4, 8), (32, 64, 128), (640, 512), DTYPES))
# Who reads and writes what does not depend on the dtype: for races dtypes take turns, too.
WATCHED = [("address", index) for index in range(len(VARIANTS))]
WATCHED += [("thread", 3 * index + index % 3) for index in range(len(VARIANTS) // 3)]
SCHEDULES = ("backward", 1, 2, "forward", 3)
PICKS = [2, 0, 2, 2, 0, 1, 2, 1]


@pytest.mark.parametrize(("sanitizer", "index"), WATCHED)
def test_nothing_is_read_or_written_where_it_should_not_be(sanitizer, index, record_claim):
    bits, group_size, k, dtype = VARIANTS[index]
    schedule = SCHEDULES[index % len(SCHEDULES)]
    machine = Machine(sanitizer=sanitizer, schedule=schedule)
    rows, tiling = 1 + index % 16, TILINGS[index % len(TILINGS)]
    # Fewer outputs than a simdgroup makes, as many as two make, and one more.
    n = (3, 8, 9)[index % 3]
    matrix, x = weights(k, n, group_size, bits, dtype), rows_of(rows, k, dtype)
    got = multiply(machine, x, matrix, group_size, bits, tiling)
    held = off(got, x, matrix, group_size, bits) <= 1
    record_claim("verify_matmul", f"clean under {machine}", held)
    experts = weights(k, n, group_size, bits, dtype, 3)
    # Each slot a row, or two of them one.
    x = rows_of(len(PICKS) // (1 + index % 2), k, dtype)
    picks = mx.array(PICKS, mx.uint32)
    got = gather(machine, x, experts, picks, group_size, bits, tiling)
    held = all(
        off(
            *(got[slot : slot + 1], x[(row := slot // (1 + index % 2)) : row + 1]),
            *(expert(experts, pick), group_size, bits),
        )
        <= 1
        for slot, pick in enumerate(PICKS)
    )
    record_claim("verify_gather", f"clean under {machine}", held)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize("schedule", ["backward", 1, 2])
def test_no_schedule_shows_a_fault(sanitizer, schedule, record_claim):
    machine = Machine(sanitizer=sanitizer, schedule=schedule)
    matrix, x = weights(1056, 7, 32, 4, mx.float16), rows_of(3, 1056, mx.float16)
    held = off(multiply(machine, x, matrix, 32, 4), x, matrix, 32, 4) <= 1
    record_claim("verify_matmul", f"clean under {machine}", held)
    # More slots of an expert than one pass takes.
    experts, x = weights(96, 9, 32, 8, mx.float32, 3), rows_of(21, 96, mx.float32)
    picks = [2] * 18 + [0, 1, 2]
    got = gather(machine, x, experts, mx.array(picks, mx.uint32), 32, 8)
    held = all(
        off(got[slot : slot + 1], x[slot : slot + 1], expert(experts, pick), 32, 8) <= 1
        for slot, pick in enumerate(picks)
    )
    record_claim("verify_gather", f"clean under {machine}", held)
