"""`pillion/complete`: what inline completion does, for scripts, with an account of its cost."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sidecar.jobs.completion import CompletionRequest, complete, reach
from sidecar.jobs.suggestion import Multiline
from sidecar.lsp.params import Params, invalid_params
from sidecar.lsp.session import OpenRequest, Session
from sidecar.workspace.documents import Document
from sidecar.workspace.positions import Position
from sidecar.workspace.view import NOTHING


class CompleteParams(Params, frozen=True, kw_only=True):
    """Where: an open document's `uri` and a `position`; or a whole `text` and a `position`; or the
    `prefix` before and the `suffix` after the cursor. `path` names the file to the model.

    maxTokens, multiline: the configuration's where left out. draft: false decodes target-only.
    """

    uri: str | None = None
    text: str | None = None
    position: Position | None = None
    prefix: str | None = None
    suffix: str | None = None
    path: str | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    multiline: Multiline | None = None
    draft: bool = True


def pillion_complete(
    session: Session, params: CompleteParams, request: OpenRequest
) -> Coroutine[None, None, dict[str, Any]]:
    """Result: ``text`` to insert, ``finish_reason``, ``model``, and the fields of
    `engine.Finished` except the token ids."""
    prefix, suffix = _around_cursor(session, params)
    path, shown = params.path, NOTHING
    if params.uri is not None:
        path, shown = path or session.path_of(params.uri), session.view.shown(params.uri)
        file = session.file_of(params.uri)
        if file is not None and (why := session.view.withheld(file)):
            raise invalid_params("uri", f"{params.uri} must not reach a prompt: {why}")
    return _complete(
        session,
        CompletionRequest(
            prefix=prefix,
            suffix=suffix,
            path=path,
            shown=shown,
            shown_tokens=session.services.config.workspace.context_tokens,
            max_tokens=params.max_tokens,
            multiline=params.multiline,
            draft=params.draft,
        ),
    )


async def _complete(session: Session, request: CompletionRequest) -> dict[str, Any]:
    services = session.services
    completion = await complete(services.engine, services.config.completion, request)
    finished, model = completion.finished, services.engine.status().model
    assert finished is not None
    facts: dict[str, Any] = msgspec.to_builtins(finished)
    for name in ("type", "id", "tokens", "margins"):
        facts.pop(name, None)
    return facts | {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "model": model.id if model is not None else None,
        "completion_tokens": len(finished.tokens),
        "tokens_per_round": round(finished.tokens_per_round, 3),
    }


def _around_cursor(session: Session, params: CompleteParams) -> tuple[str, str]:
    if params.prefix is not None or params.suffix is not None:
        for name in ("uri", "text", "position"):
            if getattr(params, name) is not None:
                raise invalid_params(name, "give either prefix and suffix or a position, not both")
        return params.prefix or "", params.suffix or ""
    if params.text is not None:
        document = Document.of(params.text)
    elif params.uri is not None:
        found = session.documents.get(params.uri)
        if found is None:
            raise invalid_params(
                "uri", f"{params.uri} is not open; send textDocument/didOpen, or its text as text"
            )
        document = found
    else:
        raise invalid_params("prefix", "is missing (or give uri or text, and position)")
    if params.position is None:
        raise invalid_params("position", "is missing")
    place = document.locate(params.position, session.encoding)
    distance = reach(session.services.config.completion)
    return document.before(*place, distance), document.after(*place, distance)
