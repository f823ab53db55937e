"""What was shown answers for as long as it is what the user is writing. `|` marks the cursor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.jobs.suggestion_memory import KEPT, Answer, SuggestionMemory

FILE = "file:///a.py"


def parts(document):
    prefix, _, suffix = document.partition("|")
    return prefix, suffix


def shown(document, *texts, asked=1, reach=4096):
    found = SuggestionMemory(reach)
    found.remember(FILE, *parts(document), Answer(texts=texts, asked=asked))
    return found


def left(found, document):
    answer = found.recall(FILE, *parts(document))
    return None if answer is None else answer.texts


TEXTS = st.text(st.sampled_from("ab (){}\n\t'é😀"), min_size=1, max_size=30)
BEFORE = st.lists(st.sampled_from(["a", "b ", "\n", "😀", "x = f(1)\n" * 8])).map("".join)


@given(BEFORE, TEXTS, st.text(st.sampled_from("ab\n)"), max_size=80), st.integers(0, 30))
def test_what_is_left_is_exactly_what_was_not_taken_yet(prefix, text, suffix, taken):
    """By key, word or line, and when some of it is deleted again."""
    found = SuggestionMemory(128)
    found.remember(FILE, prefix, suffix, Answer(texts=(text,), asked=1))
    answer = found.recall(FILE, prefix + text[:taken], suffix)
    if text[taken:].strip():
        assert answer.texts == (text[taken:],)
    elif taken:
        assert answer is None


@given(BEFORE, st.text(st.sampled_from("ab"), min_size=1), TEXTS)
def test_nothing_is_left_of_what_the_user_does_not_write(prefix, typed, text):
    found = SuggestionMemory(128)
    found.remember(FILE, prefix, "\n", Answer(texts=("c" + text,), asked=1))
    assert found.recall(FILE, prefix + typed, "\n") is None


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
    found.remember(FILE, "x = ", "", Answer(texts=("abc",), asked=1), "then")
    assert found.recall(FILE, "x = ", "", "now") is None
    assert found.recall(FILE, "x = a", "", "now").texts == ("bc",)
    assert found.recall(FILE, "x = ", "", "then").texts == ("abc",)


def test_another_document_is_unknown():
    assert shown("|", "a").recall("file:///b.py", "", "") is None


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
    assert left(found, "changed\n" + near + "x = f|\n") == ("oo",)
    assert left(found, near + "x = y\nx = f|\n") is None


def test_text_that_repeats_itself_is_found_at_the_right_place():
    line = "aaaa " * 30
    found = shown(f"{line}|\n", "aaaa aaaa b", reach=4096)
    assert left(found, f"{line}aaaa |\n") == ("aaaa b",)
    assert left(found, f"{line}aaaa aaaa |\n") == ("b",)
    assert left(found, f"{line[:-5]}|\n") is None


def test_the_least_recently_used_is_forgotten():
    found = SuggestionMemory(100)
    for number in range(KEPT):
        found.remember(FILE, f"{number} = ", "", Answer(texts=("x",), asked=1))
    assert left(found, "0 = |") == ("x",)
    found.remember(FILE, "new = ", "", Answer(texts=("x",), asked=1))
    assert len(found) == KEPT
    assert left(found, "0 = |") == ("x",)
    assert left(found, "1 = |") is None


def test_a_closed_document_is_forgotten():
    found = shown("|", "a")
    found.forget(FILE)
    assert len(found) == 0
