"""A region's common margin, taken off before a model sees the code and put back after.

Small models write short functions that begin at the left edge much better than methods.
"""

from __future__ import annotations

import os


def without_margin(code: str) -> tuple[str, str]:
    """The margin that every line has that is not blank, and the code without it. Where that could
    not be undone, as with blank lines that hold blanks, there is none."""
    lines = code.split("\n")
    full = [line for line in lines if line.strip()]
    margins = [line[: len(line) - len(line.lstrip(" \t"))] for line in full]
    shortest, longest = min(margins, default=""), max(margins, default="")
    margin = os.path.commonprefix((shortest, longest))  # noqa: RUF071 - of blanks, not of paths
    bare = "\n".join(line[len(margin) :] if line.strip() else line for line in lines)
    return (margin, bare) if with_margin(margin, bare) == code else ("", code)


def with_margin(margin: str, code: str) -> str:
    """`code` with `margin` before every line that is not blank."""
    return "\n".join(margin + line if line.strip() else line for line in code.split("\n"))
