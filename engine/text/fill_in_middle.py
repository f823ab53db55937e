"""Prompts for the text at a cursor: fill-in-the-middle, or the prefix alone.

Layout (prefix, suffix, middle; arXiv:2207.14255): the lines before the cursor's line, then all that
follows the cursor, then, after the middle marker, what is already typed on the cursor's line. While
the user types on, the prompt only grows at its end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.errors import RequestError
from engine.messages import RenderedPrompt
from engine.text.vocabulary import Vocabulary

MARKERS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
# What a model writes when the middle is done, or when it starts on another file or a chat turn.
ENDS = (
    *(marker for markers in MARKERS for marker in markers),
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "▁<EOT>", "<EOT>"),
    *("<|file_sep|>", "<file_sep>", "<|file_separator|>", "<filename>"),
    *("<|repo_name|>", "<repo_name>", "<reponame>"),
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>"),
)
# The last piece that more typing could still change: a word with the space or sign before it,
# a number, a run of signs, or one white-space character (which tokenizers glue to a next word).
LAST_PIECE = re.compile(r"[^\S\r\n]|(?:[^\w\r\n]|_)?[^\W\d_]+|[^\S\r\n]?(?:\d+|_+|[^\w\s]+)")
MIN_LIMIT = 16
LIMIT_WITHOUT_ONE = 1 << 20
MAX_HEALED_TOKENS = 3
# A token is rarely longer than this many characters; text is cut by it before it is tokenised.
CHARACTERS_PER_TOKEN = 12
# A cut moves in steps, so that neither typing nor moving down a few lines shifts what is cached.
TYPED_STEP = 64
LINE_STEP = 16


@dataclass(frozen=True)
class Piece:
    """Text with its ids and the character span of each (token `i` is `text[spans[i]]`)."""

    text: str
    ids: list[int]
    spans: list[tuple[int, int]]

    def clean_cut(self, index: int) -> int:
        """The largest token count <= `index` that does not end inside a character."""
        while 0 < index < len(self.ids) and self.spans[index][0] < self.spans[index - 1][1]:
            index -= 1
        return index


class FillInMiddle:
    """Builds completion prompts for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        found = (vocabulary.find(*markers) for markers in MARKERS)
        self.markers: tuple[int, ...] = next((ids for ids in found if len(ids) == 3), ())
        self.stop_token_ids = tuple(sorted(set(vocabulary.find(*ENDS))))

    def prompt(self, prefix: str, suffix: str, limit: int | None) -> RenderedPrompt:
        """See `engine.client.Codec.fill_in_middle`."""
        if limit is not None and limit < MIN_LIMIT:
            raise RequestError(f"limit must be at least {MIN_LIMIT}, got {limit}", field="limit")
        begin = self._vocabulary.begin
        room = (limit or LIMIT_WITHOUT_ONE) - len(begin) - 3
        line = max(prefix.rfind("\n"), prefix.rfind("\r")) + 1
        # Of a very long line only the end is "typed"; the rest counts as text before it.
        line = max(line, len(prefix) - room * CHARACTERS_PER_TOKEN // 4)
        typed, healed = self._heal(prefix[line:], room // 2)
        room -= min(-(-len(typed) // TYPED_STEP) * TYPED_STEP, room // 2)
        before, after = prefix[:line], suffix if self.markers else ""
        tail = self._head(after, room // 4)
        head = self._tail(before, room - len(tail))
        if len(tail) >= room // 4 and len(head) < room - len(tail):
            tail = self._head(after, room - len(head))
        if self.markers:
            pre, suf, mid = self.markers
            tokens = (*begin, pre, *head, suf, *tail, mid, *typed)
        else:
            tokens = (*begin, *head, *typed)
        if not tokens:
            # A model needs something to continue: an empty file starts where any document does.
            ends = self.stop_token_ids or tuple(sorted(self._vocabulary.control_ids))
            if not ends:
                raise RequestError("prefix is empty and the model has no BOS", field="prefix")
            tokens = ends[:1]
        return RenderedPrompt(
            tokens=tokens,
            boundaries=self._boundaries(len(begin), len(head), len(tail), len(tokens)),
            must_start_with=healed,
            stop_token_ids=self.stop_token_ids,
        )

    def _boundaries(self, begin: int, head: int, tail: int, total: int) -> tuple[int, ...]:
        """After the text before the cursor's line, and at the middle marker."""
        if not self.markers:
            return ()
        return tuple(
            sorted({end for end in (begin + 1 + head, begin + head + tail + 3) if end < total})
        )

    def _heal(self, typed: str, most: int) -> tuple[list[int], str]:
        """Split the typed part of a line into stable ids and the text that must start the reply."""
        piece = self._piece(typed)
        if not piece.ids:
            return [], typed
        matches = [match.start() for match in LAST_PIECE.finditer(typed[-64:])]
        start = len(typed) - len(typed[-64:]) + (matches[-1] if matches else 0)
        keep = sum(1 for span in piece.spans if span[1] <= start)
        keep = piece.clean_cut(max(keep, len(piece.ids) - MAX_HEALED_TOKENS))
        cut = piece.spans[keep][0] if keep < len(piece.ids) else len(typed)
        return piece.ids[:keep][-most:], typed[cut:]

    def _piece(self, text: str) -> Piece:
        ids, spans = self._vocabulary.encode_spans(text)
        return Piece(text, ids, spans)

    def _head(self, text: str, limit: int) -> list[int]:
        """Ids of the start of `text`, at most `limit`, ending with a whole line if one fits."""
        piece = self._piece(text[: limit * CHARACTERS_PER_TOKEN])
        if len(piece.ids) <= limit and len(piece.text) == len(text):
            return piece.ids
        keep = piece.clean_cut(min(limit, len(piece.ids)))
        cut = piece.spans[keep - 1][1] if keep else 0
        newline = piece.text.rfind("\n", 0, cut)
        if newline > 0:
            keep = sum(1 for span in piece.spans[:keep] if span[1] <= newline + 1)
        return piece.ids[:keep]

    def _tail(self, text: str, limit: int) -> list[int]:
        """Ids of the end of `text`, at most `limit`, starting with a whole line if one fits."""
        if limit <= 0:
            return []
        piece = self._piece(text[-limit * CHARACTERS_PER_TOKEN :])
        if len(piece.ids) <= limit and len(piece.text) == len(text):
            return piece.ids
        skip = max(len(piece.ids) - limit, 0)
        while skip < len(piece.ids) and skip and piece.spans[skip][0] < piece.spans[skip - 1][1]:
            skip += 1
        start = piece.spans[skip][0] if skip < len(piece.ids) else len(piece.text)
        line = self._line_start(text, len(text) - len(piece.text) + start)
        if line is not None:
            again = self._piece(text[line:])
            if len(again.ids) <= limit:
                return again.ids
        return piece.ids[skip:]

    def _line_start(self, text: str, start: int) -> int | None:
        """The first line start at or after `start`; better, within the first quarter of what is
        kept, one whose line number is a multiple of `LINE_STEP`."""
        lines = [start] if start == 0 or text[start - 1] == "\n" else []
        lines += [match.end() for match in re.finditer("\n", text[start:])]
        offsets = (
            [*lines[:1], *(start + end for end in lines[1:])]
            if lines[:1] == [start]
            else [start + end for end in lines]
        )
        offsets = [offset for offset in offsets if offset < len(text)]
        if not offsets:
            return None
        number = text.count("\n", 0, offsets[0])
        for rank, offset in enumerate(offsets):
            if offset - start > (len(text) - start) // 4:
                break
            if (number + rank) % LINE_STEP == 0:
                return offset
        return offsets[0]
