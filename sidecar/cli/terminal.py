"""How the verbs talk to a person or a script."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

import msgspec

RED, GREEN, YELLOW, DIM, BOLD = "31", "32", "33", "2", "1"


def styled(text: str, style: str, stream: TextIO) -> str:
    """`text` in an ANSI style where `stream` is a terminal that takes it."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{style}m{text}\x1b[0m"


def say_error(message: str) -> None:
    """The one line on stderr that a failed verb leaves."""
    sys.stderr.write(styled(f"error: {shown(message, sys.stderr)}", RED, sys.stderr) + "\n")


def note(message: str) -> None:
    """Something for the person, kept off stdout."""
    sys.stderr.write(styled(message, DIM, sys.stderr) + "\n")
    sys.stderr.flush()


def print_json(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_facts(rows: Iterable[tuple[str, str]]) -> None:
    """Names and values in two columns; a row without a value is left out."""
    kept = [(name, value) for name, value in rows if value]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        label = styled(f"{name:<{width}}", BOLD, sys.stdout)
        sys.stdout.write(f"{label}  {shown(value, sys.stdout)}\n")


def shown(text: str, stream: TextIO) -> str:
    """`text` without what would steer a terminal: a model repeats what it has read."""
    if not stream.isatty():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else "�" for char in text.replace("\r", "")
    )


def human_bytes(count: float) -> str:
    """``14.3 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def describe_exactness(status: Mapping[str, Any]) -> str:
    """One phrase for what the load-time probe found and what is made of it; `status` as
    `status_report` gives it."""
    exactness = status["exactness"]
    if exactness is None:
        return ""
    width, asked, reason = exactness["width"], exactness["asked"], exactness["reason"]
    if status["fast"] and not exactness["exact"]:
        return f"NOT exact: [engine] fast is on and this machine's kernels differ: {reason}"
    capped = f" of {asked}" if width < asked else ""
    return f"exact up to width {width}{capped}" + (f": {reason}" if reason else "")


class Loading:
    """What a model that loads is doing: a spinner on a terminal, else a line for each step."""

    def __init__(self) -> None:
        self._said = ""
        self._spinner: Any = None

    def show(self, detail: str, progress: float | None) -> None:
        """What is being done now, and the share done where that is known."""
        if self._spinner is not None:
            percent = "" if progress is None else f" {progress:.0%}"
            self._spinner.update(f"{detail}{percent}")
        elif detail and detail != self._said:
            note(detail)
        self._said = detail

    @classmethod
    @contextlib.contextmanager
    def shown(cls, what: str) -> Iterator[Loading]:
        """`what` stands there until the first `show`."""
        loading = cls()
        if not sys.stderr.isatty():
            yield loading
            return
        from rich.console import Console

        with Console(stderr=True).status(what) as spinner:
            loading._spinner = spinner
            yield loading
