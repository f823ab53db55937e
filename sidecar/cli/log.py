"""`pillion log`: what `edit` and `refactor` wrote in a project."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sidecar.cli.changes import entry_facts, folder_of, journal_of, state_of
from sidecar.cli.options import AsJson, ConfigFile
from sidecar.cli.terminal import BOLD, DIM, YELLOW, note, print_json, shown, styled
from sidecar.config import load_config
from sidecar.edits.writable_root import WritableRoot


def command(
    project: Annotated[
        Path | None, typer.Option(help="Default: the repository, or folder, you are in.")
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="Name the files, too.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List change sets, the newest first: what `pillion undo` takes back."""
    settings = load_config(path=config)
    with WritableRoot(folder_of(project)) as root:
        entries = journal_of(settings, root).entries()
        if as_json:
            print_json([entry_facts(entry) for entry in entries])
            return
        if not entries:
            note(f"nothing was written in {root.path}")
    for entry in entries:
        state = state_of(entry)
        style = YELLOW if state == "interrupted" else DIM
        count = len(entry.plan.files)
        sys.stdout.write(
            f"{styled(entry.plan.id, BOLD, sys.stdout)}  {styled(state, style, sys.stdout)}  "
            f"{count} file{'' if count == 1 else 's'}  {shown(entry.plan.what, sys.stdout)}\n"
        )
        reasons = {one.path: one.reason for one in entry.progress.outcomes}
        for file in entry.plan.files if files else ():
            reason = reasons.get(file.path)
            sys.stdout.write(f"  {shown(file.path, sys.stdout)} {reason or ''}".rstrip() + "\n")
