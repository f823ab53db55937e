from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.copy import MAX_MATCH, CopyDrafter, SuffixAutomaton
from engine.drafters.drafter import Drafter


def longest_repeat(text: Sequence[int], bound: int) -> tuple[int, int]:
    """Length of the longest suffix that occurs earlier, and where its latest occurrence ends."""
    for length in range(min(len(text) - 1, bound), 0, -1):
        suffix = list(text[-length:])
        for end in range(len(text) - 1, length - 1, -1):
            if list(text[end - length : end]) == suffix:
                return length, end
    return 0, 0


def draft_oracle(text: Sequence[int], limit: int, min_match: int) -> list[int]:
    match, source = longest_repeat(text, MAX_MATCH)
    if match < min_match:
        return []
    grown = list(text)
    for _ in range(min(limit, match)):
        grown.append(grown[source])
        source += 1
    return grown[len(text) :]


texts = st.one_of(
    st.lists(st.integers(0, 1), max_size=40),
    st.lists(st.integers(0, 3), max_size=60),
    # Periodic with a break: the hard case for every suffix structure.
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=4),
        st.integers(1, 30),
        st.lists(st.integers(0, 3), max_size=3),
        st.integers(0, 8),
    ).map(lambda parts: parts[0] * parts[1] + parts[2] + parts[0] * parts[3]),
    st.lists(st.sampled_from([0, 0xD800, 0xFFFF, 0x10000, 248_319]), max_size=30),
)


@settings(max_examples=300, deadline=None)
@given(text=texts, limit=st.integers(0, 20), min_match=st.integers(1, 4), data=st.data())
def test_drafts_what_the_oracle_drafts(
    text: list[int], limit: int, min_match: int, data: st.DataObject
) -> None:
    drafter = CopyDrafter(min_match=min_match)
    done = 0
    while done < len(text):
        step = data.draw(st.integers(1, max(1, len(text) // 3)))
        drafter.commit(text[done : done + step])
        done = min(done + step, len(text))
        assert drafter.match == longest_repeat(text[:done], MAX_MATCH)[0]
        assert drafter.propose(limit) == draft_oracle(text[:done], limit, min_match)


@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_the_automaton_knows_the_longest_repeated_suffix(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, start=1):
        automaton.add(token)
        assert automaton.repeated == longest_repeat(text[:end], end)[0]
    # At most 2n - 1 states and 3n - 4 transitions, as proven for a minimal automaton.
    assert len(automaton._next) <= max(2, 2 * len(text))
    assert sum(map(len, automaton._next)) <= max(2, 3 * len(text))


def test_it_is_a_drafter() -> None:
    drafter: Drafter = CopyDrafter([1, 2, 3, 4, 1, 2, 3])
    assert drafter.name == "copy"
    assert drafter.propose(8) == [4, 1, 2]
    assert drafter.propose(1) == [4]
    assert drafter.propose(0) == []


def test_proposing_changes_nothing() -> None:
    drafter = CopyDrafter([5, 6, 7, 8, 5, 6, 7])
    assert drafter.propose(9) == drafter.propose(9)
    drafter.commit([8])
    assert drafter.propose(2) == [5, 6]


def test_the_latest_of_equally_long_matches_wins() -> None:
    assert CopyDrafter([1, 2, 3, 10, 9, 1, 2, 3, 11, 8, 1, 2, 3]).propose(1) == [11]


def test_the_longest_match_beats_a_later_one() -> None:
    assert CopyDrafter([7, 1, 2, 3, 10, 9, 1, 2, 3, 11, 7, 1, 2, 3]).propose(1) == [10]


def test_a_period_goes_on_around() -> None:
    assert CopyDrafter([1, 2, 3] * 3).propose(8) == [1, 2, 3, 1, 2, 3]
    assert CopyDrafter([4] * 10).propose(5) == [4] * 5


def test_a_short_match_drafts_nothing() -> None:
    assert CopyDrafter([2, 9, 1, 2]).propose(8) == []
    assert CopyDrafter([1, 2, 9, 1, 2], min_match=2).propose(8) == [9, 1]
    assert CopyDrafter([]).propose(8) == []
    assert CopyDrafter([1]).propose(8) == []


def test_a_draft_grows_with_the_match() -> None:
    source = list(range(200))
    for match in (3, 10, 64, 100):
        drafter = CopyDrafter([*source, 999, *source[:match]])
        assert drafter.propose(1000) == source[match : match + min(match, MAX_MATCH)]


def test_min_match_must_be_positive() -> None:
    with pytest.raises(ValueError, match="min_match must be at least 1, got 0"):
        CopyDrafter([1], min_match=0)


def test_work_stays_linear_on_long_and_on_periodic_prompts() -> None:
    """Counted in automaton states, not in seconds: quadratic growth would not come back."""
    noise = random.Random(0)
    for prompt in (
        [noise.randrange(4096) for _ in range(30_000)],
        [0] * 30_000,
        [1, 2, 3, 4] * 7_500,
        [noise.randrange(2) for _ in range(30_000)],
    ):
        drafter = CopyDrafter(prompt)
        assert len(drafter._automaton._next) <= 2 * len(prompt)
        for token in (0, 1, 0, 0):
            drafter.commit([token])
            drafter.propose(16)
