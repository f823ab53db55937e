"""`textDocument/didOpen`, `didChange`, `didSave` and `didClose`."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.lsp.params import DidChangeParams, DidCloseParams, DidOpenParams, DidSaveParams
from sidecar.lsp.session import Session
from sidecar.workspace.documents import Change, Document
from sidecar.workspace.positions import without_end


def did_open(session: Session, params: DidOpenParams) -> None:
    """From here on the client's text is the document, not the disk's."""
    item = params.text_document
    session.drop_current(item.uri)
    session.documents.open(item.uri, item.language_id, item.version, item.text)
    session.wait_for_model()
    session.view.opened(item.uri, session.file_of(item.uri))


def did_change(session: Session, params: DidChangeParams) -> None:
    """What was being computed for the old text is stopped at once."""
    identifier = params.text_document
    before = session.documents.get(identifier.uri)
    moved = session.documents.change(
        identifier.uri, identifier.version, params.content_changes, session.encoding
    )
    if moved:
        session.drop_current(identifier.uri)
        session.warmth.cancel(identifier.uri)
        after = session.documents.get(identifier.uri)
        if before is not None and after is not None:
            session.view.changed(
                identifier.uri, _end_of_change(params.content_changes, before, after)
            )


def _end_of_change(changes: Sequence[Change], before: Document, after: Document) -> tuple[int, int]:
    """(line, column): the end of the last line that is another one now."""
    if len(changes) != 1 or changes[0].range is None:
        return after.end_of_change(before)
    # A key says itself where it is.
    line = changes[0].range.start.line + changes[0].text.count("\n")
    line = min(line, after.height - 1)
    return line, len(without_end(after.line(line)))


def did_save(session: Session, params: DidSaveParams) -> None:
    session.view.saved(params.text_document.uri)


def did_close(session: Session, params: DidCloseParams) -> None:
    """What was being computed for the document, or ahead for it, is dropped."""
    session.drop_current(params.text_document.uri)
    session.documents.close(params.text_document.uri)
    session.view.closed(params.text_document.uri)
    session.warmth.cancel(params.text_document.uri)
    session.suggestions.forget(params.text_document.uri)
