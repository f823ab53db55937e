"""Prompts for the text at a cursor: fill-in-the-middle, or the prefix alone.

Layout (prefix, suffix, middle; arXiv:2207.14255): the lines before the cursor's line, then all that
follows the cursor, then, after the middle marker, what is already typed on the cursor's line. While
the user types on, the prompt only grows at its end. Other files come before all that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import RequestError
from engine.messages import RenderedPrompt
from engine.text.context_layout import NO_CONTEXT, Context

if TYPE_CHECKING:
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
# The last piece that more typing could still change: a word with the space or the one sign before
# it, a run of signs or digits with the space before it, or one white-space character. That is how
# the usual pre-tokenizers split (GPT-2, cl100k, Qwen), or coarser.
SIGN = r"(?:[^\w\s]|_)"
LAST_PIECE = re.compile(
    rf"(?:[^\S\r\n]|(?<![\W_]){SIGN})?[^\W\d_]+|[^\S\r\n]?(?:\d+|{SIGN}+)|[^\S\r\n]"
)
DOCUMENT_STARTS = ("<|endoftext|>", "<|end_of_text|>", "<s>", "</s>")
MIN_LIMIT = 16
LIMIT_WITHOUT_ONE = 1 << 20
MAX_HEALED_TOKENS = 3
# A token is rarely longer than this many characters; text is cut by it before it is tokenised.
CHARACTERS_PER_TOKEN = 12
# Room for what is typed is taken in steps, so that a key does not shift the cuts before it.
TYPED_STEP = 64


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

    def clean_start(self, index: int) -> int:
        """The smallest token index >= `index` (and 0) that does not start inside a character."""
        index = max(index, 0)
        while 0 < index < len(self.ids) and self.spans[index][0] < self.spans[index - 1][1]:
            index += 1
        return index


class FillInMiddle:
    """Builds completion prompts for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        found = (vocabulary.find(*markers) for markers in MARKERS)
        self.markers: tuple[int, ...] = next((ids for ids in found if len(ids) == 3), ())
        self.stop_token_ids = tuple(sorted(set(vocabulary.find(*ENDS))))

    def prompt(
        self, prefix: str, suffix: str, limit: int | None, context: Context = NO_CONTEXT
    ) -> RenderedPrompt:
        """See `engine.client.Codec.fill_in_middle`. `limit` does not count the context."""
        if limit is not None and limit < MIN_LIMIT:
            raise RequestError(f"limit must be at least {MIN_LIMIT}, got {limit}", field="limit")
        begin = (*self._vocabulary.begin, *context.ahead)
        room = (limit or LIMIT_WITHOUT_ONE) - len(self._vocabulary.begin) - 3
        line = max(prefix.rfind("\n"), prefix.rfind("\r")) + 1
        # Of a very long line only the end is "typed"; the rest counts as text before it.
        line = max(line, len(prefix) - room * CHARACTERS_PER_TOKEN // 4)
        kept, healed = self._heal(prefix[line:])
        skip = kept.clean_start(len(kept.ids) - room // 2)
        line += kept.spans[skip][0] if skip < len(kept.ids) else len(kept.text)
        typed = kept.ids[skip:]
        room -= min((len(typed) // TYPED_STEP + 1) * TYPED_STEP, room // 2)
        if not self.markers:
            head = [*context.inside, *self._end_of(prefix[:line], room)]
            # A model needs something to continue: an empty file starts where any document does.
            tokens = [*begin, *head, *typed] or self._vocabulary.find(*DOCUMENT_STARTS)[:1]
            if not tokens:
                raise RequestError("prefix must not be empty for this model", field="prefix")
            return RenderedPrompt(
                tokens=tuple(tokens),
                segments=context.segments(len(self._vocabulary.begin)),
                stable=len(begin) + len(context.inside),
                must_start_with=healed,
                stop_token_ids=self.stop_token_ids,
            )
        tail = self._start_of(suffix, room // 4)
        head = self._end_of(prefix[:line], room - len(tail))
        if len(head) + len(tail) < room:
            tail = self._start_of(suffix, room - len(head))
        pre, suf, mid = self.markers
        start = [*begin, pre, *context.inside]
        before = [*start, *head]
        around = [*before, suf, *tail, mid]
        # The other files outlive a change in this one, what is before the line outlives one behind
        # it, and all outlive typing.
        ends = [len(start)] if context.ends else []
        ends += [len(before), len(around)] if typed else [len(before)]
        return RenderedPrompt(
            tokens=(*around, *typed),
            boundaries=tuple(dict.fromkeys(ends)),
            segments=context.segments(len(self._vocabulary.begin) + (not context.ahead)),
            stable=len(start),
            must_start_with=healed,
            stop_token_ids=self.stop_token_ids,
        )

    def _heal(self, typed: str) -> tuple[Piece, str]:
        """Split the typed part of a line into what is stable and what must start the reply."""
        piece = self._piece(typed)
        if not piece.ids:
            return piece, ""
        *_, match = LAST_PIECE.finditer(typed, max(0, len(typed) - 64))
        kept = self._piece(typed[: match.start()])
        if len(piece.ids) - len(kept.ids) <= MAX_HEALED_TOKENS:
            return kept, typed[match.start() :]
        # A long run of letters (a language without spaces): only its last tokens can still change.
        count = piece.clean_cut(len(piece.ids) - MAX_HEALED_TOKENS)
        cut = piece.spans[count][0]
        return Piece(typed[:cut], piece.ids[:count], piece.spans[:count]), typed[cut:]

    def _piece(self, text: str) -> Piece:
        ids, spans = self._vocabulary.encode_spans(text)
        return Piece(text, ids, spans)

    def _start_of(self, text: str, limit: int) -> list[int]:
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

    def _end_of(self, text: str, limit: int) -> list[int]:
        """Ids of the end of `text`, at most `limit`, starting with a whole line if one fits."""
        piece = self._piece(text[max(0, len(text) - limit * CHARACTERS_PER_TOKEN) :])
        if len(piece.ids) <= limit and len(piece.text) == len(text):
            return piece.ids
        skip = piece.clean_start(len(piece.ids) - limit)
        if skip < len(piece.ids):
            line = _line_start(text, len(text) - len(piece.text) + piece.spans[skip][0])
            whole_lines = self._piece(text[line:]).ids
            if whole_lines and len(whole_lines) <= limit:
                return whole_lines
        return piece.ids[skip:]


def _line_start(text: str, start: int) -> int:
    """A line start at or after `start`, or the end of `text`.

    Of those that cost at most a quarter of what is left, the one whose line number is the roundest
    in binary: it goes on being chosen while the cursor moves down.
    """
    newlines = re.compile("\n").finditer(text, max(start - 1, 0), len(text) - 1)
    starts = [newline.end() for newline in newlines]
    if not starts:
        return len(text)
    first = text.count("\n", 0, starts[0])
    near = start + (len(text) - start) // 4
    cheap = sum(offset <= near for offset in starts) or 1
    return starts[max(range(cheap), key=lambda rank: (first + rank) & -(first + rank))]
