"""Explain code in words: what `pillion/explain` and the code action of that name ask for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from msgspec import Struct

from engine import Finished, NotReady, RequestError, Said, instructions
from sidecar.edits.reply import fence_for
from sidecar.jobs.chat import Chat, open_turn, reasoning_variables
from sidecar.jobs.edit import region_of
from sidecar.jobs.turn import Ended
from sidecar.services import Services

EXPLAIN = "Explain this code:"
_MOST_TOKENS = 512
# Nobody is told of it here.
_SILENCE = 60.0


class ExplainRequest(Struct, frozen=True, kw_only=True):
    """text: the whole document; first, last: lines from 0, `last` is the one behind. question:
    instead of the usual one. max_tokens: of the answer."""

    text: str
    question: str | None = None
    first: int = 0
    last: int | None = None
    language: str = ""
    max_tokens: int | None = None
    draft: bool = True


class Explanation(Struct, frozen=True, kw_only=True):
    """markdown: the answer, as the model wrote it. finished: the engine's account."""

    markdown: str
    finished: Finished


async def explain(
    services: Services, request: ExplainRequest, said: Callable[[str], None]
) -> Explanation:
    """said: called with each piece of the answer. Raises RequestError, NotReady, EngineError.
    Cancelling the task cancels the engine's work."""
    if request.question is not None and not request.question.strip():
        raise RequestError("the question is empty", field="question")
    engine = services.engine
    status = engine.status()
    if status.model is None:
        raise NotReady(f"the engine is {status.state}: {status.detail}")
    code = region_of(request.text, request.first, request.last).code
    asked = request.question.strip() if request.question else EXPLAIN
    content = instructions.change(asked, code, request.language, fence_for(code))
    turn = Chat(
        id=engine.new_id("explain"),
        messages=({"role": "user", "content": content},),
        template=reasoning_variables("off"),
        max_tokens=request.max_tokens or _MOST_TOKENS,
        draft=request.draft,
    )
    pieces: list[str] = []
    async with await open_turn(services, turn, status.model) as opened:
        async with contextlib.aclosing(opened.parts(first=_SILENCE, silence=_SILENCE)) as parts:
            async for part in parts:
                if isinstance(part.content, Said):
                    pieces.append(part.content.text)
                    said(part.content.text)
                elif isinstance(part.content, Ended):
                    return Explanation(markdown="".join(pieces), finished=part.content.finished)
    raise AssertionError("a turn ends with Ended")
