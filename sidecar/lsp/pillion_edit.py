"""`pillion/edit`: change code of an open document, or of a text, as told."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec
from lsprotocol import types

from engine import Finished
from sidecar.edits.hunks import Hunk, LineHunk
from sidecar.edits.syntax import language_of
from sidecar.edits.validation import check_syntax
from sidecar.edits.writable_root import Refused
from sidecar.jobs.edit import Edit, EditRequest, edit
from sidecar.lsp.jsonrpc import CONTENT_MODIFIED, RpcError
from sidecar.lsp.params import Params, invalid_params
from sidecar.lsp.progress import Progress
from sidecar.lsp.session import OpenRequest, Session
from sidecar.workspace.documents import Document
from sidecar.workspace.ignore import is_secret
from sidecar.workspace.positions import Encoding, Range, units_of, without_end
from sidecar.workspace.view import NOTHING

UNCHANGED = "the model left the code as it is"


class CodeParams(Params, frozen=True, kw_only=True):
    """What code is meant: an open document's `uri`, or a whole `text`; the lines that `range`
    touches, all where there is none. version: the only one of the document that is meant.
    language: as a fence names it; the path's where left out. draft: false decodes target-only."""

    uri: str | None = None
    text: str | None = None
    version: int | None = None
    range: Range | None = None
    path: str | None = None
    language: str | None = None
    draft: bool = True
    work_done_token: int | str | None = None


class EditParams(CodeParams, frozen=True, kw_only=True):
    """instruction: what to do, in the user's words."""

    instruction: str


class Code(msgspec.Struct, frozen=True):
    """The code that a request is about."""

    document: Document
    place: Range | None
    language: str


def code_of(session: Session, params: CodeParams) -> Code:
    """Raises RpcError that names the field, Refused for what must not reach a prompt."""
    if (params.uri is None) == (params.text is None):
        raise invalid_params("uri", "give uri or text, and not both")
    if params.text is not None:
        document, named = Document.of(params.text), params.path or ""
    else:
        document = open_document(session, params.uri or "", params.version)
        named = session.path_of(document.uri) or ""
    if is_secret(named):
        raise Refused(f"{named} looks like it holds secrets, which go into no prompt")
    file = session.file_of(document.uri)
    if file is not None and (why := session.view.withheld(file)):
        raise Refused(f"{named} goes into no prompt: {why}")
    language = params.language or language_of(params.path or named) or document.language
    return Code(document, params.range, language)


def pillion_edit(
    session: Session, params: EditParams, request: OpenRequest
) -> Coroutine[None, None, dict[str, Any]]:
    """Result: ``hunks`` of whole lines, ``message`` where there are none, ``edit`` (a
    WorkspaceEdit), ``uri`` and ``version`` for an open document, ``form``, ``lines`` that were
    asked about, and the fields of `engine.Finished` except the token ids."""
    return _answer(session, params, request, code_of(session, params))


async def _answer(
    session: Session, params: EditParams, request: OpenRequest, code: Code
) -> dict[str, Any]:
    with Progress(session, request, params.work_done_token) as progress:
        progress.begin(params.instruction)
        made = await edited(session, code, params.instruction, params.draft, progress.report)
    document = code.document
    result = account(made.finished) | {
        "hunks": [wire_hunk(document, hunk, session.encoding) for hunk in made.hunks],
        "message": "" if made.hunks else UNCHANGED,
        "form": made.form,
        "lines": [made.first, made.last],
    }
    if document.uri:
        change = workspace_edit(document, made, session.encoding)
        result |= {"uri": document.uri, "version": document.version, "edit": change}
    return result


async def edited(
    session: Session,
    code: Code,
    instruction: str,
    draft: bool = True,
    written: Callable[[float], None] = lambda _share: None,
) -> Edit:
    """The edit of some code; written: see `edit`. Raises Refused where its result does not parse,
    or the document has moved on meanwhile."""
    document = code.document
    first, last = lines_of(document, code.place)
    services = session.services
    made = await edit(
        services.engine,
        services.config.edit,
        EditRequest(
            text=document.text,
            instruction=instruction,
            first=first,
            last=last,
            language=code.language,
            draft=draft,
            shown=session.view.shown(document.uri) if document.uri else NOTHING,
            shown_tokens=services.config.workspace.context_tokens,
        ),
        written,
    )
    check_syntax(document.text, made.text, code.language)
    if document.uri and session.documents.get(document.uri) != document:
        raise Refused(f"{document.uri} was changed meanwhile")
    return made


def open_document(session: Session, uri: str, version: int | None = None) -> Document:
    """Raises RpcError where it is not open (nothing is read from disk), or in another version."""
    found = session.documents.get(uri)
    if found is None:
        raise invalid_params("uri", f"{uri} is not open; send textDocument/didOpen, or its text")
    if version is not None and found.version != version:
        raise RpcError(
            CONTENT_MODIFIED,
            f"{uri} was changed since; ask again",
            data={"code": "content_modified"},
        )
    return found


def lines_of(document: Document, place: Range | None) -> tuple[int, int]:
    """First line of a range and the one behind its last. A range that ends where a line begins
    does not touch that line."""
    if place is None:
        return 0, len(document.lines)
    start, end = sorted((place.start, place.end), key=lambda at: (at.line, at.character))
    touches = end.character > 0 or end.line == start.line
    return start.line, end.line + touches


def workspace_edit(document: Document, made: Edit, encoding: Encoding) -> types.WorkspaceEdit:
    """For exactly this version of the document: an editor refuses it for another."""
    identifier = types.OptionalVersionedTextDocumentIdentifier(document.uri, document.version)
    changes = [small for hunk in made.hunks for small in hunk.hunks]
    edits = types.TextDocumentEdit(identifier, text_edits(document, changes, encoding))
    return types.WorkspaceEdit(document_changes=[edits])


def wire_hunk(document: Document, hunk: LineHunk, encoding: Encoding) -> dict[str, Any]:
    """A hunk as clients get it, to show it and to take or leave it."""
    start, end = types.Position(hunk.first, 0), types.Position(hunk.last, 0)
    if hunk.last == len(document.lines):
        # Behind a last line without an end there is no other line to begin.
        bare = without_end(document.lines[-1])
        end = types.Position(hunk.last - 1, units_of(bare, encoding))
    return {
        "range": types.Range(start, end),
        "oldText": hunk.old,
        "newText": hunk.new,
        "edits": text_edits(document, hunk.hunks, encoding),
    }


def text_edits(
    document: Document, changes: Iterable[Hunk], encoding: Encoding
) -> list[types.TextEdit | types.AnnotatedTextEdit | types.SnippetTextEdit]:
    """Hunks with positions as the client counts them."""

    def position(line: int, column: int) -> types.Position:
        text = document.lines[line][:column] if line < len(document.lines) else ""
        return types.Position(line, units_of(text, encoding))

    return [
        types.TextEdit(
            types.Range(
                position(change.line, change.column), position(change.end_line, change.end_column)
            ),
            change.text,
        )
        for change in changes
    ]


def account(finished: Finished) -> dict[str, Any]:
    """The engine's account without what is long."""
    facts: dict[str, Any] = msgspec.to_builtins(finished)
    for name in ("type", "id", "tokens", "margins", "log", "timeline"):
        facts.pop(name, None)
    return facts | {
        "completion_tokens": len(finished.tokens),
        "tokens_per_round": round(finished.tokens_per_round, 3),
    }
