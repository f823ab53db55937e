"""`pillion undo`: take back what `edit` or `refactor` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sidecar.cli.changes import entry_facts, folder_of, journal_of, say_outcomes
from sidecar.cli.options import AsJson, ConfigFile
from sidecar.cli.terminal import print_json
from sidecar.config import load_config
from sidecar.edits.writable_root import WritableRoot


def command(
    entry: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="As `pillion log` has it; the last one.")
    ] = None,
    redo: Annotated[
        bool,
        typer.Option(
            "--redo", help="The other way: write it again, or the rest of it after a crash."
        ),
    ] = False,
    project: Annotated[
        Path | None, typer.Option(help="Default: the repository, or folder, you are in.")
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Give files the content back that they had before. A file that was changed since is left
    alone and named; then the exit code is 1."""
    settings = load_config(path=config)
    with WritableRoot(folder_of(project)) as root:
        journal = journal_of(settings, root)
        done = journal.redo(entry) if redo else journal.undo(entry)
    if as_json:
        print_json(entry_facts(done))
    code = say_outcomes(done.progress.outcomes, "written" if redo else "restored")
    if code:
        raise typer.Exit(code)
