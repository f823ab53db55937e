"""`textDocument/didOpen`, `didChange` and `didClose`."""

from __future__ import annotations

from sidecar.lsp.params import DidChangeParams, DidCloseParams, DidOpenParams
from sidecar.lsp.session import Session


def did_open(session: Session, params: DidOpenParams) -> None:
    item = params.text_document
    session.drop_current(item.uri)
    session.documents.open(item.uri, item.language_id, item.version, item.text)


def did_change(session: Session, params: DidChangeParams) -> None:
    """What was being computed for the old text is stopped at once."""
    identifier = params.text_document
    moved = session.documents.change(
        identifier.uri, identifier.version, params.content_changes, session.encoding
    )
    if moved:
        session.drop_current(identifier.uri)


def did_close(session: Session, params: DidCloseParams) -> None:
    session.drop_current(params.text_document.uri)
    session.documents.close(params.text_document.uri)
