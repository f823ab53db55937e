"""`pillion edit`: change code in a file as told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from engine import RequestError
from sidecar.cli.changes import (
    confirmed,
    project_of,
    say_outcomes,
    show_change,
    write_changes,
)
from sidecar.cli.complete import read_stdin
from sidecar.cli.connection import Rpc, wait_until_ready
from sidecar.cli.options import AsJson, ConfigFile, Local
from sidecar.cli.replies import as_text, daemon_for
from sidecar.cli.terminal import note, print_json
from sidecar.config import load_config
from sidecar.edits.hunks import apply_line_hunks
from sidecar.edits.journal import Change
from sidecar.edits.text_file import TextFile
from sidecar.edits.writable_root import Refused, WritableRoot
from sidecar.workspace.ignore import is_secret

_PLACE = re.compile(r"(?P<file>.+?):(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?", re.DOTALL)


def command(
    place: Annotated[
        str,
        typer.Argument(metavar="FILE[:A-B]", help="Lines from 1, both included; none: all of it."),
    ],
    instruction: Annotated[str, typer.Argument(help="What to do; - reads it from stdin.")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the result; without, only show it.")
    ] = False,
    no_draft: Annotated[
        bool, typer.Option("--no-draft", help="Do not speculate; the edit is the same.")
    ] = False,
    local: Local = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Change a file, or lines of it, and show the difference. --apply writes it; `pillion undo`
    takes it back."""
    settings = load_config(path=config)
    path, first, last = _place(place)
    # Of the folder that it is in: a link of that name may lead to another project.
    root = project_of(path.parent)
    name = (path.parent.resolve() / path.name).relative_to(root).as_posix()
    if is_secret(name):
        raise RequestError(f"{name} looks like it holds secrets, which go into no prompt")
    said = as_text(read_stdin() if instruction == "-" else instruction)
    with WritableRoot(root) as workspace:
        file = _read(workspace, name, settings.edit.max_file_bytes)
    asked: dict[str, Any] = {
        "text": file.text,
        "instruction": said,
        "path": name,
        "draft": not no_draft,
    }
    if first is not None and last is not None:
        asked["range"] = {
            "start": {"line": first - 1, "character": 0},
            "end": {"line": last, "character": 0},
        }
    with daemon_for(settings, local=local) as address:
        wait_until_ready(address)
        with Rpc(address, timeout=600) as rpc:
            result = rpc.call("pillion/edit", asked)
    hunks = [
        (hunk["range"]["start"]["line"], hunk["oldText"], hunk["newText"])
        for hunk in result["hunks"]
    ]
    after = file.with_text(apply_line_hunks(file.text, hunks))
    change = Change(name, file.data, after.data)
    applied = None
    if not as_json and change.after != change.before:
        show_change(change)
    if change.after == change.before:
        note(f"nothing changes: {result['message']}")
    elif confirmed(apply, "Write this?") if not as_json else apply:
        applied = write_changes(settings, root, f"{name}: {said}"[:200], [change])
    if as_json:
        facts = {"path": name, "changed": change.after != change.before, "result": result}
        if applied is not None:
            facts |= {"id": applied.plan.id, "written": list(applied.written)}
        print_json(facts)
    elif applied is None:
        _note_cost(result)
    if applied is not None and (code := say_outcomes(applied.progress.outcomes, "written")):
        raise typer.Exit(code)


def _place(place: str) -> tuple[Path, int | None, int | None]:
    """A file that is there may have a colon in its name."""
    match = None if Path(place).exists() else _PLACE.fullmatch(place)
    if match is None:
        return Path(place), None, None
    first = int(match["first"])
    last = int(match["last"] or first)
    if not 1 <= first <= last:
        raise RequestError(f"{place}: lines count from 1, the first one first", field="place")
    return Path(match["file"]), first, last


def _read(root: WritableRoot, name: str, most: int) -> TextFile:
    try:
        root.check_writable(name)
        return TextFile.of(root.read(name, most=most).data)
    except Refused as refused:
        raise RequestError(f"{name} {refused.message}", field="place") from None


def _note_cost(result: dict[str, Any]) -> None:
    seconds = result["decode_ms"] / 1000
    speed = f", {result['completion_tokens'] / seconds:.0f} tok/s" if seconds else ""
    note(
        f"{result['completion_tokens']} tokens{speed}, {result['tokens_per_round']:.2f} a round; "
        "--apply writes it"
    )
