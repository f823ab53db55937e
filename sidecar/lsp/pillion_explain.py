"""`pillion/explain`: what some code does, as markdown, while it is written or at once."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any

from msgspec import Meta

from sidecar.jobs.explain import EXPLAIN, ExplainRequest, explain
from sidecar.lsp.pillion_edit import Code, CodeParams, account, code_of, lines_of
from sidecar.lsp.progress import Progress
from sidecar.lsp.session import OpenRequest, Session


class ExplainParams(CodeParams, frozen=True, kw_only=True):
    """question: instead of the usual one. maxTokens: of the answer. partialResultToken: pieces of
    it come as ``{"markdown": piece}``."""

    question: str | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    partial_result_token: int | str | None = None


def pillion_explain(
    session: Session, params: ExplainParams, request: OpenRequest
) -> Coroutine[None, None, dict[str, Any]]:
    """Result: ``markdown``, ``model``, and the fields of `engine.Finished` except the token ids."""
    return _answer(session, params, request, code_of(session, params))


async def _answer(
    session: Session, params: ExplainParams, request: OpenRequest, code: Code
) -> dict[str, Any]:
    services = session.services
    first, last = lines_of(code.document, code.place)
    asked = ExplainRequest(
        text=code.document.text,
        question=params.question,
        first=first,
        last=last,
        language=code.language,
        max_tokens=params.max_tokens,
        draft=params.draft,
    )
    partial, token = params.partial_result_token, params.work_done_token
    with Progress(session, request, token, partial=partial) as progress:
        progress.begin(params.question or EXPLAIN.rstrip(":"))
        made = await explain(services, asked, lambda piece: progress.part({"markdown": piece}))
    model = services.engine.status().model
    return account(made.finished) | {
        "markdown": made.markdown,
        "model": model.id if model is not None else None,
    }
