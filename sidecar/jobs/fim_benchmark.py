"""How well several lines are filled in, in code that the built-in model was never trained on.

A hole is a run of whole statements, two to six lines, in a function of a held-out package; the
answer is what stood there.
"""

from __future__ import annotations

import ast
import difflib
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from sidecar.jobs.suggestion import Gap, settle

FEWEST_LINES, MOST_LINES, MOST_CHARACTERS = 2, 6, 320
HOLES = 300
IN_THE_MIDDLE, PREFIX_ONLY = "fill in the middle", "prefix only"


class Hole(Struct, frozen=True, kw_only=True):
    """A place in a file. `prefix` ends with the indentation of the first line that is missing,
    `middle` with the last sign of the last one."""

    name: str
    path: str
    prefix: str
    middle: str
    suffix: str

    @property
    def gap(self) -> Gap:
        return Gap(self.prefix, self.suffix)


class FimRow(Struct, frozen=True, kw_only=True):
    """exact_match, edit_similarity: shares, over `holes`. first_line: holes whose first line is
    right. empty: holes that got nothing."""

    system: str
    model: str
    holes: int
    exact_match: float
    edit_similarity: float
    first_line: float
    empty: int


def holes(folders: Mapping[str, Path], count: int) -> list[Hole]:
    """`count` holes at most, evenly spread, the same ones each time. folders: of packages."""
    found = [
        hole
        for name, folder in folders.items()
        for file in sorted(folder.rglob("*.py"))
        for hole in _holes(file, f"{name}/{file.relative_to(folder).as_posix()}")
    ]
    if len(found) <= count:
        return found
    return [found[len(found) * number // count] for number in range(count)]


def _holes(file: Path, path: str) -> Iterator[Hole]:
    text = file.read_text(encoding="utf-8").replace("\r\n", "\n")
    lines = text.splitlines(keepends=True)
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for first, last in _runs(function):
                middle = "".join(lines[first - 1 : last]).rstrip()
                indent = middle[: len(middle) - len(middle.lstrip())]
                if len(middle) <= MOST_CHARACTERS:
                    yield Hole(
                        name=f"{path}:{first}",
                        path=path,
                        prefix="".join(lines[: first - 1]) + indent,
                        middle=middle[len(indent) :],
                        suffix="\n" + "".join(lines[last:]),
                    )


def _runs(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, int]]:
    """First and last line, counted from 1, of statements of its body that belong together."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    # What stands on the line of the ``def`` is no whole line.
    body = [one for one in body if one.lineno > function.lineno]
    start = 0
    while start < len(body):
        end = start
        while end + 1 < len(body) and _lines(body[start], body[end]) < FEWEST_LINES:
            end += 1
        if FEWEST_LINES <= _lines(body[start], body[end]) <= MOST_LINES:
            yield body[start].lineno, body[end].end_lineno or body[end].lineno
        start = end + 1


def _lines(first: ast.stmt, last: ast.stmt) -> int:
    return (last.end_lineno or last.lineno) - first.lineno + 1


def begun_text(hole: Hole, characters: int) -> str:
    """What a model that continues text is shown: whole lines, at most so many characters."""
    start = max(len(hole.prefix) - characters, 0)
    return hole.prefix[hole.prefix.find("\n", start) + 1 if start else 0 :]


def judged(system: str, model: str, asked: Sequence[Hole], texts: Sequence[str]) -> FimRow:
    """texts: what each of the holes was filled with."""
    pairs = [
        (_plain(hole, hole.middle), _plain(hole, text))
        for hole, text in zip(asked, texts, strict=True)
    ]
    return FimRow(
        system=system,
        model=model,
        holes=len(pairs),
        exact_match=round(_mean([right == text for right, text in pairs]), 4),
        edit_similarity=round(_mean([similarity(right, text) for right, text in pairs]), 4),
        first_line=round(
            _mean([right.split("\n")[0] == text.split("\n")[0] for right, text in pairs]), 4
        ),
        empty=sum(not text for _, text in pairs),
    )


def similarity(one: str, other: str) -> float:
    """Matching characters of all (Ratcliff and Obershelp), as `difflib` has it; 1 is the same."""
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def settled_text(hole: Hole, reply: str, *, whole: bool) -> str:
    """What the product would show of a reply. whole: it ended by itself."""
    return settle(reply, hole.gap, "stop" if whole else "length").text


def _plain(hole: Hole, text: str) -> str:
    """Without what no reader sees: white space at the ends of lines, the common indentation."""
    indent = hole.gap.before
    lines = textwrap.dedent(indent + text).strip().split("\n") if text.strip() else [""]
    return "\n".join(line.rstrip() for line in lines)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
