"""A reply taken apart while it is written: reasoning, what is said, tool calls.

A stretch that begins like a call is held back until it is one, or cannot become one. Then it is
said as it stands, and why is told: nothing that the model wrote is lost or invented.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.messages import ToolCall
from engine.reply_pieces import Piece, Reasoned, Said, Unread
from engine.text.call_repair import certainly_over, repaired_calls
from engine.text.marks import Marks
from engine.text.regimes import SPANS, Regime
from engine.text.tool_calls import HARMONY, Form, read_calls

REASONING = {
    opener: closer for opener, (regime, closer) in SPANS.items() if regime is Regime.REASONING
}
# What gpt-oss writes around the parts of a reply.
_FRAMES = (
    "<|start|>assistant",
    "<|channel|>final<|message|>",
    "<|channel|>commentary<|message|>",
    "<|message|>",
    "<|end|>",
)


@dataclass(frozen=True)
class Layout:
    """How a model lays out its replies. reasoning: opening to closing marker. frames: markers
    that are no part of the text."""

    reasoning: Mapping[str, str]
    form: Form | None
    frames: tuple[str, ...] = ()

    @property
    def anywhere(self) -> bool:
        """Whether reasoning may begin behind an answer, too."""
        return bool(self.frames)


def layout_of(template: str, form: Form | None, controls: Mapping[str, int]) -> Layout:
    """By the chat template, and by the control tokens that the model has (spelling to id)."""
    known = {
        opener: closer
        for opener, closer in REASONING.items()
        if opener in template or opener in controls
    }
    if form is HARMONY:
        known = {"<|channel|>analysis<|message|>": "<|end|>"}
        return Layout(known, form, _FRAMES)
    return Layout(known, form)


class ReplyReader:
    """Implements `engine.reply_pieces.PieceReader` for one reply.

    tools: OpenAI-shaped functions by name; without any, nothing is taken for a call. open: the
    marker of the reasoning that the reply begins in.
    """

    def __init__(
        self, layout: Layout, tools: Mapping[str, Mapping[str, Any]], open: str = ""
    ) -> None:
        self._layout = layout
        self._tools = tools
        self._marks = layout.form.marks if layout.form is not None and tools else Marks()
        self._closer = layout.reasoning.get(open, REASONING.get(open, "")) if open else ""
        self._reasoning = bool(open)
        self._held = ""
        # Where in a held call to look for its end.
        self._looked = 0
        self._opener = ""
        self._said = self._called = self._after_call = False
        # White space at an edge: part of the text only if text follows.
        self._space = ""
        self._lead = self._reasoning
        self._fence = _Fence()
        self._over = self._complete = False

    @property
    def waiting(self) -> bool:
        return bool(self._opener)

    @property
    def reasoning(self) -> bool:
        return self._reasoning

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        return self._read()

    def finish(self, *, complete: bool) -> list[Piece]:
        self._over, self._complete = True, complete
        pieces = self._read()
        if self._space and not (self._called or self._reasoning):
            pieces.append(Said(self._space))
        return _joined(pieces)

    def _read(self) -> list[Piece]:
        pieces: list[Piece] = []
        while self._call(pieces) if self._opener else self._text(pieces):
            pass
        return _joined(pieces)

    def _text(self, pieces: list[Piece]) -> bool:
        """Read up to the next marker. False when there is none (yet)."""
        markers = self._markers()
        found = _first(self._held, markers)
        while found is not None and self._quoted(found):
            found = _first(self._held, markers, found.start() + 1)
        if found is None or self._may_go_on(found, markers):
            kept = 0 if self._over else _may_begin(self._held, markers)
            cut = len(self._held) - kept if found is None else found.start()
            self._emit(self._held[:cut], pieces)
            self._held = self._held[cut:]
            return False
        self._emit(self._held[: found.start()], pieces)
        marker = found[0]
        if self._reasoning and marker == self._closer:
            self._leave_reasoning()
        elif marker in self._layout.reasoning and not self._reasoning:
            self._closer, self._reasoning = self._layout.reasoning[marker], True
            self._space, self._lead = "", True
        elif marker in self._marks.opens:
            self._held, self._opener, self._looked = self._held[found.start() :], marker, 0
            return True
        self._held = self._held[found.end() :]
        return True

    def _may_go_on(self, found: re.Match[str], markers: Sequence[str]) -> bool:
        """Whether a marker may turn out to be a longer one."""
        rest = self._held[found.start() :]
        longer = (marker for marker in markers if marker != rest and marker.startswith(rest))
        return not self._over and any(longer)

    def _leave_reasoning(self) -> None:
        self._reasoning, self._space, self._lead = False, "", True

    def _markers(self) -> tuple[str, ...]:
        if self._reasoning:
            return (self._closer, *self._marks.opens)
        opens = self._marks.opens
        if self._marks.first_only and (self._said or self._called):
            opens = ()
        fresh = not self._said or self._layout.anywhere
        # A closing marker behind a call is no text: the call's, read without it, or that of the
        # reasoning which the call ended.
        closes = (*self._marks.closes, self._closer) if self._after_call else ()
        reasoning = self._layout.reasoning if fresh else ()
        return (*opens, *closes, *reasoning, *self._layout.frames)

    def _quoted(self, found: re.Match[str]) -> bool:
        """Whether a marker is only written about: in fenced code, or too late in a reply."""
        before = self._held[: found.start()]
        if found[0] in self._marks.opens:
            late = self._marks.first_only and bool(before.strip())
            return late or (not self._reasoning and self._fence.ahead(self._space + before))
        late = bool(before.strip()) and not self._layout.anywhere
        return found[0] in self._layout.reasoning and not self._reasoning and late

    @property
    def _edged(self) -> bool:
        """Whether something may follow that white space does not belong before."""
        early = bool(self._layout.reasoning) and not self._said
        return self._reasoning or bool(self._marks.opens) or early

    def _emit(self, text: str, pieces: list[Piece]) -> None:
        if self._lead:
            text = text.lstrip("\n")
        if not text:
            return
        self._lead = False
        whole = self._space + text
        kept = whole.rstrip() if self._edged else whole
        self._space = whole[len(kept) :]
        if not kept:
            return
        if self._reasoning:
            pieces.append(Reasoned(kept))
        else:
            self._said = self._said or bool(kept.strip())
            self._after_call = False
            self._fence.add(kept)
            pieces.append(Said(kept))

    def _call(self, pieces: list[Piece]) -> bool:
        """Read the call at the beginning of what is held. False when its end is not there."""
        if closes := self._marks.closer(self._opener):
            for closer in _all(self._held, (closes,), self._looked):
                self._looked = closer.end()
                if self._take(self._held[: closer.end()], pieces, closed=True):
                    return True
            self._looked = max(self._looked, len(self._held) - len(closes))
        if not self._over:
            return False
        if not self._take(self._held, pieces, closed=False):
            self._give_up("it is cut short" if not self._complete else "it cannot be read", pieces)
        return True

    def _take(self, text: str, pieces: list[Piece], *, closed: bool) -> bool:
        """Whether `text`, from the opening marker on, could be made calls of, or given up."""
        form = self._layout.form
        assert form is not None
        calls = self._calls(text, form, repair=closed or self._complete)
        if not calls:
            if closed and certainly_over(text, form):
                self._give_up("it cannot be read", pieces)
                return True
            return False
        undeclared = next((call.name for call in calls if call.name not in self._tools), None)
        if undeclared is not None:
            self._say(text, f"no tool is named {undeclared[:100]!r}", pieces)
        else:
            self._leave_reasoning()
            self._called = self._after_call = True
            pieces += calls
        self._held, self._opener = self._held[len(text) :], ""
        return True

    def _calls(self, text: str, form: Form, *, repair: bool) -> Sequence[ToolCall]:
        try:
            calls = read_calls(text, form, self._tools)
            if repair and not calls:
                calls = repaired_calls(text, form, self._tools)
            # Python reads and writes NaN, Infinity and halves of characters, which are no JSON.
            for call in calls:
                msgspec.json.decode(call.arguments)
        except (RecursionError, ValueError):
            # Arguments that are nested a thousand deep are no arguments, either.
            return ()
        return calls

    def _give_up(self, reason: str, pieces: list[Piece]) -> None:
        """Say the opening marker, with one that belongs to it, and read on behind it."""
        others = [opener for opener in self._marks.opens if opener != self._opener]
        inner = _first(self._held, others, len(self._opener))
        end = len(self._opener)
        if inner is not None and not self._held[end : inner.start()].strip():
            end = inner.end()
        self._say(self._held[:end], reason, pieces)
        self._held, self._opener = self._held[end:], ""

    def _say(self, text: str, reason: str, pieces: list[Piece]) -> None:
        self._lead = False
        self._emit(text, pieces)
        pieces.append(Unread(reason))


class _Fence:
    """Whether a text is inside fenced code."""

    def __init__(self) -> None:
        self._line, self._inside = "", False

    def add(self, text: str) -> None:
        self._line, self._inside = self._after(text)

    def ahead(self, text: str) -> bool:
        """Whether `text`, written next, would end in fenced code."""
        line, inside = self._after(text)
        return inside or line.lstrip().startswith(("```", "~~~"))

    def _after(self, text: str) -> tuple[str, bool]:
        *lines, last = (self._line + text).split("\n")
        fences = sum(line.lstrip().startswith(("```", "~~~")) for line in lines)
        # Of a long line only the start matters.
        return last[:64], self._inside ^ bool(fences % 2)


def _first(text: str, markers: Sequence[str], start: int = 0) -> re.Match[str] | None:
    return next(_all(text, markers, start), None)


def _all(text: str, markers: Sequence[str], start: int = 0) -> Any:
    longest = sorted(filter(None, markers), key=len, reverse=True)
    if not longest:
        return iter(())
    return re.compile("|".join(map(re.escape, longest))).finditer(text, start)


def _may_begin(text: str, markers: Sequence[str]) -> int:
    """How many of the last characters could be the beginning of a marker."""
    longest = max(map(len, markers), default=0)
    for count in range(min(longest - 1, len(text)), 0, -1):
        if any(marker.startswith(text[-count:]) for marker in markers):
            return count
    return 0


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbours of one kind in one."""
    joined: list[Piece] = []
    text: int | None = None
    for piece in pieces:
        last = joined[text] if text is not None else None
        if text is not None and type(last) is type(piece):
            assert isinstance(last, Said | Reasoned)
            assert isinstance(piece, Said | Reasoned)
            joined[text] = type(piece)(last.text + piece.text)
            continue
        if not isinstance(piece, Unread):
            text = len(joined) if isinstance(piece, Said | Reasoned) else None
        joined.append(piece)
    return joined
