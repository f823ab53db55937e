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

from sidecar.edits.syntax import Syntax, language_of
from sidecar.edits.text_file import with_newlines
from sidecar.edits.writable_root import Refused
from sidecar.lsp.params import Params, TextDocumentIdentifier, invalid_params
from sidecar.lsp.pillion_edit import (
    UNCHANGED,
    Code,
    CodeParams,
    code_of,
    edited,
    lines_of,
    workspace_edit,
)
from sidecar.lsp.progress import Progress
from sidecar.lsp.session import OpenRequest, Session
from sidecar.workspace.documents import Document
from sidecar.workspace.positions import Position, Range, without_end

EDIT_SELECTION, EXPLAIN = "pillion.editSelection", "pillion.explain"
"""Commands that end in something only the client can do: ask for words, show a text."""
_EDIT, _FIX = types.CodeActionKind.RefactorRewrite, types.CodeActionKind.QuickFix
_ASKED = re.compile(r"(?:#|//|--|;|/\*|<!--)\s*pillion:\s*(.+?)\s*(?:\*/|-->)?\s*$")
_ALWAYS = (
    ("Write a docstring", "Add a docstring."),
    ("Remove the comments", "Remove the comments."),
)
_LONGEST_TITLE = 60


class Diagnostic(Params, frozen=True, kw_only=True, omit_defaults=True):
    """As the client has it; it gets it back with the action that fixes it."""

    range: Range
    message: str
    severity: int | None = None
    code: Any = None
    code_description: Any = None
    source: str | None = None
    tags: Any = None
    related_information: Any = None
    data: Any = None

    @property
    def said(self) -> str:
        """In one line."""
        return " ".join(self.message.split())


class CodeActionContext(Params, frozen=True, kw_only=True):
    diagnostics: list[Diagnostic] = field(default_factory=list)
    only: list[str] | None = None


class CodeActionParams(Params, frozen=True, kw_only=True):
    text_document: TextDocumentIdentifier
    range: Range
    context: CodeActionContext = field(default_factory=CodeActionContext)


class ActionData(CodeParams, frozen=True, kw_only=True, omit_defaults=True):
    """What an action needs to be made: it is for one version of one document."""

    instruction: str


class ResolveParams(Params, frozen=True, kw_only=True):
    title: str = ""
    kind: str | None = None
    diagnostics: list[Any] | None = None
    data: ActionData | None = None


def code_action(
    session: Session, params: CodeActionParams, request: OpenRequest
) -> list[dict[str, Any]]:
    """For the lines of the range: a fix of what the editor reports about them, what a
    ``pillion: ...`` comment in them asks for, and for a selection a few edits that are always of
    use. `EDIT_SELECTION` and `EXPLAIN` only for a client that says it knows them."""
    document = session.document(params.text_document.uri)
    others = (*_edits(document, params), *_commands(session, document, params))
    actions = [*_fixes(session, document, params), *map(session.plain, others)]
    only = params.context.only
    return [one for one in actions if only is None or _is_of(one.get("kind"), only)]


def _is_of(kind: str | None, only: list[str]) -> bool:
    """A kind is also every kind that it is below of: ``refactor.rewrite`` is a ``refactor``."""
    return kind is not None and any(
        not one or kind == one or kind.startswith(f"{one}.") for one in only
    )


def _fixes(
    session: Session, document: Document, params: CodeActionParams
) -> Iterator[dict[str, Any]]:
    if not params.context.diagnostics:
        return
    language = language_of(session.path_of(document.uri) or "") or document.language
    syntax = Syntax(with_newlines(document.text), language)
    most = session.services.config.edit.region_lines
    for one in params.context.diagnostics:
        line = min(one.range.start.line, len(document.lines) - 1)
        first, last = syntax.definition(line, most)
        instruction = f"Fix this problem: {one.said}"
        if code := without_end(document.lines[line]).strip():
            instruction = f"Fix the problem in the line `{code}`: {one.said}"
        place = Range(Position(first, 0), Position(last, 0))
        action = _action(document, f"Fix: {one.said}", _FIX, place, instruction)
        yield session.plain(action) | {"diagnostics": [msgspec.to_builtins(one)]}


def _edits(document: Document, params: CodeActionParams) -> Iterator[types.CodeAction]:
    first, last = lines_of(document, params.range)
    for line in document.lines[first:last]:
        if asked := _ASKED.search(line.rstrip("\r\n")):
            instruction = f"{asked[1]} Remove the comment that asks for this."
            yield _action(document, asked[1], _EDIT, params.range, instruction)
    if params.range.start != params.range.end:
        for title, instruction in _ALWAYS:
            yield _action(document, title, _EDIT, params.range, instruction)


def _action(
    document: Document, title: str, kind: types.CodeActionKind, place: Range, instruction: str
) -> types.CodeAction:
    data = ActionData(
        uri=document.uri, version=document.version, range=place, instruction=instruction
    )
    return types.CodeAction(
        title=f"Pillion: {title[:_LONGEST_TITLE]}", kind=kind, data=msgspec.to_builtins(data)
    )


def _commands(
    session: Session, document: Document, params: CodeActionParams
) -> Iterator[types.CodeAction]:
    """Actions that the client itself goes on with."""
    selected = params.range.start != params.range.end
    diagnostic = next(iter(params.context.diagnostics), None)
    facts: dict[str, Any] = {"uri": document.uri, "version": document.version}
    facts["range"] = msgspec.to_builtins(params.range)
    if EDIT_SELECTION in session.commands and (selected or params.context.only):
        title = "Pillion: Edit selection..."
        command = types.Command(title=title, command=EDIT_SELECTION, arguments=[facts])
        yield types.CodeAction(title=title, kind=_EDIT, command=command)
    if EXPLAIN in session.commands and (selected or diagnostic is not None):
        if diagnostic is not None:
            question = f"Explain why this code has the problem: {diagnostic.said}"
            facts = {**facts, "question": question}
        title = "Pillion: Explain"
        command = types.Command(title=title, command=EXPLAIN, arguments=[facts])
        yield types.CodeAction(title=title, command=command)


def resolve(
    session: Session, params: ResolveParams, request: OpenRequest
) -> Coroutine[None, None, dict[str, Any]]:
    """The action with its edit. Fails as ContentModified where the document has moved on."""
    if params.data is None:
        raise invalid_params("data", "is missing; send the action as it was offered")
    return _resolved(session, params, params.data, code_of(session, params.data), request)


async def _resolved(
    session: Session, params: ResolveParams, data: ActionData, code: Code, request: OpenRequest
) -> dict[str, Any]:
    """Editors show an error of this request badly or not at all, so what was refused comes back
    without an edit, and a message says why."""
    facts: dict[str, Any] = msgspec.to_builtins(data)
    action: dict[str, Any] = {"title": params.title, "kind": params.kind, "data": facts}
    if params.diagnostics is not None:
        action["diagnostics"] = params.diagnostics
    with Progress(session, request, data.work_done_token) as progress:
        progress.begin(params.title.removeprefix("Pillion: "))
        try:
            made = await edited(session, code, data.instruction, data.draft, progress.report)
        except Refused as refused:
            session.show_to_client(types.MessageType.Warning, f"Pillion: {refused.message}")
            return action
    if made.hunks:
        action["edit"] = workspace_edit(code.document, made, session.encoding)
    else:
        session.show_to_client(types.MessageType.Info, f"Pillion: {UNCHANGED}")
    return action
