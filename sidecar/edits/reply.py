"""A model's answer to an edit, read strictly: what is not exactly an answer is refused.

Two forms. A region is rewritten whole, in a fence. A longer one is changed by search and replace
blocks, whose search text has to be in the region exactly once. No form names a file: where an
answer goes was decided before it was asked for.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from sidecar.edits.text_file import with_newlines
from sidecar.edits.writable_root import Refused

SEARCH, DIVIDER, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"
_MARKER = re.compile(r"^(<<<<<<<|=======|>>>>>>>)", re.MULTILINE)
_TICKS = re.compile(r"`{3,}")


def fence_for(code: str) -> str:
    """Backticks that `code` itself has not."""
    return "`" * max([3, *(len(run) + 1 for run in _TICKS.findall(code))])


def has_markers(code: str) -> bool:
    """Whether the code has lines like those of search and replace blocks, a merge conflict's."""
    return _MARKER.search(code) is not None


def rewritten_region(reply: str, fence: str) -> str:
    """The code of a reply's one fence. Raises Refused."""
    lines = with_newlines(_answer(reply)).split("\n")
    at = [number for number, line in enumerate(lines) if re.match(rf"{fence}(?!`)", line.strip())]
    if not at:
        raise Refused("the answer has no code block")
    if len(at) == 1:
        raise Refused("the answer's code block does not end")
    if len(at) > 2:
        raise Refused("the answer has more than one code block")
    first, last = at
    if lines[last].strip() != fence:
        raise Refused("the answer's code block does not end")
    code = "\n".join(lines[first + 1 : last])
    if not code.strip():
        raise Refused("the answer's code block is empty")
    return code


def replaced_blocks(region: str, reply: str) -> str:
    """`region` (with ``\\n``) after a reply's search and replace blocks. Raises Refused."""
    for number, (search, replace) in enumerate(_blocks(with_newlines(_answer(reply))), 1):
        found = region.count(search)
        if found != 1:
            times = "not in the code" if found == 0 else f"in the code {found} times"
            raise Refused(f"the text that block {number} of the answer searches is {times}")
        region = region.replace(search, replace)
    return region


def strange_characters(before: str, after: str) -> str:
    """Names of invisible characters that an answer brought along: they may make code read
    otherwise than it runs (CVE-2021-42574). Empty where there are none."""
    fresh = {
        char
        for char in set(after) - set(before)
        if unicodedata.category(char) in ("Cc", "Cf", "Co", "Cn", "Cs") and char not in "\t\n\r\f"
    }
    return ", ".join(sorted(unicodedata.name(char, f"U+{ord(char):04X}") for char in fresh))


def _answer(reply: str) -> str:
    """What follows the reasoning, if there is any."""
    return reply.rpartition("</think>")[2]


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """(search, replace) of each block, whole lines."""
    lines, at, count = text.split("\n"), 0, 0
    while at < len(lines):
        if lines[at].strip() != SEARCH:
            if lines[at].strip() in (DIVIDER, REPLACE):
                raise Refused("the answer's blocks are not in order")
            at += 1
            continue
        middle = _next(lines, at + 1, DIVIDER)
        end = _next(lines, middle + 1, REPLACE)
        search, replace = lines[at + 1 : middle], lines[middle + 1 : end]
        if not any(line.strip() for line in search):
            raise Refused("a block of the answer searches nothing")
        yield _joined(search), _joined(replace)
        count, at = count + 1, end + 1
    if not count:
        raise Refused("the answer has no search and replace block")


def _next(lines: list[str], start: int, marker: str) -> int:
    for number in range(start, len(lines)):
        found = lines[number].strip()
        if found == marker:
            return number
        if found in (SEARCH, DIVIDER, REPLACE):
            break
    raise Refused("the answer's blocks are not in order")


def _joined(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)
