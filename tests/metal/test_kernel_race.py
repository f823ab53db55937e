"""Who is quicker, and who is used: plain numbers in, numbers of rows out."""

from __future__ import annotations

import mlx.core as mx

from metal.race import Findings, race, served


class Calls:
    """Steps that take a time of their own by this clock."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, ""

    def __call__(self) -> float:
        return self.now

    def step(self, name: str, seconds: float):
        def run(x: mx.array) -> mx.array:
            self.now += seconds
            self.order += name
            return x[:, :2]

        return run


def test_a_call_takes_its_share_of_a_chain_and_steps_take_turns():
    calls = Calls()
    steps = {"a": calls.step("a", 1.0), "b": calls.step("b", 3.0)}
    x = mx.ones((2, 4), mx.bfloat16)
    assert race(steps, x, length=2, repeats=2, clock=calls) == {"a": 1.0, "b": 3.0}
    assert calls.order == "ab" + "aabb" * 2


def test_every_call_of_a_chain_depends_on_the_one_before():
    seen = []

    def step(x: mx.array) -> mx.array:
        seen.append(x)
        return x * 3

    x = mx.array([[1.0, 2.0]])
    race({"a": step}, x, length=3, repeats=1)
    assert len(seen) == 4
    # Another array each time, of the same numbers.
    assert len(set(map(id, seen[1:]))) == 3
    assert all(mx.array_equal(one, x) for one in seen)


WIDTHS = range(2, 9)


def found(ours, stock, *, like_stock=True, exact=lambda rows: True, fault=""):
    return Findings(
        fault,
        like_stock,
        {rows: exact(rows) for rows in WIDTHS},
        {rows: ours(rows) for rows in (1, 4, 8)},
        {rows: stock(rows) for rows in (1, 4, 8)},
    )


def test_a_kernel_that_is_wrong_is_not_used_however_fast():
    assert served(found(lambda m: 1.0, lambda m: 9.0, fault="values are off")) == frozenset()


def test_between_equals_in_bits_time_decides_for_each_number_of_rows():
    # Stock MLX reads the weights for every row; ours reads them once, which costs a little more.
    assert served(found(lambda m: 1.2, lambda m: float(m))) == {*WIDTHS}
    # Of times that were not taken the next larger counts: 5 to 8 rows take what 8 take.
    assert served(found(lambda m: 1.0, lambda m: 2.0 if m == 8 else 1.0)) == {5, 6, 7, 8}
    assert served(found(lambda m: 0.98, lambda m: 1.0)) == frozenset()


def test_where_stock_rows_are_not_exact_ours_have_to_beat_single_rows():
    late = found(lambda m: 2.0, lambda m: 1.0, exact=lambda rows: rows < 6)
    # 2 to 5 are exact and quicker as they are; 6 to 8 are not exact at all.
    assert served(late) == {6, 7, 8}
    # Eight rows for the price of nine single ones.
    assert served(found(lambda m: 1.1 * m, lambda m: 1.0, exact=lambda rows: False)) == frozenset()


def test_other_bits_than_stock_s_are_used_for_every_number_of_rows_or_none():
    def other(ours, exact):
        return served(found(ours, lambda m: 1.0, like_stock=False, exact=exact))

    every = {1, *WIDTHS}
    # Exact as it is: only for speed, and a single row must not pay.
    assert other(lambda m: 0.8, lambda rows: True) == every
    assert other(lambda m: 1.0, lambda rows: True) == frozenset()
    assert other(lambda m: 1.2 if m == 1 else 0.5, lambda rows: True) == frozenset()
    # Not exact: as soon as several rows cost less than as many single ones.
    assert other(lambda m: 1.0 if m == 1 else 4.0, lambda rows: rows < 4) == every
    assert other(lambda m: 1.2 if m == 1 else 4.0, lambda rows: rows < 4) == frozenset()
    assert other(lambda m: 1.0 if m == 1 else 9.0, lambda rows: rows < 4) == frozenset()
