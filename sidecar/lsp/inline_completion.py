"""`textDocument/inlineCompletion` (LSP 3.18): ghost text at the cursor."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence

import msgspec
from lsprotocol import types
from msgspec import Struct

from engine import NotReady, Overloaded
from sidecar.jobs.completion import CompletionRequest
from sidecar.jobs.suggestion_memory import Cursor
from sidecar.lsp.params import InlineCompletionParams, SelectedCompletionInfo
from sidecar.lsp.session import OpenRequest, Session
from sidecar.workspace.documents import Document
from sidecar.workspace.positions import Position, Range, units_of, without_end


class Item(Struct, frozen=True, rename="camel"):
    """lsprotocol's InlineCompletionItem takes many times as long to make and to convert, and this
    one is made at every key. range: what the text takes the place of."""

    insert_text: str
    range: Range


class Items(Struct, frozen=True):
    """An InlineCompletionList."""

    items: list[Item]


Answer = Coroutine[None, None, Items | None]


def inline_completion(
    session: Session, params: InlineCompletionParams, request: OpenRequest
) -> Items | Answer | None:
    """Items, or null where there is nothing to show. The first is the likeliest; there are others
    where the user asked by hand.

    Everything about the document is read here, while the message is handled, so a change that
    comes right behind cannot slip under the request. The newest request for a document is the
    only one at work. What was shown before and is typed now is answered here and now.
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
    invoked = params.context.trigger_kind == types.InlineCompletionTriggerKind.Invoked
    start = end = cursor
    if selected is not None:
        start, end = _selection(session, document, selected)
        if not start <= cursor <= end or start[0] != end[0]:
            return None
    elif not invoked and _inside_word(document, cursor):
        return None
    chosen = selected.text if selected is not None else ""
    completion = session.completion_at(document, start, end)
    if chosen:
        completion = msgspec.structs.replace(completion, prefix=completion.prefix + chosen)
    wanted = _Wanted(
        cursor=Cursor(
            document=document.uri,
            line=start[0],
            column=start[1] + len(chosen),
            prefix=completion.prefix,
            suffix=completion.suffix,
            context=completion.shown,
        ),
        completion=completion,
        count=session.services.config.completion.alternatives if invoked else 1,
        chosen=chosen,
        replaces=Range(_position(session, document, start), _position(session, document, end)),
    )
    known = session.suggestions.recall(wanted.cursor, wanted.completion, wanted.count)
    return _suggest(session, wanted) if known is None else wanted.items(known)


class _Wanted(Struct, frozen=True, kw_only=True):
    """chosen: what the completion list puts in place of what it replaces."""

    cursor: Cursor
    completion: CompletionRequest
    count: int
    chosen: str
    replaces: Range

    def items(self, texts: Sequence[str]) -> Items | None:
        return Items([Item(self.chosen + text, self.replaces) for text in texts]) if texts else None


async def _suggest(session: Session, wanted: _Wanted) -> Items | None:
    try:
        texts = await session.suggestions.compute(wanted.cursor, wanted.completion, wanted.count)
    except (NotReady, Overloaded):
        # The next keystroke asks again; an error would pop up in the editor at every key.
        return None
    return wanted.items(texts)


def _inside_word(document: Document, cursor: tuple[int, int]) -> bool:
    """Whether what is left and right of the cursor is one name: what is inserted there by itself
    would be in the way."""
    line, column = document.line(cursor[0]), cursor[1]
    around = line[max(column - 1, 0) : column + 1].replace("_", "a")
    return column > 0 and len(around) == 2 and around.isalnum()


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


def _position(session: Session, document: Document, place: tuple[int, int]) -> Position:
    line, column = place
    before = without_end(document.line(line))[:column]
    return Position(line, units_of(before, session.encoding))


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
