"""A text file's bytes as text, and back without a byte that was not meant changed."""

from __future__ import annotations

import codecs
from collections import Counter
from dataclasses import dataclass, replace

from sidecar.edits.writable_root import Refused
from sidecar.workspace.positions import split_lines, without_end

# A UTF-32 mark begins with a UTF-16 one.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True, slots=True)
class TextFile:
    """text: with the file's own line ends, without the mark. mark: a byte order mark or nothing."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    @classmethod
    def of(cls, data: bytes) -> TextFile:
        """Raises Refused where the bytes are no text that can be written back as it was."""
        mark, encoding = next(
            ((mark, name) for mark, name in _MARKS if data.startswith(mark)), (b"", "utf-8")
        )
        body = data[len(mark) :]
        if encoding == "utf-8" and b"\0" in body:
            raise Refused("is binary")
        try:
            text = body.decode(encoding)
        except UnicodeDecodeError as error:
            raise Refused(
                f"is no {encoding.upper()} text (byte {len(mark) + error.start})"
            ) from None
        found = cls(text, encoding, mark)
        if found.data != data:
            raise Refused(f"is {encoding.upper()} text that cannot be written back as it was")
        return found

    @property
    def data(self) -> bytes:
        return self.mark + self.text.encode(self.encoding)

    @property
    def line_end(self) -> str:
        return line_end(self.text)

    def with_text(self, text: str) -> TextFile:
        """The same file with other text. Raises Refused where its encoding cannot hold it."""
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            raise Refused("would get characters that are no text") from None
        return replace(self, text=text)


def line_end(text: str) -> str:
    r"""The line end that most lines have, ``\n`` where there is none."""
    counts = Counter(line[len(without_end(line)) :] for line in split_lines(text)[:-1])
    return counts.most_common(1)[0][0] if counts else "\n"


def with_newlines(text: str) -> str:
    r"""As models see it: ``\n`` at the end of every line."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
