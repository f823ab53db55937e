"""Prompts for the text at a cursor: fill-in-the-middle, or the prefix alone.

Layout (prefix, suffix, middle; arXiv:2207.14255): the lines before the cursor's line, then all that
follows the cursor, then, after the middle marker, what is already typed on the cursor's line. While
the user types on, the prompt only grows at its end. Other files come before all that.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

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
# Longer lines are not tokenised while an event loop waits: this takes tens of microseconds.
SHORT_LINE = 400
# Places that are remembered, of documents that are edited in turns; each holds two texts.
KEPT = 16


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


@dataclass(frozen=True)
class _Place:
    """A cursor. head: the text in front of what is typed on its line, of which `typed` are the ids
    and `healed` the last piece; room: tokens for all but what is typed."""

    head: str
    suffix: str
    room: int
    context: Context
    typed: list[int]
    healed: str

    @property
    def key(self) -> tuple[str, str, int, Context]:
        return self.head, self.suffix, self.room, self.context


@dataclass(frozen=True)
class Around:
    """The part of a prompt that stays while a line is typed. tokens: all in front of what is typed;
    stable, before: how many of them come before the edited file, and before what follows the
    cursor."""

    tokens: tuple[int, ...]
    stable: int
    before: int


class FillInMiddle:
    """Builds completion prompts for one vocabulary. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._known: dict[tuple[str, str, int, Context], Around] = {}
        self._remembering = threading.Lock()
        found = (vocabulary.find(*markers) for markers in MARKERS)
        self.markers: tuple[int, ...] = next((ids for ids in found if len(ids) == 3), ())
        self.stop_token_ids = tuple(sorted(set(vocabulary.find(*ENDS))))

    def prompt(
        self, prefix: str, suffix: str, limit: int | None, context: Context = NO_CONTEXT
    ) -> RenderedPrompt:
        """See `engine.client.Codec.fill_in_middle`. `limit` does not count the context."""
        if limit is not None and limit < MIN_LIMIT:
            raise RequestError(f"limit must be at least {MIN_LIMIT}, got {limit}", field="limit")
        place = self._place(prefix, suffix, limit, context)
        return self._rendered(place, self._around(place))

    def known_prompt(
        self, prefix: str, suffix: str, limit: int | None, context: Context = NO_CONTEXT
    ) -> RenderedPrompt | None:
        """The same, where all that has to be tokenised is what is typed on the line."""
        if len(prefix) - _line_of(prefix) > SHORT_LINE or (limit or MIN_LIMIT) < MIN_LIMIT:
            return None
        place = self._place(prefix, suffix, limit, context)
        around = self._known.get(place.key)
        return self._rendered(place, around) if around is not None else None

    def _place(self, prefix: str, suffix: str, limit: int | None, context: Context) -> _Place:
        room = (limit or LIMIT_WITHOUT_ONE) - len(self._vocabulary.begin) - 3
        # Of a very long line only the end is "typed"; the rest counts as text before it.
        line = max(_line_of(prefix), len(prefix) - room * CHARACTERS_PER_TOKEN // 4)
        kept, healed = self._heal(prefix[line:])
        skip = kept.clean_start(len(kept.ids) - room // 2)
        line += kept.spans[skip][0] if skip < len(kept.ids) else len(kept.text)
        typed = kept.ids[skip:]
        room -= min((len(typed) // TYPED_STEP + 1) * TYPED_STEP, room // 2)
        # What is farther away cannot matter; left in, it would be another text at every key.
        reach = room * CHARACTERS_PER_TOKEN + 1
        head = prefix[max(line - reach, 0) : line]
        return _Place(head, suffix[:reach], room, context, typed, healed)

    def _rendered(self, place: _Place, around: Around) -> RenderedPrompt:
        context, begin = place.context, self._vocabulary.begin
        tokens = (*around.tokens, *place.typed)
        if not self.markers:
            # A model needs something to continue: an empty file starts where any document does.
            tokens = tokens or tuple(self._vocabulary.find(*DOCUMENT_STARTS)[:1])
            if not tokens:
                raise RequestError("prefix must not be empty for this model", field="prefix")
            return RenderedPrompt(
                tokens=tokens,
                segments=context.segments(len(begin)),
                stable=around.stable,
                must_start_with=place.healed,
                stop_token_ids=self.stop_token_ids,
            )
        # The other files outlive a change in this one, what is before the line outlives one behind
        # it, and all outlive typing.
        ends = [around.stable] if context.ends else []
        ends += [around.before, len(around.tokens)] if place.typed else [around.before]
        return RenderedPrompt(
            tokens=tokens,
            boundaries=tuple(dict.fromkeys(ends)),
            segments=context.segments(len(begin) + (not context.ahead)),
            stable=around.stable,
            must_start_with=place.healed,
            stop_token_ids=self.stop_token_ids,
        )

    def _around(self, place: _Place) -> Around:
        around = self._known.get(place.key)
        if around is None:
            around = self._tokenised(*place.key)
            with self._remembering:
                self._known[place.key] = around
                if len(self._known) > KEPT:
                    del self._known[next(iter(self._known))]
        return around

    def _tokenised(self, text: str, suffix: str, room: int, context: Context) -> Around:
        """text: what is in front of what is typed."""
        begin = (*self._vocabulary.begin, *context.ahead)
        if not self.markers:
            start = [*begin, *context.inside]
            before = [*start, *self._end_of(text, room)]
            return Around(tuple(before), len(start), len(before))
        tail = self._start_of(suffix, room // 4)
        head = self._end_of(text, room - len(tail))
        if len(head) + len(tail) < room:
            tail = self._start_of(suffix, room - len(head))
        pre, suf, mid = self.markers
        start = [*begin, pre, *context.inside]
        before = [*start, *head]
        return Around((*before, suf, *tail, mid), len(start), len(before))

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


def _line_of(prefix: str) -> int:
    """Where the last line begins."""
    return max(prefix.rfind("\n"), prefix.rfind("\r")) + 1


def _line_start(text: str, start: int) -> int:
    """A line start at or after `start`, or the end of `text`.

    Of those that cost at most a quarter of what is left, one that is chosen by what stands there:
    it goes on being chosen while the cursor moves down, also where `text` is itself the end of
    something longer and begins with another line each time.
    """
    newlines = re.compile("\n").finditer(text, max(start - 1, 0), len(text) - 1)
    starts = [newline.end() for newline in newlines]
    if not starts:
        return len(text)
    near = start + (len(text) - start) // 4
    cheap = [offset for offset in starts if offset <= near] or starts[:1]
    return min(cheap, key=lambda offset: crc32(text[offset : offset + 80].encode()))
