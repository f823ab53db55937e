from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.context_cache import STEP, ContextCache, PositionedRows


def rows(start: int, end: int) -> mx.array:
    """Each row holds its own position."""
    return mx.broadcast_to(mx.arange(start, end)[:, None], (1, 2, end - start, 3))


def positions(held: mx.array) -> list[int]:
    assert held.shape[:2] == (1, 2)
    return np.array(held)[0, 1, :, 2].tolist()


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "skip", "block"]), st.integers(1, 90)),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([None, 1, 7, 90, 300]), st.integers(0, 1000))
def test_what_is_held_are_the_last_rows_in_order(steps: list[Step], reach, start):
    held, expected, end = PositionedRows(reach, start), [], start
    for kind, count in steps:
        if reach is not None:
            count = min(count, reach)
        if kind == "append":
            held.append(rows(end, end + count))
            expected += range(end, end + count)
            end += count
            expected = expected if reach is None else expected[-reach:]
        elif kind == "skip":
            held.skip(count)
            end += count
            expected = []
        else:
            seen = positions(held.followed_by(rows(-count, 0)))
            assert seen == expected + list(range(-count, 0))
        assert (held.end, len(held)) == (end, len(expected))
        assert held.start == end - len(expected)
        if expected:
            assert positions(held.view(held.start, held.end)) == expected


def test_a_buffer_is_moved_when_it_is_full_and_not_before():
    held = PositionedRows(4)
    buffers = set()
    for position in range(3 * STEP):
        held.append(rows(position, position + 1))
        buffers.add(held.arrays()[0].shape[-2])
        assert positions(held.view(held.start, held.end)) == list(
            range(max(0, position - 3), position + 1)
        )
    assert max(buffers) <= 2 * STEP


def test_rows_that_are_not_held_cannot_be_read():
    held = PositionedRows(4)
    with pytest.raises(ValueError, match="rows"):
        held.view(0, 0)
    held.append(rows(0, 4))
    held.append(rows(4, 6))
    for start, end in ((1, 6), (3, 7), (5, 4)):
        with pytest.raises(ValueError, match=r"\[2, 6\)"):
            held.view(start, end)


def test_a_block_behind_the_rows_does_not_become_part_of_them():
    cache = ContextCache(None)
    cache.append(rows(0, 3), rows(100, 103))
    keys, values = cache.followed_by(rows(50, 52), rows(60, 62))
    assert (positions(keys), positions(values)) == (
        [0, 1, 2, 50, 51],
        [100, 101, 102, 60, 61],
    )
    cache.append(rows(3, 4), rows(103, 104))
    keys, values = cache.followed_by(rows(50, 51), rows(60, 61))
    assert (positions(keys), positions(values)) == ([0, 1, 2, 3, 50], [100, 101, 102, 103, 60])
    assert (len(cache), cache.end) == (4, 4)
