import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.edits.text_file import TextFile, line_end
from sidecar.edits.writable_root import Refused


@given(st.binary(max_size=64) | st.text(max_size=32).map(str.encode))
def test_text_is_written_back_as_it_was_or_refused(data):
    try:
        file = TextFile.of(data)
    except Refused:
        return
    assert file.data == data


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (b"a\n", "utf-8", "a\n"),
        (codecs.BOM_UTF8 + "é".encode(), "utf-8", "é"),
        (codecs.BOM_UTF16_LE + "é\r\n".encode("utf-16-le"), "utf-16-le", "é\r\n"),
        (codecs.BOM_UTF16_BE + "é".encode("utf-16-be"), "utf-16-be", "é"),
        (codecs.BOM_UTF32_LE + "é".encode("utf-32-le"), "utf-32-le", "é"),
    ],
)
def test_encodings_and_marks_stay(data, encoding, text):
    file = TextFile.of(data)
    assert (file.encoding, file.text) == (encoding, text)
    changed = file.with_text(text + "🙂")
    assert changed.data == file.mark + (text + "🙂").encode(encoding)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"caf\xe9\n", r"is no UTF-8 text \(byte 3\)"),
        (codecs.BOM_UTF8 + b"a\xff", r"\(byte 4\)"),
        (b"\x7fELF\0\0", "is binary"),
        (codecs.BOM_UTF16_LE + b"a", "is no UTF-16-LE text"),
    ],
)
def test_what_is_no_text_is_named(data, reason):
    with pytest.raises(Refused, match=reason):
        TextFile.of(data)


def test_half_a_surrogate_pair_is_not_written():
    with pytest.raises(Refused, match="no text"):
        TextFile.of(b"a").with_text("\ud83d")


@pytest.mark.parametrize(
    ("text", "end"), [("", "\n"), ("a", "\n"), ("a\r\nb\nc\r\n", "\r\n"), ("a\rb\rc", "\r")]
)
def test_the_line_end_of_most_lines(text, end):
    assert line_end(text) == end
