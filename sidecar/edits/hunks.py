"""The smallest changes that lead from one text to another, by line and then by character.

Lines that stay keep every character, their line ends too, however a model wrote them back.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from sidecar.edits.text_file import line_end
from sidecar.workspace.positions import split_lines, without_end


class Hunk(Struct, frozen=True):
    """`text` takes the place of what lies between two places of the original: lines from 0,
    columns in code points."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


class LineHunk(Struct, frozen=True):
    """Whole lines, as a person takes or leaves them: those of the original from `first` up to
    `last` are `old` and become `new`. hunks: the same as the smallest changes."""

    first: int
    last: int
    old: str
    new: str
    hunks: tuple[Hunk, ...]


def rewritten(old: str, new: str) -> str:
    r"""`old` with the lines of `new` (which end in ``\n``): a line that stays is `old`'s own with
    its line end, another one gets the end of the line it replaces, or else of most lines.

    Whether the last line has an end stays as it was.
    """
    before = [(without_end(line), line[len(without_end(line)) :]) for line in split_lines(old)]
    ended = before[-1][0] == ""
    if ended:
        before.pop()
    bare, after = [line for line, _ in before], new.removesuffix("\n").split("\n") if new else []
    usual, lines = line_end(old), list[tuple[str, str]]()
    for start, end, other_start, other_end in _matched(bare, after):
        for offset, line in enumerate(after[other_start:other_end], start):
            lines.append((line, before[offset][1] if offset < end else usual))
    text = ""
    for number, (line, own) in enumerate(lines, 1):
        line += (own or usual) if ended or number < len(lines) else ""
        # An empty line behind a lone \r would become a part of that line's end.
        text += "\r" if text.endswith("\r") and line == "\n" else line
    return text


def hunks(old: str, new: str) -> tuple[Hunk, ...]:
    """In order and apart from each other. Equal texts have none."""
    return tuple(hunk for lines in line_hunks(old, new) for hunk in lines.hunks)


def line_hunks(old: str, new: str) -> tuple[LineHunk, ...]:
    """In order, with at least one line that stays between each two."""
    before, after = split_lines(old), split_lines(new)
    found: list[LineHunk] = []
    for start, end, other_start, other_end in _matched(before, after):
        gone, come = before[start:end], after[other_start:other_end]
        if gone == come:
            continue
        # A lone \r that meets a \n ends one line less, and the next change would be a line off.
        alone = any(line.endswith("\r") for line in gone)
        if len(gone) == len(come) and not alone:
            pairs = zip(range(start, end), gone, come, strict=True)
            small = [_within(at, at + 1, [one], text) for at, one, text in pairs if one != text]
        else:
            small = [_within(start, end, gone, "".join(come))]
        found.append(LineHunk(start, end, "".join(gone), "".join(come), tuple(small)))
    return tuple(found)


def apply_line_hunks(old: str, changes: Iterable[tuple[int, str, str]]) -> str:
    """What a client makes of line hunks, or of some of them: (first, old, new) of each, in order.
    Raises ValueError where the old lines are not what is there."""
    lines = split_lines(old)
    pieces, at = [], 0
    for first, gone, come in changes:
        last = first + len([line for line in split_lines(gone) if line])
        if first < at or "".join(lines[first:last]) != gone:
            raise ValueError(f"line {first + 1} is not what it was")
        pieces += [*lines[at:first], come]
        at = last
    return "".join([*pieces, *lines[at:]])


def apply_hunks(old: str, changes: Sequence[Hunk]) -> str:
    """What a client makes of them: the inverse of `hunks`."""
    lines = split_lines(old)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    pieces, at = [], 0
    for change in changes:
        pieces += [old[at : starts[change.line] + change.column], change.text]
        at = starts[change.end_line] + change.end_column
    return "".join([*pieces, old[at:]])


def unified_diff(path: str, old: str, new: str) -> Iterator[str]:
    """Lines without ends, as `diff -u` and `patch` have them; line ends that differ show as a
    ``\\r``."""
    lines = (list(split_lines(text)) for text in (old, new))
    before, after = ([line for line in text if line] for text in lines)
    for line in difflib.unified_diff(before, after, f"a/{path}", f"b/{path}"):
        yield line.removesuffix("\n")
        if line[:1] in " +-" and not line.endswith(("\n", "\r")):
            yield "\\ No newline at end of file"


def _matched(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """Runs of lines, alike or not, that cover both texts. Equal ends are taken off first: difflib
    is quadratic, and an edit leaves most of a file alone."""
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    if head:
        yield 0, head, 0, head
    end, other_end = len(before) - tail, len(after) - tail
    matcher = difflib.SequenceMatcher(None, before[head:end], after[head:other_end], autojunk=False)
    for _, start, stop, other_start, other_stop in matcher.get_opcodes():
        yield head + start, head + stop, head + other_start, head + other_stop
    if tail:
        yield end, len(before), other_end, len(after)


def _common(before: Sequence[str], after: Sequence[str]) -> int:
    count = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            break
        count += 1
    return count


def _within(start: int, end: int, before: Sequence[str], text: str) -> Hunk:
    """One hunk for lines `start` to `end`, without the characters at both ends that stay. A
    ``\\r\\n`` is not taken apart: to a client it is one place."""
    old = "".join(before)
    head = _common(old, text)
    while head and old[head - 1 : head] == "\r":
        head -= 1
    most = min(len(old), len(text)) - head
    tail = _common(old[::-1], text[::-1])
    tail = min(tail, most)
    while (
        tail
        and old[len(old) - tail] == "\n"
        and (
            old[len(old) - tail - 1 : len(old) - tail] == "\r"
            or text[len(text) - tail - 1 : len(text) - tail] == "\r"
        )
    ):
        tail -= 1
    line, column = _place(before, head)
    end_line, end_column = _place(before, len(old) - tail)
    return Hunk(start + line, column, start + end_line, end_column, text[head : len(text) - tail])


def _place(lines: Sequence[str], offset: int) -> tuple[int, int]:
    """(line, column) of an offset into `lines`; behind the last line's end is the next line."""
    for number, line in enumerate(lines):
        if offset < len(line) or (offset == len(line) and line == without_end(line)):
            return number, offset
        offset -= len(line)
    return len(lines), offset
