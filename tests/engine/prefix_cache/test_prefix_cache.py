from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.prefix_cache.prefix_cache import CHECKPOINTS_KEPT, PrefixCache


@dataclass(frozen=True)
class Kept:
    name: str
    nbytes: int = 100


def attention_only(budget: int = 10_000, granularity: int = 1) -> PrefixCache:
    return PrefixCache(budget, recurrent=False, granularity=granularity)


def test_attention_is_reused_up_to_the_first_difference():
    cache = attention_only()
    cache.insert([1, 2, 3, 4, 5], Kept("a"), {})
    hit = cache.lookup([1, 2, 3, 9, 9])
    assert hit is not None
    assert (hit.length, hit.attention.name, hit.recurrent) == (3, "a", None)
    assert cache.lookup([7, 1, 2]) is None


def test_the_last_token_is_always_left_to_compute():
    cache = attention_only()
    cache.insert([1, 2, 3], Kept("a"), {})
    hit = cache.lookup([1, 2, 3])
    assert hit is not None
    assert hit.length == 2
    assert cache.lookup([1]) is None


def test_recurrent_state_is_reused_at_checkpoints_only():
    cache = PrefixCache(10_000, recurrent=True)
    cache.insert([1, 2, 3, 4, 5, 6], Kept("a"), {2: Kept("at 2"), 5: Kept("at 5")})
    hit = cache.lookup([1, 2, 3, 4, 9])
    assert hit is not None
    assert (hit.length, hit.recurrent) == (2, Kept("at 2"))
    hit = cache.lookup([1, 2, 3, 4, 5, 6])
    assert hit is not None
    assert hit.length == 5
    assert cache.lookup([1, 9, 9]) is None


def test_hits_are_cut_to_the_grid():
    cache = attention_only(granularity=4)
    cache.insert(list(range(10)), Kept("a"), {})
    hit = cache.lookup([*range(7), 99, 99])
    assert hit is not None
    assert hit.length == 4
    assert cache.lookup([0, 1, 2, 99]) is None


def test_a_longer_entry_takes_over_a_prefix_and_its_checkpoints():
    cache = PrefixCache(10_000, recurrent=True)
    cache.insert([1, 2], Kept("short"), {2: Kept("at 2")})
    cache.insert([1, 2, 3, 4], Kept("long"), {4: Kept("at 4")})
    assert len(cache) == 1
    hit = cache.lookup([1, 2, 9])
    assert hit is not None
    assert (hit.attention.name, hit.recurrent) == ("long", Kept("at 2"))
    cache.insert([1, 2, 3], Kept("late"), {3: Kept("at 3")})
    assert len(cache) == 1
    hit = cache.lookup([1, 2, 3, 9])
    assert hit is not None
    assert (hit.attention.name, hit.recurrent) == ("long", Kept("at 3"))


def test_least_recently_used_goes_first():
    cache = attention_only(budget=330)
    for first in (1, 2, 3):
        cache.insert([first, 5], Kept(str(first)), {})
    assert cache.lookup([1, 5, 6]) is not None
    cache.insert([4, 5], Kept("4"), {})
    assert cache.lookup([2, 5, 6]) is None
    assert cache.lookup([1, 5, 6]) is not None
    cache.check_integrity()


def test_an_entry_larger_than_the_budget_is_not_kept():
    cache = attention_only(budget=50)
    cache.insert([1, 2], Kept("a"), {})
    assert len(cache) == 0
    assert cache.lookup([1, 2, 3]) is None


def test_old_checkpoints_of_a_long_conversation_go():
    cache = PrefixCache(10**6, recurrent=True)
    count = CHECKPOINTS_KEPT + 3
    for turn in range(1, count + 1):
        cache.insert(list(range(turn)), Kept("a"), {turn: Kept(f"at {turn}")})
    hit = cache.lookup([0, 1, 2, 99])
    assert hit is None
    hit = cache.lookup([*range(count), 99])
    assert hit is not None
    assert hit.length == count


def test_a_broken_cache_is_noticed():
    cache = attention_only()
    cache.insert([1, 2], Kept("a"), {})
    cache.budget = 1
    with pytest.raises(EngineError, match="over budget"):
        cache.check_integrity()


words = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(words, max_size=12), words, st.booleans(), st.integers(0, 900))
def test_a_hit_is_always_a_true_prefix_and_never_shorter_than_needed(
    inserted, wanted, recurrent, budget
):
    cache: PrefixCache = PrefixCache(budget, recurrent=recurrent)
    for tokens in inserted:
        cache.insert(tokens, Kept("".join(map(str, tokens)), 10), {len(tokens): Kept("c", 5)})
        cache.check_integrity()
    hit = cache.lookup(wanted)
    if hit is not None:
        assert hit.attention.name.startswith("".join(map(str, wanted[: hit.length])))
        assert hit.length < len(wanted)
    if budget == 900 and not recurrent:

        def shared(tokens):
            pairs = zip(tokens, wanted[:-1], strict=False)
            return next(
                (i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(wanted) - 1)
            )

        assert (hit.length if hit else 0) == max(map(shared, inserted), default=0)
