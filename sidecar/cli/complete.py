"""`pillion complete`: fill in code at one place."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from engine import RequestError
from sidecar.cli.connection import Rpc, wait_until_ready
from sidecar.cli.options import AsJson, ConfigFile, Local
from sidecar.cli.replies import as_text, daemon_for
from sidecar.cli.terminal import print_json, shown
from sidecar.config import load_config

_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d{1,9})(?::(?P<column>\d{1,9}))?", re.DOTALL)


def command(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE:LINE[:COLUMN]]",
            help="Both from 1; COLUMN counts characters and is the line's end where left out. "
            "- takes stdin as the text before the gap.",
        ),
    ] = None,
    buffer: Annotated[
        bool, typer.Option("--stdin", help="FILE's text is on stdin: an unsaved buffer.")
    ] = False,
    prefix: Annotated[str | None, typer.Option(help="The text before the gap.")] = None,
    suffix: Annotated[str | None, typer.Option(help="The text after the gap.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="At most this many tokens.")] = None,
    multiline: Annotated[str | None, typer.Option(help="auto, never or always.")] = None,
    no_draft: Annotated[
        bool, typer.Option("--no-draft", help="Do not speculate; the text is the same.")
    ] = False,
    local: Local = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Complete code at a place in a file, or between --prefix and --suffix."""
    settings = load_config(path=config)
    before, after, path = _gap(place, prefix, suffix, buffer=buffer)
    asked: dict[str, Any] = {"prefix": before, "suffix": after, "draft": not no_draft}
    optional = {"path": path, "maxTokens": max_tokens, "multiline": multiline}
    asked |= {name: value for name, value in optional.items() if value is not None}
    with daemon_for(settings, local=local) as address:
        wait_until_ready(address)
        with Rpc(address, timeout=600) as rpc:
            result = rpc.call("pillion/complete", asked)
    if as_json:
        print_json(result)
        return
    sys.stdout.write(shown(result["text"], sys.stdout))
    if sys.stdout.isatty():
        sys.stdout.write("\n")


def _gap(
    place: str | None, prefix: str | None, suffix: str | None, *, buffer: bool
) -> tuple[str, str, str | None]:
    """The text before and after the gap, and the file's path."""
    if buffer and (place is None or place == "-"):
        raise RequestError("--stdin goes with FILE:LINE:COLUMN", field="stdin")
    if place is None:
        if prefix is None:
            raise RequestError("say where: FILE:LINE:COLUMN, --prefix TEXT, or - for stdin")
        return as_text(prefix), as_text(suffix or ""), None
    if prefix is not None:
        raise RequestError("give a place or --prefix, not both", field="prefix")
    if place == "-":
        return read_stdin(), as_text(suffix or ""), None
    if suffix is not None:
        raise RequestError("--suffix goes with --prefix or -, not with a place", field="suffix")
    match = _PLACE.fullmatch(place)
    if match is None:
        raise RequestError(f"{place} is not FILE:LINE or FILE:LINE:COLUMN", field="place")
    name = match["file"]
    text = read_stdin() if buffer else _read(Path(name))
    at = offset(text, int(match["line"]), int(match["column"]) if match["column"] else None, name)
    return text[:at], text[at:], _as_the_model_sees_it(Path(name))


def _as_the_model_sees_it(path: Path) -> str:
    """Relative as it was given, or else its bare name: where a home is belongs in no prompt."""
    name = path.name if path.is_absolute() or ".." in path.parts else path.as_posix()
    return name.encode(errors="replace").decode()


def offset(text: str, line: int, column: int | None, name: str) -> int:
    """The index in `text` of a place counted from 1; `column` None is the end of the line.
    Raises RequestError where the text has no such place."""
    starts = [0, *(found.end() for found in re.finditer(r"\r\n|\n|\r", text))]
    if not 1 <= line <= len(starts):
        raise RequestError(f"{name} has no line {line}; it has {len(starts)}", field="place")
    start = starts[line - 1]
    length = len(re.split(r"[\r\n]", text[start:], maxsplit=1)[0])
    if column is None:
        return start + length
    if not 1 <= column <= length + 1:
        raise RequestError(
            f"{name}:{line} has no column {column}; its last is {length + 1}", field="place"
        )
    return start + column - 1


def read_stdin() -> str:
    return _decoded(sys.stdin.buffer.read(), "stdin")


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}", field="place") from None
    return _decoded(data, str(path))


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8 text (byte {error.start})") from None
