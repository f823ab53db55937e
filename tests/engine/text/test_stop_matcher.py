"""Stop strings: the streamed result equals the one that `str.find` gives on the whole text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.stop import StopMatcher

TEXT = st.text(alphabet="ab\n😀", max_size=24)
STOPS = st.lists(st.text(alphabet="ab\n😀", min_size=1, max_size=4), max_size=4).map(tuple)


def oracle(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


@given(text=TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 24), max_size=6))
def test_any_chunking_equals_the_whole_text(
    text: str, stops: tuple[str, ...], cuts: list[int]
) -> None:
    expected, stop = oracle(text, stops)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    matcher, emitted = StopMatcher(stops), ""
    for start, end in itertools.pairwise(edges):
        emit, hit = matcher.feed(text[start:end])
        emitted += emit
        assert expected.startswith(emitted), "text was emitted that had to be taken back"
        assert hit in (None, stop)
    emitted += matcher.flush()
    assert (emitted, matcher.hit) == (expected, stop)


@pytest.mark.parametrize(
    ("stops", "feeds", "emits", "hit"),
    [
        (("</s>",), ["a</", "s>b"], ["a", ""], "</s>"),
        (("ab", "abc"), ["xab", "d"], ["x", ""], "ab"),
        (("ab", "abc"), ["xab", "c"], ["x", ""], "abc"),
        (("bcd", "abcdef"), ["abcd", "x"], ["", "a"], "bcd"),
        ((), ["anything"], ["anything"], None),
    ],
)
def test_what_is_emitted_when(
    stops: tuple[str, ...], feeds: list[str], emits: list[str], hit: str | None
) -> None:
    matcher = StopMatcher(stops)
    assert [matcher.feed(text)[0] for text in feeds] == emits
    matcher.flush()
    assert matcher.hit == hit


def test_after_a_hit_nothing_follows() -> None:
    matcher = StopMatcher(("x",))
    assert matcher.feed("ax") == ("a", "x")
    assert matcher.feed("more") == ("", "x")
    assert matcher.flush() == ""


def test_text_that_cannot_begin_a_stop_is_not_held_back() -> None:
    matcher = StopMatcher(("\n\n",))
    assert matcher.feed("one\n") == ("one", None)
    assert matcher.feed("two") == ("\ntwo", None)
