from __future__ import annotations

import random

import msgspec
import pytest

from engine.decoding.acceptance import FIRST, Acceptance, Learnt
from engine.errors import ModelError


def after(*rounds: tuple[int, int]) -> Acceptance:
    acceptance = Acceptance()
    for right, tried in rounds:
        acceptance.observe(right, tried)
    return acceptance


def test_what_was_never_seen_is_thought_as_good_as_what_stands_before_it() -> None:
    assert Acceptance().by_position(3) == [FIRST] * 3
    seen = after(*[(1, 1)] * 50)
    first, second, third = seen.by_position(3)
    assert first == second == third > 0.95


def test_learns_each_position_and_expects_what_then_happens() -> None:
    chance, acceptance = random.Random(1), Acceptance()
    rates = [0.9, 0.6, 0.8]
    expected, happened = 0.0, 0
    for _ in range(3_000):
        right = 0
        while right < 3 and chance.random() < rates[right]:
            right += 1
        expected += acceptance.forecast(3)[0][-1]
        happened += right + 1
        acceptance.observe(right, 3)
    assert acceptance.by_position(3) == pytest.approx(rates, abs=0.12)
    # The suspicion of a turn makes it a little too cautious.
    assert expected == pytest.approx(happened, rel=0.05)


def test_expects_more_with_more_drafts_and_the_best_is_better() -> None:
    acceptance = after((2, 4), (4, 4), (0, 4))
    committed, best = acceptance.forecast(6)
    assert committed == sorted(committed)
    assert 1 < committed[0] < 2
    assert all(c < b for c, b in zip(committed, best, strict=True))


def test_two_bad_rounds_outweigh_a_hundred_good_ones_and_one_good_look_brings_them_back() -> None:
    acceptance = after(*[(4, 4)] * 100)
    assert acceptance.forecast(4)[0][-1] > 4.5
    acceptance.observe(0, 4)
    acceptance.observe(0, 4)
    assert acceptance.forecast(4)[0][-1] < 1.5
    assert acceptance.by_position(1)[0] > 0.95
    acceptance.observe(4, 4)
    assert acceptance.forecast(4)[0][-1] > 4


def test_a_drafter_that_is_often_wrong_is_not_given_up_for_being_wrong_twice() -> None:
    chance = random.Random(2)
    acceptance = after(*[(int(chance.random() < 0.4), 1) for _ in range(300)])
    before = acceptance.forecast(1)[0][0]
    acceptance.observe(0, 1)
    acceptance.observe(0, 1)
    assert acceptance.forecast(1)[0][0] > 0.8 * before


def test_the_rest_of_an_old_block_counts_and_says_nothing_about_now() -> None:
    acceptance = after(*[(2, 2)] * 20, (0, 2))
    doubt = acceptance.doubt
    acceptance.observe(1, 3, 2, old=True)
    assert acceptance.doubt == doubt
    known = acceptance.learnt()
    assert known.tried[2] == known.tried[3] > 0
    assert known.accepted[3] == 0
    assert len(known.tried) == 4


def test_a_round_cut_short_says_nothing() -> None:
    acceptance = after((0, 0))
    assert acceptance.learnt() == Learnt(accepted=(), tried=())


def test_what_was_learnt_survives_json() -> None:
    acceptance = after((2, 4), (4, 4), (1, 4))
    kept = msgspec.json.decode(msgspec.json.encode(acceptance.learnt()), type=Learnt)
    assert Acceptance(kept).by_position(4) == pytest.approx(acceptance.by_position(4), abs=1e-3)


@pytest.mark.parametrize(
    ("accepted", "tried"),
    [((1.0,), ()), ((2.0,), (1.0,)), ((-1.0,), (1.0,)), ((0.0,), (float("inf"),))],
)
def test_damaged_counts_are_refused(accepted: tuple[float, ...], tried: tuple[float, ...]) -> None:
    with pytest.raises(ModelError, match="learnt"):
        Learnt(accepted=accepted, tried=tried)
