"""Which part of a model's reply is worth showing at the cursor. Pure.

A reply is judged a whole line at a time, so the verdict on the lines so far never changes when more
text arrives: that is what lets a completion stop the engine as soon as its end is decided.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

Ending = Literal["stop", "length"]
Multiline = Literal["auto", "never", "always"]

MAX_LINES = 16
_FOLLOWING = 3
_SUBSTANTIAL = 12
_LOOPS = 3
_LONGEST_CYCLE = 4
_LONGEST_PERIOD = 20
_LONG_LOOP = 60
_LONG_LINE = 1000

_PAIRS = {")": "(", "]": "[", "}": "{"}
_CLOSERS = re.compile(r"""[\s)\]}>"'`;,:]*""")
_OPENS_BLOCK = re.compile(r"(?:[:{(\[,]|=>|->|\b(?:do|then|else|begin))\s*$")
_GOES_ON = re.compile(r"\s*(?:[)\]}]|(?:end|else|elif|except|finally|catch|case)\b)")
_CLOSES_ONLY = re.compile(r"\s*(?:[)\]}]+|end\b)[\s;,)]*$")
_COMMENT = re.compile(r"\s*(?:#|//|--)")
_LONG_STRING = re.compile(r"""(\"\"\"|''')[\s\S]*?\1""")
_STRING = re.compile(r"""(["'`])(?:\\.|(?!\1).)*\1""")
# Characters that no one sees and that may turn the text around them (Trojan Source, 2021).
_INVISIBLE = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\u2028-\u202e\u2060-\u2069\ufeff"
_CONTROL = re.compile(
    r"<\|\w+\|>|<｜[^｜\n]+｜>|<(?:fim_(?:prefix|suffix|middle|pad)|file_sep|repo_name|reponame)>"
    rf"|[{_INVISIBLE}]"
)
_DECIDING = re.compile(rf"[\r\n>{_INVISIBLE}]")
_LINE_END = re.compile(r"[\r\n]")
_LABEL = re.compile(r"\s*\w{1,3}$")
_REMARK = re.compile(r"(?:^|(?<=\s))(?:#|//|--).*", re.MULTILINE)
_TOKEN = re.compile(r"\w+|[^\w\s]+")


class Settled(NamedTuple):
    """text: what to insert. decided: no further reply text can change it."""

    text: str
    decided: bool


@dataclass(frozen=True)
class Gap:
    """The place a suggestion fills. `prefix` ends and `suffix` begins at the cursor.

    multiline: ``auto`` takes a whole block where the cursor's line is blank or the completed line
    opens one, and else the one line; text other than closers right of the cursor always means one.
    before, rest: the cursor's line, left and right of it.
    """

    prefix: str
    suffix: str
    multiline: Multiline = "auto"
    before: str = field(init=False)
    rest: str = field(init=False)

    def __post_init__(self) -> None:
        end = self.prefix[-4096:]
        object.__setattr__(self, "before", end[max(end.rfind("\n"), end.rfind("\r")) + 1 :])
        object.__setattr__(self, "rest", _LINE_END.split(self.suffix, maxsplit=1)[0])

    @cached_property
    def next_lines(self) -> list[str]:
        """The first lines below the cursor's that are not blank, at most `_FOLLOWING`."""
        below = self.suffix[len(self.rest) :]
        found = re.finditer(r"[^\r\n]*\S[^\r\n]*", below)
        return [line[0] for line in itertools.islice(found, _FOLLOWING)]

    @cached_property
    def line_above(self) -> str:
        """The last line above the cursor's that is not blank."""
        above = self.prefix[-4096:].rstrip("\r\n") if not self.before else self.prefix[-4096:]
        found = re.findall(r"[^\r\n]*\S[^\r\n]*", above[: len(above) - len(self.before)])
        return found[-1] if found else ""

    @cached_property
    def unit(self) -> str:
        """What this place of the document is indented by: a tab, or some spaces."""
        found = re.findall(r"^[ \t]+(?=\S)", self.prefix[-4096:] + self.suffix[:4096], re.MULTILINE)
        if self.before and not self.before.strip():
            found.append(self.before)
        tabs = sum(one[0] == "\t" for one in found)
        if tabs > len(found) - tabs:
            return "\t"
        widths = [len(one) for one in found if "\t" not in one and len(one) > 1]
        return " " * min([4, *widths])

    @cached_property
    def opened(self) -> int | None:
        """How many brackets are open at the cursor; None where that is not known."""
        above = self.prefix[-4096:]
        start = len(above)
        while start > 0:
            start = above.rfind("\n", 0, start)
            if above[start + 1 : start + 2].isalnum() or above[start + 1 : start + 2] == "_":
                break
        above = above[start + 1 :]
        if start < 0 and not above[:1].isalnum():
            return None
        above = _LONG_STRING.sub("", above)
        if '"""' in above or "'''" in above or "`" in above:
            return None
        depth = 0
        for char in _REMARK.sub("", _without_strings(above)):
            depth += (char in "([{") - (char in ")]}")
            if depth < 0:
                return None
        return depth

    @cached_property
    def newline(self) -> str:
        """The line end this place of the document uses."""
        end = self.prefix[-4096:]
        at = max(end.rfind("\n"), end.rfind("\r"))
        if at < 0:
            found = re.search(r"\r\n|\n|\r", self.suffix[:4096])
            return found[0] if found else "\n"
        return "\r\n" if end[max(at - 1, 0) : at + 1] == "\r\n" else end[at]

    def spans_lines(self, first_line: str) -> bool:
        """Whether a suggestion that starts with `first_line` may go on below it."""
        if self.multiline == "never" or not _CLOSERS.fullmatch(self.rest):
            return False
        if self.multiline == "always" or not self.before.strip():
            return True
        if self.rest.strip() and not first_line.strip():
            return _OPENS_BLOCK.search(self.before) is not None
        whole = self.before + first_line
        if _COMMENT.match(whole):
            return False
        if _open_brackets(whole + self.rest):
            return True
        return not self.rest.strip() and _OPENS_BLOCK.search(whole) is not None


def settle(reply: str, gap: Gap, ending: Ending | None = None) -> Settled:
    """What of `reply` to insert at `gap`.

    ending: why the reply ended; None while more of it may come. The text uses the gap's line
    ends; it never repeats what follows the cursor, spells no control token, and is empty rather
    than blank.
    """
    reply = reply.replace("\r\n", "\n").rstrip("\r").replace("\r", "\n")
    control = _CONTROL.search(reply)
    loop = _end_of_first_pass(reply[: control.end() - 1] if control else reply)
    if loop is not None:
        reply, ending = reply[:loop], "stop"
    elif control:
        reply, ending = reply[: control.start()], "stop"
    if ending == "length":
        # The last character may have been cut in two.
        reply = reply.rstrip("\ufffd")
    lines = reply.split("\n")
    if ending is None or (ending == "length" and len(lines) > 1):
        # The last line is not whole: not yet, or never.
        lines.pop()
    kept, over = _keep(_aligned(lines, gap), gap)
    return Settled(_finish("\n".join(kept), gap), over or ending is not None)


def may_decide(reply: str, added: str) -> bool:
    """Whether `added`, at the end of `reply`, can have decided what was open before it."""
    # A carriage return ends a line only once something follows.
    if _DECIDING.search(reply[-len(added) - 1 :]):
        return True
    return len(reply) - reply.rfind("\n") > _LONG_LOOP


def _keep(lines: list[str], gap: Gap) -> tuple[list[str], bool]:
    """The leading lines that belong to the suggestion, and whether its end was among `lines`."""
    fenced = bool(lines) and lines[0].lstrip().startswith("```") and "```" not in gap.prefix
    if fenced:
        # A chat-tuned model wraps code in Markdown.
        lines = lines[1:]
    spans = bool(lines) and gap.spans_lines(lines[0])
    kept: list[str] = []
    for line in lines:
        fence = line.strip() == "```" and "```" not in gap.prefix
        if fence or _repeats_next_line(line, kept, gap):
            return kept, True
        repeat = _start_of_rest(line, kept, gap)
        if repeat is not None:
            return [*kept, line[:repeat]], True
        if kept and _leaves_block(line, kept, gap):
            return kept, True
        surplus = _surplus_closer(line, kept, gap)
        if surplus is not None:
            return [*kept, line[:surplus]], True
        kept.append(line)
        if (once := _without_loop(kept, gap)) is not None:
            return once, True
        if not spans or len(kept) == MAX_LINES or _closes_block(kept, gap):
            return kept, True
    return kept, False


def _finish(text: str, gap: Gap) -> str:
    if not text.strip():
        return ""
    if gap.before.strip() and gap.before[-1] in " \t":
        text = text.lstrip(" \t")
    if not gap.rest.strip() or gap.rest[0] in " \t":
        text = text.rstrip()
    return text.replace("\n", gap.newline)


def _aligned(lines: list[str], gap: Gap) -> list[str]:
    """`lines` indented as the document is, and as its cursor is. What becomes of a line depends on
    those before it only."""
    lines = [_as_indented(line, gap.unit) if number else line for number, line in enumerate(lines)]
    if not gap.before or gap.before.strip():
        return lines
    blank = next((number for number, line in enumerate(lines) if line.strip()), len(lines))
    lines, base = lines[blank:], _indent(gap.before)
    if not lines:
        return []
    extra = _indent(lines[0]) if blank else _indent(gap.before + lines[0]) - base
    if blank:
        # Counted from the margin, where the cursor is not.
        if extra < base:
            return []
        return [" " * (extra - base) + lines[0].lstrip(), *lines[1:]]
    deeper = _OPENS_BLOCK.search(gap.line_above) and base <= _indent(gap.line_above)
    if not extra or deeper:
        return lines
    second = next((line for line in lines[1:] if line.strip()), "")
    lines = [lines[0].lstrip(), *lines[1:]]
    if _indent(second) == base + extra and not _OPENS_BLOCK.search(lines[0]):
        shifted = [_indent(line) - extra for line in lines[1:]]
        lines[1:] = [
            _as_indented(" " * max(width, 0) + line.lstrip(), gap.unit) if line.strip() else line
            for line, width in zip(lines[1:], shifted, strict=True)
        ]
    return lines


def _as_indented(line: str, unit: str) -> str:
    """`line` with tabs or spaces, as its document has; what is between them is left alone."""
    lead = line[: len(line) - len(line.lstrip(" \t"))]
    if unit == "\t" and lead and "\t" not in lead:
        width = 2 if len(lead) % 4 else 4
        return "\t" * (len(lead) // width) + " " * (len(lead) % width) + line[len(lead) :]
    if unit != "\t" and "\t" in lead:
        return lead.replace("\t", unit) + line[len(lead) :]
    return line


def _indent(line: str) -> int:
    whole = line.expandtabs(8)
    return len(whole) - len(whole.lstrip())


def _whole_lines(kept: list[str], gap: Gap) -> Iterator[str]:
    """`kept` as it will stand in the document, blank lines left out."""
    for index, line in enumerate(kept):
        whole = line if index else gap.before + line
        if whole.strip():
            yield whole


def _leaves_block(line: str, kept: list[str], gap: Gap) -> bool:
    """Whether the block that the suggestion fills ends before `line`."""
    above = list(_whole_lines(kept, gap))
    if not line.strip():
        return bool(above) and len(kept) > 1 and not kept[-1].strip()
    if not above:
        return _indent(line) < _indent(gap.before)
    if len(kept) > 1 and not kept[-1].strip() and _indent(line) < _indent(above[-1]):
        return True
    base = _indent(above[0])
    if _opened(kept, gap) and _indent(line) == base:
        return not _GOES_ON.match(line)
    return _indent(line) < base


def _closes_block(kept: list[str], gap: Gap) -> bool:
    """Whether the last line is the bracket or ``end`` of the block the first line opened."""
    if len(kept) < 2 or not _opened(kept, gap) or not _CLOSES_ONLY.match(kept[-1]):
        return False
    return _indent(kept[-1]) == _indent(next(_whole_lines(kept, gap)))


def _opened(kept: list[str], gap: Gap) -> bool:
    """Whether the suggestion fills a block its own first line opened, rather than lines of one
    that was open already."""
    return bool(gap.before.strip()) and gap.spans_lines(kept[0]) and gap.multiline == "auto"


def _repeats_next_line(line: str, kept: list[str], gap: Gap) -> bool:
    if not line.strip():
        return False
    whole = line if kept else gap.before + line + gap.rest
    said, indent = "".join(whole.split()), _indent(whole)
    for number, following in enumerate(gap.next_lines):
        if indent != _indent(following):
            continue
        there = "".join(following.split())
        # What comes later may be said twice, unless it is long; and a long one may be cut short.
        if said == there and (number == 0 or len(said) >= _SUBSTANTIAL):
            return True
        if number == 0 and there.startswith(said) and len(said) >= _SUBSTANTIAL:
            return 3 * len(said) >= 2 * len(there)
    return False


def _start_of_rest(line: str, kept: list[str], gap: Gap) -> int | None:
    """Where `line` begins to repeat the text right of the cursor, if it does."""
    rest = gap.rest.strip()
    if not rest:
        return None
    if _CLOSERS.fullmatch(rest):
        return _start_of_closers(line, "\n".join(kept), rest)
    left = line if kept else gap.before + line
    for token in reversed(list(_TOKEN.finditer(rest))):
        start = _tail_start(line, rest[: token.end()])
        if start is None:
            continue
        at = len(left) - len(line) + start
        splits_word = at > 0 and left[at - 1].isalnum() and rest[0].isalnum()
        if not splits_word:
            return start
    return None


def _start_of_closers(line: str, above: str, rest: str) -> int | None:
    """Closers repeat `rest` only if nothing in the suggestion itself was open for them."""
    start = _tail_start(line, rest)
    if start is not None and not _open_brackets(above + line[:start]):
        return start
    bracket = next((char for char in rest if char in _PAIRS), None)
    if bracket is None:
        return None
    lead = rest[: rest.index(bracket)]
    for found in re.finditer(re.escape(bracket), line):
        at = found.start()
        unmatched = not _open_brackets(above + line[:at])
        if unmatched and line[:at].endswith(lead) and not _open_brackets(line[at + 1 :]):
            return at - len(lead)
    return None


def _surplus_closer(line: str, kept: list[str], gap: Gap) -> int | None:
    """Where `line` closes a bracket that is not open, if it does."""
    if gap.rest.strip() or not any(char in line for char in ")]}"):
        return None
    above = "\n".join([*kept, ""]) if kept else ""
    depth, opened = 0, 0
    for at, char in enumerate(_REMARK.sub(_blanked, _without_strings(above + line))):
        depth += (char in "([{") - (char in ")]}")
        if depth + opened < 0:
            if gap.opened is None:
                return None
            opened = gap.opened
        if depth + opened < 0:
            begun = line if kept else gap.before + line
            label = _LABEL.fullmatch(begun[: at - len(above) + len(begun) - len(line)])
            return None if label else at - len(above)
    return None


def _without_strings(text: str) -> str:
    """As long as `text`."""
    return _STRING.sub(_blanked, text)


def _blanked(found: re.Match[str]) -> str:
    return " " * len(found[0])


def _tail_start(line: str, tail: str) -> int | None:
    """Where `line` ends with `tail`, whitespace aside."""
    at = len(line)
    for char in reversed("".join(tail.split())):
        while at > 0 and line[at - 1].isspace():
            at -= 1
        if at == 0 or line[at - 1] != char:
            return None
        at -= 1
    return at


def _open_brackets(text: str) -> int:
    """How many brackets are open at the end of `text`, strings aside."""
    stack: list[str] = []
    for char in _STRING.sub("", text):
        if char in "([{":
            stack.append(char)
        elif stack and stack[-1] == _PAIRS.get(char):
            stack.pop()
    return len(stack)


def _without_loop(kept: list[str], gap: Gap) -> list[str] | None:
    """The lines with their loop run once, if they end in one."""
    whole = [gap.before + kept[0], *kept[1:]]
    for period in range(1, min(_LONGEST_CYCLE, len(whole) // _LOOPS) + 1):
        tail = whole[-_LOOPS * period :]
        once = tail[:period]
        if any(line.strip() for line in once) and tail == once * _LOOPS:
            return kept[: len(kept) - (_LOOPS - 1) * period]
    return None


def _end_of_first_pass(reply: str) -> int | None:
    """Where to cut a line that goes round in circles: after the first time round.

    Found at the earliest character that gives it away, so that more text changes nothing.
    """
    line_start = 0
    for line in reply.split("\n"):
        if len(line) >= _LONG_LOOP:
            # Beyond that a line is minified or data, and looking would cost more than it saves.
            found = [
                _first_loop(line[:_LONG_LINE], period) for period in range(1, _LONGEST_PERIOD + 1)
            ]
            if seen := [loop for loop in found if loop is not None]:
                return line_start + min(seen)[1]
        line_start += len(line) + 1
    return None


def _first_loop(line: str, period: int) -> tuple[int, int] | None:
    """(where a loop of `period` is found out, where its first pass ends)."""
    run = 0
    for at, (char, earlier) in enumerate(zip(line[period:], line, strict=False), start=period):
        run = run + 1 if char == earlier else 0
        if run + period >= _LONG_LOOP:
            first = line[at + 1 - run - period : at + 1 - run]
            # Rulers and indentation repeat too; a loop repeats words.
            return (at, at + 1 - run) if any(map(str.isalnum, first)) else None
    return None
