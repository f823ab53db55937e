import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.edits.indentation import with_margin, without_margin
from sidecar.edits.reply import (
    fence_for,
    has_markers,
    replaced_blocks,
    rewritten_region,
    strange_characters,
)
from sidecar.edits.writable_root import Refused

BLOCK = "<<<<<<< SEARCH\n{}=======\n{}>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```python\na = 1\n```", "a = 1"),
        ("Here it is:\n\n```\na = 1\nb = 2\n```\nDone.", "a = 1\nb = 2"),
        ("<think>```\nno\n```</think>\n```py\n  a\n```\n", "  a"),
        ("```\r\na\r\n```\r\n", "a"),
    ],
)
def test_a_rewritten_region(reply, code):
    assert rewritten_region(reply, "```") == code


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("a = 1", "no code block"),
        ("", "no code block"),
        ("```python\na = 1\n", "does not end"),
        ("```\na\n```\n```\nb\n```", "more than one code block"),
        ("```\n\n```", "is empty"),
        ("```\na\n```python\n", "does not end"),
    ],
)
def test_what_is_no_rewritten_region(reply, reason):
    with pytest.raises(Refused, match=reason):
        rewritten_region(reply, "```")


@given(st.text(alphabet="`a\n ", max_size=40))
def test_code_with_fences_in_it_comes_through(code):
    fence = fence_for(code)
    if code.strip():
        assert rewritten_region(f"{fence}markdown\n{code}\n{fence}", fence) == code


def test_blocks():
    region = "a = 1\nb = 2\nc = 3\n"
    reply = "Sure.\n" + BLOCK.format("a = 1\n", "a = 9\n") + BLOCK.format("c = 3\n", "")
    assert replaced_blocks(region, reply) == "a = 9\nb = 2\n"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("no blocks", "no search and replace block"),
        (BLOCK.format("x = 1\n", "y\n"), "block 1 of the answer searches is not in the code"),
        (BLOCK.format("b\n", "c\n"), "in the code 2 times"),
        (BLOCK.format("\n", "c\n"), "searches nothing"),
        ("<<<<<<< SEARCH\na\n>>>>>>> REPLACE\n", "not in order"),
        ("<<<<<<< SEARCH\na\n=======\nb\n", "not in order"),
        (">>>>>>> REPLACE\n", "not in order"),
        ("<<<<<<< SEARCH\na\n<<<<<<< SEARCH\n=======\nb\n>>>>>>> REPLACE", "not in order"),
    ],
)
def test_what_are_no_blocks(reply, reason):
    with pytest.raises(Refused, match=reason):
        replaced_blocks("a\nb\nb\n", reply)


def test_a_block_must_not_touch_half_a_line():
    with pytest.raises(Refused, match="not in the code"):
        replaced_blocks("ab = 1\n", BLOCK.format("ab\n", "c\n"))


def test_lines_of_a_merge_conflict_are_known():
    assert has_markers("a\n=======\nb")
    assert not has_markers("a = b  # =======")


def test_invisible_characters_are_named():
    assert "RIGHT-TO-LEFT OVERRIDE" in strange_characters("a", "a\u202eb")
    assert strange_characters("a\u200b", "b\u200b") == ""
    assert strange_characters("a", "é🙂\t\n") == ""
    assert strange_characters("a", "\x1b[31m") != ""


@given(st.text(alphabet=" \tab\n", max_size=40))
def test_a_margin_comes_off_and_goes_back(code):
    margin, bare = without_margin(code)
    assert with_margin(margin, bare) == code


def test_a_methods_margin():
    assert without_margin("    def f():\n\n        pass") == ("    ", "def f():\n\n    pass")
    assert without_margin("  a\n \n  b") == ("  ", "a\n \nb")
