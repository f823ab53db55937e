"""Whether an edited file is what was asked for, as far as that can be told without running it."""

from __future__ import annotations

from sidecar.edits.hunks import hunks
from sidecar.edits.reply import strange_characters
from sidecar.edits.syntax import Syntax
from sidecar.edits.writable_root import Refused
from sidecar.workspace.positions import split_lines

MOST_CHANGED = 0.5
"""Of a region's characters, taken away or written: an edit leaves more than that alone."""
FEW_CHARACTERS = 80


def check_region(before: str, after: str, most: float = MOST_CHANGED) -> None:
    """Raise Refused where a region was not edited but replaced, or got what nobody sees."""
    changed = changed_characters(before, after)
    share = changed / max(len(before) + len(after), 1)
    # A longer name may well be most of a line.
    if share > most and changed > FEW_CHARACTERS:
        raise Refused(f"the answer changes {share:.0%} of the code; at most {most:.0%} are taken")
    lines = [sum(1 for line in split_lines(text) if line.strip()) for text in (before, after)]
    lost = 1 - lines[1] / max(lines[0], 1)
    # An answer that stops half-way may well parse.
    if lost > most / 2:
        raise Refused(f"the answer leaves out {lines[0] - lines[1]} of {lines[0]} lines")
    if strange := strange_characters(before, after):
        raise Refused(f"the answer has invisible characters: {strange}")


def check_syntax(before: str, after: str, language: str) -> None:
    """Raise Refused where a file that parsed does not any more."""
    if Syntax(before, language).error_line() is not None:
        return
    line = Syntax(after, language).error_line()
    if line is not None:
        raise Refused(f"the result does not parse as {language} (line {line + 1})")


def changed_characters(before: str, after: str) -> int:
    """Characters that are gone or new."""
    lines = split_lines(before)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    changed = 0
    for hunk in hunks(before, after):
        gone = starts[hunk.end_line] + hunk.end_column - starts[hunk.line] - hunk.column
        changed += gone + len(hunk.text)
    return changed
