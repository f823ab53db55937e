"""Which kind of text a reply is in, token by token: reasoning, prose, code or a tool call.

How well a drafter does depends on it more than on anything else, and it changes inside one reply.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence

from engine.text.fill_in_middle import DOCUMENT_STARTS, MARKERS


class Regime(enum.StrEnum):
    """A kind of text."""

    REASONING = "reasoning"
    PROSE = "prose"
    CODE = "code"
    TOOL_CALL = "tool_call"


# What opens a regime and what closes it again; nothing closes what ends with the reply. Spellings
# as in the models' chat templates.
SPANS: dict[str, tuple[Regime, str]] = {
    "<think>": (Regime.REASONING, "</think>"),
    "<seed:think>": (Regime.REASONING, "</seed:think>"),
    "<longcat_think>": (Regime.REASONING, "</longcat_think>"),
    "<|think:start|>": (Regime.REASONING, "<|think:end|>"),
    "<|channel|>analysis": (Regime.REASONING, "<|end|>"),
    "<|channel>thought": (Regime.REASONING, "<channel|>"),
    "<|open|>think<|sep|>": (Regime.REASONING, "<|close|>think<|sep|>"),
    "[THINK]": (Regime.REASONING, "[/THINK]"),
    "<tool_call>": (Regime.TOOL_CALL, "</tool_call>"),
    "<seed:tool_call>": (Regime.TOOL_CALL, "</seed:tool_call>"),
    "<minimax:tool_call>": (Regime.TOOL_CALL, "</minimax:tool_call>"),
    "<longcat_tool_call>": (Regime.TOOL_CALL, "</longcat_tool_call>"),
    "<start_function_call>": (Regime.TOOL_CALL, "<end_function_call>"),
    "<function name=": (Regime.TOOL_CALL, "</function>"),
    "<|tool_call>": (Regime.TOOL_CALL, "<tool_call|>"),
    "<|channel|>commentary to=": (Regime.TOOL_CALL, "<|call|>"),
    "<|tool_call_start|>": (Regime.TOOL_CALL, "<|tool_call_end|>"),
    "<|tool_calls_section_begin|>": (Regime.TOOL_CALL, "<|tool_calls_section_end|>"),
    "<｜tool▁calls▁begin｜>": (Regime.TOOL_CALL, "<｜tool▁calls▁end｜>"),
    "<|open|>tools<|sep|>": (Regime.TOOL_CALL, "<|close|>tools<|sep|>"),
    "[TOOL_CALLS]": (Regime.TOOL_CALL, ""),
    "<|python_tag|>": (Regime.TOOL_CALL, ""),
}
_OPENER = re.compile("|".join(map(re.escape, sorted(SPANS, key=len, reverse=True))))
_TOOL_OPENER = re.compile(
    "|".join(re.escape(text) for text, (regime, _) in SPANS.items() if regime is Regime.TOOL_CALL)
)
# Every marker has one of these in it, and little else of a reply has.
_SIGNS = re.compile(r"[<\[]")
_LONGEST = max(len(text) for opener, (_, closer) in SPANS.items() for text in (opener, closer))
# CommonMark: three or more of one sign at the start of a line; what follows back-ticks has none.
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`]*$)|~{3,})")
_FENCE_SIGNS = ("`", "~")
# Of a line that is no fence only its start matters.
_LINE = 256
_FILL_IN_MIDDLE = frozenset(marker for markers in MARKERS for marker in markers)


class RegimeParser:
    """Follows one reply. `regime` is that of the next token.

    A marker that is a control token counts from that token on, one that is spelled in ordinary
    tokens once it is complete. In fenced code only control tokens open a span: the text may be
    about such markers.

    controls: the spelling of each control token. prompt: decides how the reply begins: inside
    reasoning that the template opened, as prose after a chat turn, as code everywhere else (raw
    text to continue, a hole to fill).
    """

    def __init__(self, controls: Mapping[int, str], prompt: Sequence[int]) -> None:
        self._controls = controls
        self._fence = ""
        self._line = ""
        # The end of the text so far, in which a spelled marker may have begun.
        self._tail = ""
        self._span: tuple[Regime, str] | None = None
        self._base = Regime.CODE
        self._begin(prompt)

    @property
    def regime(self) -> Regime:
        if self._span is not None:
            return self._span[0]
        return Regime.CODE if self._base is Regime.CODE or self._in_fence() else Regime.PROSE

    def feed(self, token: int, text: str) -> None:
        """Take in one committed token and the text that it completed (maybe none)."""
        control = self._controls.get(token)
        self._read(text if control is None else control, trusted=control is not None)

    def _begin(self, prompt: Sequence[int]) -> None:
        for token in reversed(prompt):
            control = self._controls.get(token)
            if control is None or control in DOCUMENT_STARTS:
                continue
            if control not in _FILL_IN_MIDDLE:
                self._base = Regime.PROSE
            span = SPANS.get(control)
            if span is not None and span[0] is Regime.REASONING:
                self._span = span
            return

    def _read(self, text: str, *, trusted: bool) -> None:
        seen = self._tail + text
        if self._span is not None:
            self._read_span(seen, trusted)
            return
        opener = None
        if _SIGNS.search(seen) is None:
            self._tail = ""
        else:
            opener = _OPENER.search(seen) if trusted or not self._in_fence() else None
            self._tail = seen[-_LONGEST:]
        if opener is None:
            self._read_lines(text)
            return
        self._open(seen, opener, trusted)

    def _read_span(self, seen: str, trusted: bool) -> None:
        assert self._span is not None
        regime, closer = self._span
        end = seen.find(closer) if closer else -1
        if end >= 0:
            self._span = None
            self._tail = ""
            self._read(seen[end + len(closer) :], trusted=trusted)
            return
        # A model may call a tool without having closed its reasoning.
        opener = _TOOL_OPENER.search(seen) if regime is Regime.REASONING else None
        if opener is None:
            self._tail = seen[-_LONGEST:]
            return
        self._open(seen, opener, trusted)

    def _open(self, seen: str, opener: re.Match[str], trusted: bool) -> None:
        self._span = SPANS[opener[0]]
        self._fence = self._line = self._tail = ""
        self._read_span(seen[opener.end() :], trusted)

    def _read_lines(self, text: str) -> None:
        if "\n" not in text:
            self._line = (self._line + text)[:_LINE]
            return
        first, *others = text.split("\n")
        self._line = (self._line + first)[:_LINE]
        for line in others:
            self._end_line()
            self._line = line[:_LINE]

    def _end_line(self) -> None:
        inside = self._in_fence()
        if inside and not self._fence:
            fence = _FENCE.match(self._line)
            assert fence is not None
            self._fence = fence[1]
        elif not inside:
            self._fence = ""

    def _in_fence(self) -> bool:
        """Whether the next character is in fenced code; the fence itself already belongs to it."""
        if self._line.lstrip()[:1] not in _FENCE_SIGNS:
            return bool(self._fence)
        fence = _FENCE.match(self._line)
        if not self._fence:
            return fence is not None
        closes = (
            fence is not None
            and fence[1].startswith(self._fence)
            and not self._line[fence.end() :].strip()
        )
        return not closes
