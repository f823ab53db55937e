"""Ids to text, one id at a time, a whole character at a time."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class ByteStreamDetokenizer:
    """For tokenizers whose every id stands for fixed bytes (byte-level BPE, SentencePiece).

    table: the bytes of each id; an id outside it has none. strip: drop one leading space, as
    SentencePiece decoders do.
    """

    def __init__(self, table: Sequence[bytes], *, strip: bool = False) -> None:
        self._table = table
        self._strip = strip
        # Holds an unfinished sequence back and replaces a malformed one at once, which is what
        # decoding all the bytes together does too.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        piece = self._table[token] if 0 <= token < len(self._table) else b""
        return self._stripped(self._decoder.decode(piece))

    def finish(self) -> str:
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class WindowDetokenizer:
    """For any other decoder: decode a short window twice and emit what the newest id added.

    decode: ids to text. The window starts one emission back, so that a decoder that joins words
    by what precedes them (WordPiece) sees the neighbour it needs.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._shown = 0

    def add(self, token: int) -> str:
        self._window.append(token)
        before = self._decode(self._window[: self._shown])
        text = self._decode(self._window)
        if len(text) <= len(before) or text.endswith("\ufffd"):
            return ""
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        return text[len(before) :]

    def finish(self) -> str:
        before = self._decode(self._window[: self._shown])
        text = self._decode(self._window)
        self._window, self._shown = [], 0
        return text[len(before) :]
