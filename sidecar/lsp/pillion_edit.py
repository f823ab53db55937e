"""`pillion/edit`: change code of an open document, or of a text, as told."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec
from lsprotocol import types

from engine import Finished
from sidecar.edits.hunks import Hunk
from sidecar.edits.syntax import language_of
from sidecar.edits.validation import check_syntax
from sidecar.edits.writable_root import Refused
from sidecar.jobs.edit import Edit, EditRequest, edit
from sidecar.lsp.params import Params, invalid_params
from sidecar.lsp.session import OpenRequest, Session
from sidecar.workspace.documents import Document
from sidecar.workspace.ignore import is_secret
from sidecar.workspace.positions import Encoding, Range, units_of


class EditParams(Params, frozen=True, kw_only=True):
    """An open document's `uri`, or a whole `text`; the lines that `range` touches, all where there
    is none. language: as a fence names it; the path's where left out. draft: false decodes
    target-only."""

    instruction: str
    uri: str | None = None
    text: str | None = None
    range: Range | None = None
    path: str | None = None
    language: str | None = None
    draft: bool = True


def pillion_edit(
    session: Session, params: EditParams, request: OpenRequest
) -> Coroutine[None, None, dict[str, Any]]:
    """Result: ``hunks`` (lines and code points of the old text), ``edit`` (a WorkspaceEdit, for an
    open document), ``form``, ``lines`` that were asked about, and the fields of `engine.Finished`
    except the token ids."""
    if (params.uri is None) == (params.text is None):
        raise invalid_params("uri", "give uri or text, and not both")
    if params.text is not None:
        document = Document.of(params.text)
    else:
        document = open_document(session, params.uri or "")
    path = params.path or (session.path_of(params.uri) if params.uri else None) or ""
    language = params.language or language_of(path) or document.language
    return _answer(session, params, document, language)


async def _answer(
    session: Session, params: EditParams, document: Document, language: str
) -> dict[str, Any]:
    made = await edited(session, document, params.range, params.instruction, language, params.draft)
    result = account(made.finished) | {
        "hunks": msgspec.to_builtins(made.hunks),
        "form": made.form,
        "lines": [made.first, made.last],
    }
    if params.uri is not None:
        change = workspace_edit(document, made.hunks, session.encoding)
        result["edit"] = session.plain(change)
    return result


async def edited(
    session: Session,
    document: Document,
    place: Range | None,
    instruction: str,
    language: str,
    draft: bool = True,
) -> Edit:
    """The edit of lines of a document. Raises Refused where its result does not parse, or the
    document has moved on meanwhile."""
    path = session.path_of(document.uri) if document.uri else None
    if path is not None and is_secret(path):
        raise Refused(f"{path} looks like it holds secrets, which go into no prompt")
    first, last = lines_of(document, place)
    services = session.services
    made = await edit(
        services.engine,
        services.config.edit,
        EditRequest(
            text=document.text,
            instruction=instruction,
            first=first,
            last=last,
            language=language,
            draft=draft,
        ),
    )
    check_syntax(document.text, made.text, language)
    if document.uri and session.documents.get(document.uri) != document:
        raise Refused(f"{document.uri} was changed meanwhile")
    return made


def open_document(session: Session, uri: str) -> Document:
    """Raises RpcError where it is not open: nothing is read from disk."""
    found = session.documents.get(uri)
    if found is None:
        raise invalid_params("uri", f"{uri} is not open; send textDocument/didOpen, or its text")
    return found


def lines_of(document: Document, place: Range | None) -> tuple[int, int]:
    """First line of a range and the one behind its last. A range that ends where a line begins
    does not touch that line."""
    if place is None:
        return 0, len(document.lines)
    start, end = sorted((place.start, place.end), key=lambda at: (at.line, at.character))
    touches = end.character > 0 or end.line == start.line
    return start.line, end.line + touches


def workspace_edit(
    document: Document, changes: Iterable[Hunk], encoding: Encoding
) -> types.WorkspaceEdit:
    """For exactly this version of the document: an editor refuses it for another."""
    identifier = types.OptionalVersionedTextDocumentIdentifier(document.uri, document.version)
    return types.WorkspaceEdit(
        document_changes=[
            types.TextDocumentEdit(identifier, text_edits(document, changes, encoding))
        ]
    )


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
