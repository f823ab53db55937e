"""`textDocument/inlineCompletion` (LSP 3.18): ghost text at the cursor."""

from __future__ import annotations

from collections.abc import Coroutine

import msgspec
from lsprotocol import types

from engine import NotReady, Overloaded
from sidecar.jobs.completion import CompletionRequest, complete
from sidecar.lsp.params import InlineCompletionParams, SelectedCompletionInfo
from sidecar.lsp.session import OpenRequest, Session
from sidecar.workspace.documents import Document
from sidecar.workspace.positions import units_of, without_end

Answer = Coroutine[None, None, types.InlineCompletionList | None]


def inline_completion(
    session: Session, params: InlineCompletionParams, request: OpenRequest
) -> Answer | None:
    """One item, or null where there is nothing to show.

    Everything about the document is read here, while the message is handled, so a change that
    comes right behind cannot slip under the request. The newest request for a document is the
    only one at work.
    """
    document = session.document(params.text_document.uri)
    session.make_current(document.uri, request)
    if session.services.engine.status().state != "ready":
        _tell_once(session)
        return None
    if _withheld(session, document.uri):
        return None
    cursor = document.locate(params.position, session.encoding)
    selected = params.context.selected_completion_info
    start = end = cursor
    if selected is not None:
        start, end = _selection(session, document, selected)
        if not start <= cursor <= end or start[0] != end[0]:
            return None
    chosen = selected.text if selected is not None else ""
    completion = session.completion_at(document, start, end)
    return _suggest(
        session,
        msgspec.structs.replace(completion, prefix=completion.prefix + chosen),
        chosen,
        types.Range(_position(session, document, start), _position(session, document, end)),
    )


async def _suggest(
    session: Session, completion: CompletionRequest, chosen: str, replaces: types.Range
) -> types.InlineCompletionList | None:
    services = session.services
    try:
        found = await complete(
            services.engine, services.config.completion, completion, account=False
        )
    except (NotReady, Overloaded):
        # The next keystroke asks again; an error would pop up in the editor at every key.
        return None
    if not found.text:
        return None
    item = types.InlineCompletionItem(insert_text=chosen + found.text, range=replaces)
    return types.InlineCompletionList(items=[item])


def _selection(
    session: Session, document: Document, selected: SelectedCompletionInfo
) -> tuple[tuple[int, int], tuple[int, int]]:
    """What the chosen entry of the completion list would replace.

    An editor shows an inline suggestion beside its list only if it extends the chosen entry: same
    range, and a text that begins with the entry's.
    """
    return (
        document.locate(selected.range.start, session.encoding),
        document.locate(selected.range.end, session.encoding),
    )


def _position(session: Session, document: Document, place: tuple[int, int]) -> types.Position:
    line, column = place
    before = without_end(document.lines[line])[:column]
    return types.Position(line, units_of(before, session.encoding))


def _withheld(session: Session, uri: str) -> bool:
    """Whether a document must not reach a prompt; the editor's log says why, once."""
    file = session.file_of(uri)
    why = session.view.withheld(file) if file is not None else ""
    if why and uri not in session.told_withheld:
        session.told_withheld.add(uri)
        session.log_to_client(types.MessageType.Info, f"no suggestions in {uri}: {why}")
    return bool(why)


def _tell_once(session: Session) -> None:
    if session.told_not_ready:
        return
    session.told_not_ready = True
    status = session.services.engine.status()
    done = f" ({status.progress:.0%})" if status.progress is not None else ""
    session.log_to_client(
        types.MessageType.Info, f"no suggestions yet: the engine is {status.state}{done}"
    )
