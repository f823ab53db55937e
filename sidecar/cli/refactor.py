"""`pillion refactor`: change many files as told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from engine import RequestError
from sidecar.cli.changes import (
    EXIT_LEFT_OUT,
    confirmed,
    folder_of,
    say_outcomes,
    show_change,
    write_changes,
)
from sidecar.cli.complete import read_stdin
from sidecar.cli.connection import Rpc, find_daemon, wait_until_ready
from sidecar.cli.options import ConfigFile, Local
from sidecar.cli.refactor_progress import Events, Table
from sidecar.cli.replies import as_text, daemon_for
from sidecar.cli.terminal import note
from sidecar.config import Config, load_config
from sidecar.edits.journal import Change
from sidecar.edits.scratch import Scratch
from sidecar.edits.writable_root import Refused, WritableRoot
from sidecar.jobs.refactor import Refactor, RefactorRequest, plan, planned
from sidecar.jobs.refactor_result import changed_file, wire

_TOKEN = "refactor"
Report = Events | Table


def command(
    instruction: Annotated[
        str | None,
        typer.Argument(help="What to do; - reads it from stdin. Not needed with --rename."),
    ] = None,
    globs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GLOB]...",
            help="Which files, as in .gitignore. Without, those with what the instruction has in "
            "`backticks`, or --symbol, or the names that --from-diff takes away.",
        ),
    ] = None,
    symbol: Annotated[str | None, typer.Option(help="Only where this name is used.")] = None,
    rename: Annotated[
        str | None, typer.Option(help="The symbol's new name; syntax decides where it can.")
    ] = None,
    from_diff: Annotated[
        Path | None, typer.Option(help="Change the rest as this diff changes its files.")
    ] = None,
    check: Annotated[
        str | None, typer.Option(help="Take only what passes this command, in a scratch copy.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write the results.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show them, and do not ask (the default).")
    ] = False,
    plan_only: Annotated[bool, typer.Option("--plan", help="Only say which files.")] = False,
    most_changed: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Refuse an answer that changes more of its code. [0.5]"),
    ] = None,
    project: Annotated[
        Path | None, typer.Option(help="Default: the repository, or folder, you are in.")
    ] = None,
    no_draft: Annotated[
        bool, typer.Option("--no-draft", help="Do not speculate; the edits are the same.")
    ] = False,
    local: Local = False,
    config: ConfigFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events, a JSON object a line.")
    ] = False,
) -> None:
    """Change every file that is meant, check each result and show the differences. --apply writes
    them as one change set, which `pillion undo` takes back. Exit code 1: something was left out."""
    settings = load_config(path=config)
    if apply and dry_run:
        raise RequestError("give --apply or --dry-run, not both", field="apply")
    root = folder_of(project)
    said = as_text(read_stdin() if instruction == "-" else instruction or "")
    if rename is not None and said:
        globs, said = [said, *(globs or ())], ""
    request = RefactorRequest(
        instruction=said,
        globs=tuple(globs or ()),
        symbol=symbol,
        rename=rename,
        diff=_read_diff(from_diff) if from_diff is not None else None,
        most_changed=most_changed,
        draft=not no_draft,
    )
    report: Report = Events() if as_json else Table()
    with report:
        result = _results(settings, root, request, report, local=local, plan_only=plan_only)
    if plan_only:
        report.plan(result)
        return
    changes = _changes(root, result)
    if check is not None:
        _apply_check(root, check, changes, result)
    report.end(result)
    if not as_json:
        for change in changes:
            show_change(change)
    code = EXIT_LEFT_OUT if _left_out(result) else 0
    ask = not (dry_run or as_json)
    if changes and (apply or (ask and confirmed(False, f"Write {len(changes)} files?"))):
        entry = write_changes(settings, root, request.what, changes)
        report.applied(entry)
        if not as_json:
            code = say_outcomes(entry.progress.outcomes, f"written as {entry.plan.id}") or code
        elif any(outcome.reason for outcome in entry.progress.outcomes):
            code = EXIT_LEFT_OUT
    elif changes and not as_json:
        note("nothing was written; --apply does")
    if code:
        raise typer.Exit(code)


def _results(
    settings: Config,
    root: Path,
    request: RefactorRequest,
    report: Report,
    *,
    local: bool,
    plan_only: bool,
) -> dict[str, Any]:
    """From the daemon; a rename, and a plan, need none."""
    if plan_only or (request.rename is not None and not local and find_daemon(settings) is None):
        return _without_model(settings, root, request, report, plan_only=plan_only)
    asked = {
        "root": str(root),
        "instruction": request.instruction,
        "globs": list(request.globs),
        "symbol": request.symbol,
        "rename": request.rename,
        "diff": request.diff,
        "mostChanged": request.most_changed,
        "draft": request.draft,
        "partialResultToken": _TOKEN,
    }

    def notified(_method: str, params: Any) -> None:
        if params["token"] == _TOKEN:
            _tell(report, params["value"])

    with daemon_for(settings, local=local) as address:
        wait_until_ready(address)
        with Rpc(address, timeout=3600) as rpc:
            result: dict[str, Any] = rpc.call("pillion/refactor", asked, notified=notified)
    return result


def _without_model(
    settings: Config, root: Path, request: RefactorRequest, report: Report, *, plan_only: bool
) -> dict[str, Any]:
    made = plan(root, request, settings.edit)
    if plan_only:
        return planned(made)
    if made.regions:
        note("no daemon is running: what syntax does not decide is left as it is")
    report.plan(planned(made))
    done = Refactor(made, None, settings.edit, done=lambda one: report.file(wire(one)))
    files = asyncio.run(done.run())
    return {**planned(made), "files": [wire(one) for one in files]}


def _tell(report: Report, value: dict[str, Any]) -> None:
    if "file" in value:
        report.file(value["file"])
    else:
        report.plan(value)


def _changes(root: Path, result: dict[str, Any]) -> list[Change]:
    """The bytes of what changed. A file that is not what the daemon has read becomes a refusal."""
    changes = []
    with WritableRoot(root) as workspace:
        for one in result["files"]:
            if one["state"] != "changed":
                continue
            try:
                data = workspace.read(one["path"]).data
                changes.append(Change(one["path"], data, changed_file(data, one).data))
            except Refused as refused:
                one |= {"state": "refused", "reason": refused.message}
    return changes


def _apply_check(root: Path, command: str, changes: list[Change], result: dict[str, Any]) -> None:
    note(f"checking with {command}")
    with Scratch(root, command) as scratch:
        wrong = scratch.refused(changes)
    for one in result["files"]:
        if one["path"] in wrong:
            one |= {"state": "refused", "reason": wrong[one["path"]]}
    changes[:] = [change for change in changes if change.path not in wrong]


def _left_out(result: dict[str, Any]) -> bool:
    return bool(result["skipped"]) or any(one["state"] == "refused" for one in result["files"])


def _read_diff(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise RequestError(f"--from-diff {path}: {reason}", field="from_diff") from None
