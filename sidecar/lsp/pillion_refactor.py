"""`pillion/refactor`: change many files of a project as told, with progress."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from lsprotocol import types
from msgspec import field
from pygls.uris import from_fs_path

from sidecar.config import state_dir
from sidecar.edits.journal import Entry, Journal
from sidecar.edits.text_file import TextFile
from sidecar.edits.writable_root import Refused, WritableRoot
from sidecar.jobs.refactor import Plan, Refactor, RefactorRequest, changes_of, plan, planned
from sidecar.jobs.refactor_result import FileResult, wire
from sidecar.lsp.params import Params, invalid_params
from sidecar.lsp.pillion_edit import text_edits
from sidecar.lsp.progress import Progress
from sidecar.lsp.session import OpenRequest, Phase, Session
from sidecar.workspace.documents import Document


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
    """Result: ``plan``, ``files`` with their hunks (see `FileResult`), ``skipped``; for an editor
    ``edit``, or where it was applied here ``id`` and ``outcomes`` of its change set."""
    return refactored(session, params, root_of(session, params.root), request)


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


async def refactored(
    session: Session, params: RefactorParams, root: Path, request: OpenRequest
) -> dict[str, Any]:
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
    partial, token = params.partial_result_token, params.work_done_token
    with Progress(session, request, token, partial=partial) as progress:
        progress.begin(asked.what)
        made = await asyncio.to_thread(plan, root, asked, config)
        result: dict[str, Any] = {**planned(made), "files": []}
        if params.plan_only:
            return result
        progress.part(planned(made))
        engine = session.services.engine if made.regions else None
        steps = _Steps(progress, len(made.tasks))
        files = await Refactor(made, engine, config, steps.started, steps.done).run()
        texts = await asyncio.to_thread(current_texts, root, files)
        files = [_still_fitting(session, root, one, texts) for one in files]
        result["files"] = [wire(one) for one in files]
        if params.apply:
            request.beyond_recall()
            entry = await asyncio.to_thread(write, session, root, asked.what, made, files)
            result |= {
                "id": entry.plan.id,
                "outcomes": msgspec.to_builtins(entry.progress.outcomes),
            }
        elif session.phase is Phase.RUNNING:
            result["edit"] = _workspace_edit(session, root, files, texts)
        return result


def write(
    session: Session, root: Path, what: str, made: Plan, files: Sequence[FileResult]
) -> Entry:
    """Apply what changed."""
    changes = changes_of(made, files)
    with WritableRoot(root) as workspace:
        config = session.services.config
        return Journal(state_dir(config), workspace, kept=config.edit.history).apply(what, changes)


def current_texts(root: Path, files: Sequence[FileResult]) -> dict[str, str | Refused]:
    """What is on the disk of the files that a result changes, by path: the text that the result was
    made from, or why it does not fit any more. Blocking."""
    found: dict[str, str | Refused] = {}
    with WritableRoot(root) as workspace:
        for one in files:
            if one.state != "changed":
                continue
            try:
                content = workspace.read(one.path)
                if content.sha256 != one.before:
                    raise Refused("was changed meanwhile")
                found[one.path] = TextFile.of(content.data).text
            except Refused as reason:
                found[one.path] = reason
            except OSError as error:
                found[one.path] = Refused(f"cannot be read: {error.strerror}")
    return found


def _still_fitting(
    session: Session, root: Path, one: FileResult, texts: Mapping[str, str | Refused]
) -> FileResult:
    """The result, or why there is none any more. What an editor has not saved is the user's."""
    text = texts.get(one.path)
    opened = _opened(session, root, one.path)
    if isinstance(text, str) and opened is not None and opened.text != text:
        text = Refused("has unsaved changes in the editor; save it first")
    if isinstance(text, Refused):
        return msgspec.structs.replace(
            one, state="refused", reason=text.message, text="", hunks=(), notes=()
        )
    return one


def _workspace_edit(
    session: Session, root: Path, files: Sequence[FileResult], texts: Mapping[str, str | Refused]
) -> types.WorkspaceEdit:
    """For the version that is open, where one is; else for the file on the disk."""
    changes: list[
        types.TextDocumentEdit | types.CreateFile | types.RenameFile | types.DeleteFile
    ] = []
    for one in files:
        text = texts.get(one.path)
        if one.state != "changed" or not isinstance(text, str):
            continue
        opened = _opened(session, root, one.path)
        identifier = types.OptionalVersionedTextDocumentIdentifier(
            opened.uri if opened is not None else from_fs_path(str(root / one.path)) or "",
            opened.version if opened is not None else None,
        )
        edits = text_edits(Document.of(text), one.hunks, session.encoding)
        changes.append(types.TextDocumentEdit(identifier, edits))
    return types.WorkspaceEdit(document_changes=changes)


def _opened(session: Session, root: Path, path: str) -> Document | None:
    """The open document of a file. Editors write the same file's URI in several ways."""
    file = str(root / path)
    return next((one for one in session.documents if session.file_of(one.uri) == file), None)


class _Steps:
    """Counts the files that are done, for the progress."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def started(self, path: str) -> None:
        self._progress.report(self._done / max(self._total, 1), path)

    def done(self, result: FileResult) -> None:
        self._done += 1
        self._progress.part({"file": wire(result), "done": self._done, "total": self._total})
        self._progress.report(self._done / self._total, result.path)
