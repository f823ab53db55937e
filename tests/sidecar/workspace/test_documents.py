"""Open documents against a slow oracle: plain string slicing."""

import logging
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.workspace.documents import Change, Document, Documents
from sidecar.workspace.positions import (
    Position,
    Range,
    column_of,
    split_lines,
    units_of,
    without_end,
)

ENCODINGS = ("utf-8", "utf-16", "utf-32")
TEXT = st.text(alphabet="ab\n\r\té😀\u2028\x0c ", max_size=40)


def reference_lines(text):
    return re.split(r"(?<=\n)|(?<=\r)(?!\n)", text) if text else [""]


def reference_offset(text, position, encoding):
    """Where `position` is in `text`, one character at a time."""
    lines = reference_lines(text)
    if position.line >= len(lines):
        return len(text)
    at = sum(map(len, lines[: position.line]))
    units = 0
    for char in lines[position.line]:
        units += {
            "utf-8": len(char.encode()),
            "utf-16": 1 + (ord(char) > 0xFFFF),
            "utf-32": 1,
        }[encoding]
        if char in "\r\n" or units > position.character:
            break
        at += 1
    return at


@given(TEXT)
def test_lines_end_where_lsp_says_and_nowhere_else(text):
    assert list(split_lines(text)) == reference_lines(text)
    assert all(without_end(line) == line.rstrip("\r\n") for line in split_lines(text))


@settings(max_examples=300)
@given(
    TEXT,
    st.lists(
        st.tuples(*[st.integers(0, 6)] * 4, TEXT),
        max_size=5,
    ),
    st.sampled_from(ENCODINGS),
)
def test_incremental_changes_equal_string_slicing(text, edits, encoding):
    document = Document.of(text)
    for line, character, end_line, end_character, new in edits:
        place = Range(Position(line, character), Position(end_line, end_character))
        start, end = sorted(
            reference_offset(text, position, encoding) for position in (place.start, place.end)
        )
        text = text[:start] + new + text[end:]
        document = document.changed(Change(new, place), encoding)
        assert document.text == text
        assert list(document.lines) == reference_lines(text)


@pytest.mark.parametrize(("encoding", "units"), [("utf-8", 6), ("utf-16", 3), ("utf-32", 2)])
def test_columns_are_counted_in_the_clients_units(encoding, units):
    line = "é😀x"
    assert column_of(line, units, encoding) == 2
    assert units_of(line[:2], encoding) == units
    assert column_of(line, 999, encoding) == 3


@pytest.mark.parametrize(("encoding", "inside"), [("utf-8", 3), ("utf-16", 2)])
def test_a_column_inside_a_character_is_its_start(encoding, inside):
    assert column_of("é😀x", inside, encoding) == 1


def test_a_position_beyond_the_file_is_its_end():
    document = Document.of("one\ntwo")
    assert document.locate(Position(9, 0), "utf-16") == (1, 3)
    assert document.locate(Position(0, 99), "utf-16") == (0, 3)
    assert Document.of("").locate(Position(3, 3), "utf-8") == (0, 0)


def test_text_around_a_place_is_bounded_without_losing_what_is_near():
    document = Document.of("".join(f"line {i}\n" for i in range(1000)))
    before, after = document.before(500, 4, 30), document.after(500, 4, 30)
    assert before.endswith("line 499\nline")
    assert after.startswith(" 500\nline 501\n")
    assert 30 <= len(before) <= 60
    assert 30 <= len(after) <= 60
    whole = document.before(500, 4, 10**6) + document.after(500, 4, 10**6)
    assert whole == document.text
    assert len(Document.of("x" * 10**6).before(0, 10**6, 100)) == 100


def test_a_snapshot_never_changes():
    documents = Documents()
    documents.open("file:///a.py", "python", 1, "old")
    snapshot = documents.get("file:///a.py")
    documents.change("file:///a.py", 2, [Change("new")], "utf-16")
    assert (snapshot.version, snapshot.text) == (1, "old")
    assert documents.get("file:///a.py").text == "new"


def test_broken_synchronisation_is_logged_and_ignored(caplog):
    caplog.set_level(logging.WARNING)
    documents = Documents()
    assert not documents.change("file:///a.py", 2, [Change("x")], "utf-16")
    documents.close("file:///a.py")
    documents.open("file:///a.py", "python", 5, "five")
    assert not documents.change("file:///a.py", 4, [Change("late")], "utf-16")
    assert documents.get("file:///a.py").text == "five"
    assert documents.change("file:///a.py", None, [Change("six")], "utf-16")
    assert documents.get("file:///a.py").version == 6
    assert len([r for r in caplog.records if "file:///a.py" in r.message]) == 3
    documents.close("file:///a.py")
    assert list(documents) == []


def test_a_document_that_is_not_open_is_never_read_from_disk(tmp_path):
    (tmp_path / "secret.py").write_text("SECRET")
    assert Documents().get((tmp_path / "secret.py").as_uri()) is None


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from(["", "a", "é😀", "b" * 50]), min_size=1, max_size=200),
    st.integers(60, 400),
    st.data(),
)
def test_text_around_a_place_is_what_a_plain_search_finds(lines, reach, data):
    document = Document.of("\n".join(lines))
    line = data.draw(st.integers(0, len(lines) - 1))
    column = data.draw(st.integers(0, len(lines[line])))
    head = "\n".join([*lines[:line], lines[line][:column]])
    tail = "\n".join([lines[line][column:], *lines[line + 1 :]])
    before, after = document.before(line, column, reach), document.after(line, column, reach)
    assert head.endswith(before)
    assert tail.startswith(after)
    assert min(reach, len(head)) <= len(before) <= reach + 60
    assert min(reach, len(tail)) <= len(after) <= reach + 60


@settings(max_examples=50)
@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=200), st.data())
def test_where_two_versions_last_differ(lines, data):
    ours, theirs = lines, lines[:]
    place = data.draw(st.integers(0, len(lines) - 1))
    theirs[place:place] = data.draw(st.lists(st.sampled_from("abc"), max_size=3))
    same = 0
    while same < min(len(ours), len(theirs)) and ours[-1 - same] == theirs[-1 - same]:
        same += 1
    # The last line of a document has no end, so it is another line than the same one above.
    after, before = Document.of("\n".join(ours)), Document.of("\n".join(theirs))
    line = max(len(ours) - 1 - same, 0)
    assert after.end_of_change(before) == (line, len(ours[line]))


@settings(max_examples=60)
@given(st.lists(TEXT, min_size=2, max_size=6), st.data())
def test_versions_that_differ_in_a_line_keep_their_own_text_around_others(lines, data):
    versions = [Document.of("\n".join(lines))]
    for _ in range(4):
        last = len(versions[-1].lines) - 1
        at = Position(data.draw(st.integers(0, last)), data.draw(st.integers(0, 9)))
        versions[-1].before(at.line, 0, 9)
        change = Change(data.draw(st.sampled_from(("a", "é", "\n", "\r"))), Range(at, at))
        versions.append(versions[-1].changed(change, "utf-32"))
        asked = data.draw(st.sampled_from(versions))
        line = data.draw(st.integers(0, len(asked.lines) - 1))
        fresh = Document.of(asked.text)
        assert asked.before(line, 1, 9) == fresh.before(line, 1, 9)
        assert asked.after(line, 1, 9) == fresh.after(line, 1, 9)
    for one in versions:
        fresh = Document.of(one.text)
        for line in range(len(one.lines)):
            assert one.after(line, 1, 9) == fresh.after(line, 1, 9)
            assert one.before(line, 1, 9) == fresh.before(line, 1, 9)
