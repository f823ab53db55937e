"""`workspace/executeCommand`: edits and refactors that an editor's own commands ask for."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from lsprotocol import types
from msgspec import field

from sidecar.lsp.jsonrpc import REQUEST_FAILED, RpcError
from sidecar.lsp.lifecycle import COMMANDS
from sidecar.lsp.params import Params, invalid_params, read_params
from sidecar.lsp.pillion_edit import UNCHANGED, Code, EditParams, code_of, edited, workspace_edit
from sidecar.lsp.pillion_explain import ExplainParams, pillion_explain
from sidecar.lsp.pillion_refactor import RefactorParams, pillion_refactor
from sidecar.lsp.progress import Progress
from sidecar.lsp.session import OpenRequest, Session


class ExecuteCommandParams(Params, frozen=True, kw_only=True):
    """arguments: one object, as the method takes it that the command is named after."""

    command: str
    arguments: list[Any] = field(default_factory=list)
    work_done_token: int | str | None = None


def execute_command(
    session: Session, params: ExecuteCommandParams, request: OpenRequest
) -> Coroutine[None, None, Any]:
    """``pillion.edit`` and ``pillion.refactor``: like the methods of these names, but the editor is
    asked to apply the result (``workspace/applyEdit``), so that its own undo takes it back.
    ``pillion.explain``: as the method."""
    if len(params.arguments) != 1 or params.command not in COMMANDS:
        field = "arguments" if params.command in COMMANDS else "command"
        raise invalid_params(field, f"give one object to {' or '.join(COMMANDS)}")
    arguments = params.arguments[0]
    if isinstance(arguments, dict):
        arguments = {"workDoneToken": params.work_done_token, **arguments}
    if params.command == "pillion.explain":
        return pillion_explain(session, read_params(arguments, ExplainParams), request)
    if params.command == "pillion.refactor":
        return _refactor(session, read_params(arguments, RefactorParams), request)
    asked = read_params(arguments, EditParams)
    if asked.uri is None:
        raise invalid_params("uri", "is missing: an editor edits an open document")
    return _edit(session, asked, code_of(session, asked), request)


async def _edit(
    session: Session, params: EditParams, code: Code, request: OpenRequest
) -> dict[str, str]:
    with Progress(session, request, params.work_done_token) as progress:
        progress.begin(params.instruction)
        made = await edited(session, code, params.instruction, params.draft, progress.report)
    if not made.hunks:
        return {"message": UNCHANGED}
    await _apply(session, request, workspace_edit(code.document, made, session.encoding))
    return {"message": ""}


async def _refactor(
    session: Session, params: RefactorParams, request: OpenRequest
) -> dict[str, Any]:
    result = await pillion_refactor(session, params, request)
    edit: types.WorkspaceEdit | None = result.pop("edit", None)
    if edit is not None and edit.document_changes:
        await _apply(session, request, edit)
    return result


async def _apply(session: Session, request: OpenRequest, change: types.WorkspaceEdit) -> None:
    """Raises RpcError where the editor does not apply it: it no longer fits, say."""
    request.beyond_recall()
    params = types.ApplyWorkspaceEditParams(edit=change, label="Pillion")
    answer = await session.ask(types.WORKSPACE_APPLY_EDIT, params)
    if not isinstance(answer, dict) or not answer.get("applied"):
        reason = answer.get("failureReason") if isinstance(answer, dict) else None
        raise RpcError(
            REQUEST_FAILED, f"the editor did not apply the edit: {reason or 'no reason'}"
        )
