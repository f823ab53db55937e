"""`pillion/refactor`: change many files of a project as told, with progress."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
from lsprotocol import types
from msgspec import field

from sidecar.config import state_dir
from sidecar.edits.journal import Entry, Journal
from sidecar.edits.writable_root import WritableRoot
from sidecar.jobs.refactor import Plan, Refactor, RefactorRequest, changes_of, plan, planned
from sidecar.jobs.refactor_result import FileResult, wire
from sidecar.lsp.params import Params, invalid_params
from sidecar.lsp.session import OpenRequest, Session


class RefactorParams(Params, frozen=True, kw_only=True):
    """See `RefactorRequest`. root: the project's folder; the first workspace folder where left out.
    planOnly: say what would be done. apply: write the results, as one change set of the journal.
    workDoneToken: for ``$/progress``. partialResultToken: each file's result as it comes."""

    root: str | None = None
    instruction: str = ""
    globs: list[str] = field(default_factory=list)
    symbol: str | None = None
    rename: str | None = None
    diff: str | None = None
    most_changed: float | None = None
    plan_only: bool = False
    apply: bool = False
    draft: bool = True
    work_done_token: int | str | None = None
    partial_result_token: int | str | None = None


def pillion_refactor(
    session: Session, params: RefactorParams, request: OpenRequest
) -> Coroutine[None, None, dict[str, Any]]:
    """Result: ``plan``, ``files`` with their hunks (see `FileResult`), ``skipped``, and where
    something was applied ``id`` and ``outcomes`` of its change set."""
    return refactored(session, params, root_of(session, params.root))


def root_of(session: Session, root: str | None) -> Path:
    """Raises RpcError where it is no folder, or not one of those that the client opened."""
    if root is None:
        if not session.folders:
            raise invalid_params("root", "is missing, and no workspace folder is open")
        return Path(session.folders[0])
    path = Path(root)
    if not path.is_absolute() or ".." in path.parts or not path.is_dir():
        raise invalid_params("root", f"{root} is not the absolute path of a folder")
    if session.folders and not any(path.is_relative_to(one) for one in session.folders):
        raise invalid_params("root", f"{root} is in no workspace folder")
    return path


async def refactored(session: Session, params: RefactorParams, root: Path) -> dict[str, Any]:
    """Plan, ask, check and, where told to, write."""
    config = session.services.config.edit
    asked = RefactorRequest(
        instruction=params.instruction,
        globs=tuple(params.globs),
        symbol=params.symbol,
        rename=params.rename,
        diff=params.diff,
        most_changed=params.most_changed,
        draft=params.draft,
    )
    progress = Progress(session, params.work_done_token, params.partial_result_token)
    progress.begin(asked.what)
    try:
        made = await asyncio.to_thread(plan, root, asked, config)
        result: dict[str, Any] = {**planned(made), "files": []}
        if params.plan_only:
            return result
        progress.planned(made)
        engine = session.services.engine if made.regions else None
        files = await Refactor(made, engine, config, progress.started, progress.done).run()
        result["files"] = [wire(one) for one in files]
        if params.apply:
            entry = await asyncio.to_thread(write, session, root, asked.what, made, files)
            result |= {
                "id": entry.plan.id,
                "outcomes": msgspec.to_builtins(entry.progress.outcomes),
            }
        return result
    finally:
        progress.end()


def write(
    session: Session, root: Path, what: str, made: Plan, files: Sequence[FileResult]
) -> Entry:
    """Apply what changed. An editor's unsaved buffer of a file stays the editor's."""
    changes = changes_of(made, files)
    with WritableRoot(root) as workspace:
        config = session.services.config
        return Journal(state_dir(config), workspace, kept=config.edit.history).apply(what, changes)


class Progress:
    """``$/progress`` of one refactor; says nothing where the client gave no token."""

    def __init__(
        self, session: Session, token: int | str | None, partial: int | str | None = None
    ) -> None:
        self._session = session
        self._token = token
        self._partial = partial
        self._finished = 0
        self._total = 0

    def begin(self, what: str) -> None:
        """The request's plan is being made."""
        self._say(
            types.WorkDoneProgressBegin(title=f"Pillion: {what}", cancellable=True, percentage=0)
        )

    def planned(self, made: Plan) -> None:
        """What will be done."""
        self._total = len(made.tasks)
        if self._partial is not None:
            self._session.notify(types.PROGRESS, {"token": self._partial, "value": planned(made)})

    def started(self, path: str) -> None:
        """A file is being worked on."""
        self._say(types.WorkDoneProgressReport(message=path, percentage=self._percentage()))

    def done(self, result: FileResult) -> None:
        """A file's result is there."""
        self._finished += 1
        if self._partial is not None:
            value = {"file": wire(result), "done": self._finished, "total": self._total}
            self._session.notify(types.PROGRESS, {"token": self._partial, "value": value})
        self._say(types.WorkDoneProgressReport(message=result.path, percentage=self._percentage()))

    def end(self) -> None:
        self._say(types.WorkDoneProgressEnd())

    def _percentage(self) -> int:
        return 100 * self._finished // max(self._total, 1)

    def _say(self, value: object) -> None:
        if self._token is not None:
            self._session.notify(
                types.PROGRESS, types.ProgressParams(token=self._token, value=value)
            )
