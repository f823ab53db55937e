"""`textDocument/codeAction` and `codeAction/resolve`: edits that an editor's menu offers.

Nothing is computed for the menu. The edit is made when the user picks an action.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterator
from typing import Any

import msgspec
from lsprotocol import types
from msgspec import field

from sidecar.edits.syntax import language_of
from sidecar.lsp.jsonrpc import RpcError
from sidecar.lsp.params import Params, TextDocumentIdentifier, invalid_params
from sidecar.lsp.pillion_edit import edited, lines_of, open_document, workspace_edit
from sidecar.lsp.session import OpenRequest, Session
from sidecar.workspace.documents import Document
from sidecar.workspace.positions import Range

CONTENT_MODIFIED = types.LSPErrorCodes.ContentModified.value
_KIND = types.CodeActionKind.RefactorRewrite
_ASKED = re.compile(r"(?:#|//|--|;|/\*|<!--)\s*pillion:\s*(.+?)\s*(?:\*/|-->)?\s*$")
_ALWAYS = (
    ("Write a docstring", "Add a docstring."),
    ("Remove the comments", "Remove the comments."),
)
_LONGEST_TITLE = 60


class Diagnostic(Params, frozen=True, kw_only=True):
    message: str
    range: Range


class CodeActionContext(Params, frozen=True, kw_only=True):
    diagnostics: list[Diagnostic] = field(default_factory=list)
    only: list[str] | None = None


class CodeActionParams(Params, frozen=True, kw_only=True):
    text_document: TextDocumentIdentifier
    range: Range
    context: CodeActionContext = field(default_factory=CodeActionContext)


class ActionData(Params, frozen=True, kw_only=True):
    """What an action needs to be made: it is for one version of one document."""

    uri: str
    version: int
    range: Range
    instruction: str


class ResolveParams(Params, frozen=True, kw_only=True):
    title: str = ""
    kind: str | None = None
    data: ActionData | None = None


def code_action(
    session: Session, params: CodeActionParams, request: OpenRequest
) -> list[types.CodeAction]:
    """Edits for the selected lines: what a ``pillion: ...`` comment in them asks for, what the
    editor reports about them, and a few that are always of use. None without a selection or a
    reason."""
    document = session.document(params.text_document.uri)
    only = params.context.only
    if only is not None and not any(_KIND.value.startswith(kind) for kind in only):
        return []
    return [
        types.CodeAction(
            title=f"Pillion: {title[:_LONGEST_TITLE]}",
            kind=_KIND,
            data={
                "uri": document.uri,
                "version": document.version,
                "range": msgspec.to_builtins(params.range),
                "instruction": instruction,
            },
        )
        for title, instruction in _offers(document, params)
    ]


def _offers(document: Document, params: CodeActionParams) -> Iterator[tuple[str, str]]:
    """Titles and instructions."""
    first, last = lines_of(document, params.range)
    for line in document.lines[first:last]:
        if asked := _ASKED.search(line.rstrip("\r\n")):
            yield asked[1], f"{asked[1]} Remove the comment that asks for this."
    for diagnostic in params.context.diagnostics:
        message = " ".join(diagnostic.message.split())
        yield f"Fix: {message}", f"Fix this problem: {message}"
    if params.range.start != params.range.end:
        yield from _ALWAYS


def resolve(
    session: Session, params: ResolveParams, request: OpenRequest
) -> Coroutine[None, None, types.CodeAction]:
    """The action with its edit. Fails as ContentModified where the document has moved on."""
    if params.data is None:
        raise invalid_params("data", "is missing; send the action as it was offered")
    document = open_document(session, params.data.uri)
    if document.version != params.data.version:
        raise RpcError(CONTENT_MODIFIED, f"{document.uri} was changed since; ask again")
    return _resolved(session, params, params.data, document)


async def _resolved(
    session: Session, params: ResolveParams, data: ActionData, document: Document
) -> types.CodeAction:
    language = language_of(session.path_of(data.uri) or "") or document.language
    made = await edited(session, document, data.range, data.instruction, language)
    facts: dict[str, Any] = msgspec.to_builtins(data)
    return types.CodeAction(
        title=params.title,
        kind=params.kind,
        data=facts,
        edit=workspace_edit(document, made.hunks, session.encoding),
    )
