"""What was shown answers for as long as it is what the user is writing. `|` marks the cursor."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.jobs.suggestion_memory import KEPT, Answer, Cursor, SuggestionMemory

FILE = "file:///a.py"


def cursor(document, context=None, file=FILE):
    prefix, _, suffix = document.partition("|")
    *above, line = re.split(r"\r\n|\n|\r", prefix)
    return Cursor(
        document=file,
        line=len(above),
        column=len(line),
        prefix=prefix,
        suffix=suffix,
        context=context,
    )


def shown(document, *texts, asked=1, reach=4096):
    found = SuggestionMemory(reach)
    found.remember(cursor(document), Answer(texts=texts, asked=asked))
    return found


def left(found, document, context=None):
    answer = found.recall(cursor(document, context))
    return None if answer is None else answer.texts


TEXTS = st.text(st.sampled_from("ab (){}\n\t'é😀"), min_size=1, max_size=30)
BEFORE = st.lists(st.sampled_from(["a", "b ", "\n", "😀", "x = f(1)\n" * 8])).map("".join)


@given(BEFORE, TEXTS, st.text(st.sampled_from("ab\n)"), max_size=80), st.integers(0, 30))
def test_what_is_left_is_exactly_what_was_not_taken_yet(prefix, text, suffix, taken):
    """By key, word or line, and when some of it is deleted again."""
    found = shown(f"{prefix}|{suffix}", text, reach=128)
    now = left(found, f"{prefix}{text[:taken]}|{suffix}")
    if text[taken:].strip():
        assert now == (text[taken:],)
    elif taken:
        assert now is None


@given(BEFORE, TEXTS, st.integers(0, 30))
def test_where_the_cursor_is_behind_a_text(prefix, text, taken):
    begun = cursor(f"{prefix}|")
    assert begun.behind(text[:taken]).behind(text[taken:]) == cursor(f"{prefix}{text}|")


@given(BEFORE, st.text(st.sampled_from("ab"), min_size=1), TEXTS)
def test_nothing_is_left_of_what_the_user_does_not_write(prefix, typed, text):
    assert left(shown(f"{prefix}|\n", "c" + text, reach=128), f"{prefix}{typed}|\n") is None


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("x = |\n", "y = f|\n"),  # another text before
        ("x = |\n", "x = f|\ny"),  # and behind
        ("x = |\n", "x = |"),
        ("x = |\n", "x =|\n"),  # deleted beyond where it began
        ("x = |\n", "x = g|\n"),  # something else typed
        ("x = |\n", "x = foo(a)|\n"),  # all of it
        ("x = |\n", "x = foo(a) |\n"),
    ],
)
def test_any_other_text_is_unknown(then, now):
    assert left(shown(then, "foo(a)"), now) is None


def test_what_was_made_from_another_context_holds_only_once_it_is_typed():
    found = SuggestionMemory(100)
    found.remember(cursor("x = |", "then"), Answer(texts=("abc",), asked=1))
    assert left(found, "x = |", "now") is None
    assert left(found, "x = a|", "now") == ("bc",)
    assert left(found, "x = |", "then") == ("abc",)


def test_another_document_is_unknown():
    assert shown("|", "a").recall(cursor("|", file="file:///b.py")) is None


def test_nothing_worth_showing_is_remembered_where_it_was_found_only():
    found = shown("x = |\n")
    assert left(found, "x = |\n") == ()
    assert left(found, "x = 1|\n") is None


def test_alternatives_stay_as_long_as_they_fit():
    found = shown("x = |\n", "foo(a)", "foo(b)", "bar")
    assert left(found, "x = foo(|\n") == ("a)", "b)")
    assert left(found, "x = b|\n") == ("ar",)


def test_alternatives_of_which_the_same_is_left_are_one():
    assert left(shown("f|\n", "(a", "(a)"), "f(|)\n") == ("a",)


@pytest.mark.parametrize(
    ("then", "text", "now", "expected"),
    [
        ("x = f|\n", "(a, b)", "x = f(|)\n", "a, b"),
        ("x = f|\n", "(a, b) + c", "x = f(|)\n", "a, b"),
        ("x = |\n", '"abc"', 'x = "|"\n', "abc"),
        ("f|()\n", "([1, 2]", "f(|)()\n", "[1, 2]"),
        ("int f() |\n", "{\n  return 1;\n}", "int f() {|}\n", "\n  return 1;\n"),
        ("int f() |\n", "{\n  return 1;\n}", "int f() {\n  |\n}\n", "return 1;"),
        ("int f() |\r\n", "{\r\n  a;\r\n}", "int f() {\r\n  |\r\n}\r\n", "a;"),
    ],
)
def test_brackets_that_the_editor_closed_are_not_repeated(then, text, now, expected):
    found = left(shown(then, text), now)
    assert found == (expected,)


def test_only_what_is_near_is_compared():
    far, near = "far\n" * 40, "near\n" * 40
    found = shown(far + near + "x = |\n", "foo", reach=64)
    assert left(found, far.replace("far", "fax") + near + "x = f|\n") == ("oo",)
    assert left(found, near + "x = y\nx = f|\n") is None


def test_what_was_typed_beyond_reach_is_unknown():
    found = shown("|", "a" * 20, reach=8)
    assert left(found, "a" * 8 + "|") == ("a" * 12,)
    assert left(found, "a" * 12 + "|") is None


def test_text_that_repeats_itself_is_found_at_the_right_place():
    line = "aaaa " * 30
    found = shown(f"{line}|\n", "aaaa aaaa b", reach=4096)
    assert left(found, f"{line}aaaa |\n") == ("aaaa b",)
    assert left(found, f"{line}aaaa aaaa |\n") == ("b",)
    assert left(found, f"{line[:-5]}|\n") is None


def test_of_the_same_place_the_newest_counts():
    found = shown("x = |", "old")
    found.remember(cursor("x = |"), Answer(texts=("new",), asked=1))
    assert left(found, "x = |") == ("new",)


def test_the_least_recently_used_is_forgotten():
    found = SuggestionMemory(100)
    for number in range(KEPT):
        found.remember(cursor(f"{number} = |"), Answer(texts=("x",), asked=1))
    assert left(found, "0 = |") == ("x",)
    found.remember(cursor("new = |"), Answer(texts=("x",), asked=1))
    assert len(found) == KEPT
    assert left(found, "0 = |") == ("x",)
    assert left(found, "1 = |") is None


def test_a_closed_document_is_forgotten():
    found = shown("|", "a")
    found.forget(FILE)
    assert len(found) == 0
