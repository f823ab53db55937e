"""`workspace/executeCommand`: edits and refactors that an editor's own commands ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from lsprotocol import types
from msgspec import field
from pygls.uris import from_fs_path

from sidecar.edits.hunks import Hunk
from sidecar.edits.syntax import language_of
from sidecar.edits.text_file import TextFile
from sidecar.edits.writable_root import Refused, WritableRoot
from sidecar.jobs.refactor_result import changed_file
from sidecar.lsp.jsonrpc import REQUEST_FAILED, RpcError
from sidecar.lsp.lifecycle import COMMANDS
from sidecar.lsp.params import Params, invalid_params, read_params
from sidecar.lsp.pillion_edit import EditParams, edited, open_document, text_edits, workspace_edit
from sidecar.lsp.pillion_refactor import RefactorParams, refactored, root_of
from sidecar.lsp.session import OpenRequest, Session
from sidecar.workspace.documents import Document


class ExecuteCommandParams(Params, frozen=True, kw_only=True):
    """arguments: one object, as `pillion/edit` or `pillion/refactor` take it."""

    command: str
    arguments: list[Any] = field(default_factory=list)
    work_done_token: int | str | None = None


def execute_command(
    session: Session, params: ExecuteCommandParams, request: OpenRequest
) -> Coroutine[None, None, Any]:
    """``pillion.edit`` and ``pillion.refactor``: like the methods of these names, but the editor is
    asked to apply the result (``workspace/applyEdit``), so that its own undo takes it back."""
    if len(params.arguments) != 1 or params.command not in COMMANDS:
        field = "arguments" if params.command in COMMANDS else "command"
        raise invalid_params(field, f"give one object to {' or '.join(COMMANDS)}")
    arguments = params.arguments[0]
    if params.command == "pillion.edit":
        return _edit(session, read_params(arguments, EditParams))
    asked = read_params(arguments, RefactorParams)
    if asked.work_done_token is None:
        asked = msgspec.structs.replace(asked, work_done_token=params.work_done_token)
    return _refactor(session, asked, root_of(session, asked.root))


async def _edit(session: Session, params: EditParams) -> None:
    document = open_document(session, params.uri or "")
    language = params.language or language_of(session.path_of(document.uri) or "")
    language = language or document.language
    made = await edited(session, document, params.range, params.instruction, language, params.draft)
    await _apply(session, workspace_edit(document, made.hunks, session.encoding))


async def _refactor(session: Session, params: RefactorParams, root: Path) -> dict[str, Any]:
    result = await refactored(session, params, root)
    if params.plan_only or params.apply:
        return result
    changed = [file for file in result["files"] if file["state"] == "changed"]
    texts = await asyncio.to_thread(_texts, root, changed)
    if changed:
        edits = [_document_edit(session, root, file, texts[file["path"]]) for file in changed]
        await _apply(session, types.WorkspaceEdit(document_changes=list(edits)))
    return result


def _texts(root: Path, changed: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The texts that the results were made from, by path; raises RpcError where one is not on the
    disk any more: its hunks would be put somewhere else."""
    texts: dict[str, str] = {}
    with WritableRoot(root) as workspace:
        for file in changed:
            try:
                data = workspace.read(file["path"]).data
                changed_file(data, file)
            except Refused as reason:
                raise RpcError(REQUEST_FAILED, f"{file['path']} {reason.message}") from None
            texts[file["path"]] = TextFile.of(data).text
    return texts


def _document_edit(
    session: Session, root: Path, file: Mapping[str, Any], text: str
) -> types.TextDocumentEdit:
    """For the version that is open, where one is; else for the file on the disk."""
    uri = from_fs_path(str(root / file["path"])) or ""
    opened = session.documents.get(uri)
    if opened is not None and opened.text != text:
        raise RpcError(REQUEST_FAILED, f"{file['path']} has unsaved changes; save it first")
    document = Document.of(text, uri=uri)
    version = opened.version if opened is not None else None
    identifier = types.OptionalVersionedTextDocumentIdentifier(uri, version)
    hunks = msgspec.convert(file["hunks"], list[Hunk])
    return types.TextDocumentEdit(identifier, text_edits(document, hunks, session.encoding))


async def _apply(session: Session, change: types.WorkspaceEdit) -> None:
    """Raises RpcError where the editor does not apply it: it no longer fits, say."""
    params = types.ApplyWorkspaceEditParams(edit=change, label="Pillion")
    answer = await session.ask(types.WORKSPACE_APPLY_EDIT, params)
    if not isinstance(answer, dict) or not answer.get("applied"):
        reason = answer.get("failureReason") if isinstance(answer, dict) else None
        raise RpcError(
            REQUEST_FAILED, f"the editor did not apply the edit: {reason or 'no reason'}"
        )
