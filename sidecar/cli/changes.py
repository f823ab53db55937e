"""What `edit`, `refactor`, `undo` and `log` have in common: diffs, the journal, the question."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from engine import RequestError
from sidecar.cli.terminal import BOLD, GREEN, RED, note, shown, styled
from sidecar.config import Config, state_dir
from sidecar.edits.hunks import unified_diff
from sidecar.edits.journal import Change, Entry, Journal, Outcome
from sidecar.edits.text_file import TextFile
from sidecar.edits.writable_root import WritableRoot

CYAN = "36"
EXIT_LEFT_OUT = 1
"""Something that was asked for was refused, or is not there any more."""


def project_of(path: Path) -> Path:
    """The folder of the repository that `path` is in; where there is none, `path`'s own."""
    folder = path.resolve()
    folder = folder if folder.is_dir() else folder.parent
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)


def show_diff(path: str, before: str, after: str) -> None:
    """On stdout, in colours on a terminal."""
    for line in unified_diff(path, before, after):
        style = {"+": GREEN, "-": RED, "@": CYAN}.get(line[:1])
        if line.startswith(("+++", "---")):
            style = BOLD
        text = shown(line, sys.stdout)
        sys.stdout.write((styled(text, style, sys.stdout) if style else text) + "\n")


def show_change(change: Change) -> None:
    """The diff of a change's two texts."""
    show_diff(change.path, TextFile.of(change.before).text, TextFile.of(change.after).text)


def confirmed(apply: bool, question: str) -> bool:
    """Whether to write: told so, or told so now. Nobody is asked where nobody can answer."""
    if apply:
        return True
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def write_changes(config: Config, root: Path, what: str, changes: Sequence[Change]) -> Entry:
    """Through the journal. Raises JournalError, Interrupted."""
    with WritableRoot(root) as workspace:
        return journal_of(config, workspace).apply(what, changes)


def journal_of(config: Config, root: WritableRoot) -> Journal:
    return Journal(state_dir(config), root, kept=config.edit.history)


def say_outcomes(outcomes: Iterable[Outcome], done: str) -> int:
    """Name what was left alone and count the rest; the exit code."""
    outcomes = list(outcomes)
    left = [one for one in outcomes if one.reason]
    for one in left:
        note(f"{one.path} {one.reason}")
    count = len(outcomes) - len(left)
    note(f"{count} file{'' if count == 1 else 's'} {done}")
    return EXIT_LEFT_OUT if left else 0


def entry_facts(entry: Entry) -> dict[str, Any]:
    """An entry as JSON has it."""
    return {
        "id": entry.plan.id,
        "created": entry.plan.created,
        "what": entry.plan.what,
        "root": entry.plan.root,
        "state": state_of(entry),
        "files": [file.path for file in entry.plan.files],
        "left_alone": [
            {"path": one.path, "reason": one.reason}
            for one in entry.progress.outcomes
            if one.reason
        ],
    }


def state_of(entry: Entry) -> str:
    """``applied``, ``undone``, ``interrupted``; or what another process is doing."""
    return "interrupted" if entry.interrupted else entry.progress.state


def folder_of(project: Path | None) -> Path:
    """The project that a verb is about. Raises RequestError where it is no folder."""
    if project is not None and not project.is_dir():
        raise RequestError(f"{project} is no folder", field="project")
    return project.resolve() if project is not None else project_of(Path.cwd())
