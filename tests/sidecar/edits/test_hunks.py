import itertools
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.edits.hunks import (
    Hunk,
    LineHunk,
    apply_hunks,
    apply_line_hunks,
    hunks,
    line_hunks,
    rewritten,
    unified_diff,
)
from sidecar.edits.text_file import with_newlines
from sidecar.workspace.documents import Change, Document
from sidecar.workspace.positions import Position, Range, split_lines, units_of

lines = st.sampled_from(["", "a", "b", "ab", "abc", "🙂x", "é", "x = 1"])
ends = st.sampled_from(["\n", "\n", "\r\n", "\r"])
texts = st.lists(st.tuples(lines, ends).map("".join), max_size=8).map("".join)
texts = st.tuples(texts, lines).map("".join)


@given(old=texts, new=texts)
def test_hunks_lead_from_one_text_to_the_other(old, new):
    found = hunks(old, new)
    assert apply_hunks(old, found) == new
    places = [(h.line, h.column, h.end_line, h.end_column) for h in found]
    assert places == sorted(places)
    assert all(one[2:] <= other[:2] for one, other in itertools.pairwise(places))


@given(old=texts, new=texts, encoding=st.sampled_from(["utf-8", "utf-16", "utf-32"]))
@example(old="\n\r\r\n", new="\n\n\n", encoding="utf-8")
def test_an_editor_that_applies_them_has_the_new_text(old, new, encoding):
    """From the last to the first, as editors do, each with positions in the old text."""
    document = Document.of(old)
    for hunk in reversed(hunks(old, new)):

        def units(line, column):
            text = Document.of(old).lines[line] if line < len(Document.of(old).lines) else ""
            return Position(line, units_of(text[:column], encoding))

        place = Range(units(hunk.line, hunk.column), units(hunk.end_line, hunk.end_column))
        document = document.changed(Change(text=hunk.text, range=place), encoding)
    assert document.text == new


def test_hunks_are_as_small_as_the_change():
    old = "def total(items):\r\n    return sum(items)\r\n\r\nprint(total([1]))\r\n"
    assert hunks(old, old.replace("total", "add_up")) == (
        Hunk(0, 4, 0, 9, "add_up"),
        Hunk(3, 6, 3, 11, "add_up"),
    )
    assert hunks("a\nb\n", "a\nnew\nb\n") == (Hunk(1, 0, 1, 0, "new\n"),)
    assert hunks("a\nb\nc\n", "a\nc\n") == (Hunk(1, 0, 2, 0, ""),)
    assert hunks("a", "a") == ()


@given(old=texts, new=texts.map(str.rstrip))
def test_rewritten_text_has_the_models_lines(old, new):
    """Line ends are the original's, and so is whether the last line has one."""
    new = with_newlines(new)
    result = rewritten(old, new)
    assert with_newlines(result).removesuffix("\n") == new
    if result:
        assert result.endswith(("\n", "\r")) == (not old or old.endswith(("\n", "\r")))


@given(old=texts)
def test_a_text_that_comes_back_unchanged_is_unchanged(old):
    assert rewritten(old, with_newlines(old)) == old
    old = "x" + old.rstrip() + "\n"
    assert rewritten(old, with_newlines(old).removesuffix("\n")) == old


def test_each_line_keeps_its_own_end():
    old = "a\r\nb\nc\rd"
    assert rewritten(old, "a\nB\nc\nd\n") == "a\r\nB\nc\rd"
    assert rewritten("a\r\nb\r\n", "a\nx\nb\n") == "a\r\nx\r\nb\r\n"
    assert rewritten("a\n", "") == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a\nb\nc\n", "a\nB\nc\n"),
        ("a\r\nb\r\n", "a\r\nc\r\n"),
        ("a\nb", "a\nc"),
        ("a\n", "a"),
        ("a\fb\n", "a\fc\n"),
    ],
)
def test_patch_takes_the_diff(tmp_path, old, new):
    (tmp_path / "f.txt").write_bytes(old.encode())
    diff = "".join(line + "\n" for line in unified_diff("f.txt", old, new))
    done = subprocess.run(
        ["git", "apply", "-"], input=diff.encode(), cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "f.txt").read_bytes() == new.encode()


@given(old=texts, new=texts, chosen=st.sets(st.integers(0, 8)))
def test_any_of_the_line_hunks_can_be_taken(old, new, chosen):
    """As whole lines or as the smallest changes: the same text, with the other lines untouched."""
    found = line_hunks(old, new)
    taken = [hunk for number, hunk in enumerate(found) if number in chosen]
    text = apply_line_hunks(old, [(hunk.first, hunk.old, hunk.new) for hunk in taken])
    assert text == apply_hunks(old, [small for hunk in taken for small in hunk.hunks])
    lines = split_lines(old)
    assert all("".join(lines[hunk.first : hunk.last]) == hunk.old for hunk in found)
    assert all(one.last < other.first for one, other in itertools.pairwise(found))
    if len(taken) == len(found):
        assert text == new


def test_line_hunks_are_whole_lines():
    old = "a\nb\nc\n"
    assert line_hunks(old, "a\nB\nc\nd\n") == (
        LineHunk(1, 2, "b\n", "B\n", (Hunk(1, 0, 1, 1, "B"),)),
        LineHunk(3, 3, "", "d\n", (Hunk(3, 0, 3, 0, "d\n"),)),
    )
    with pytest.raises(ValueError, match="line 2 is not what it was"):
        apply_line_hunks(old, [(1, "c\n", "")])
