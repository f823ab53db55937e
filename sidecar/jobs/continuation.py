"""Raw text to continue, and gaps to fill: what `/v1/completions` and `/infill` ask for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine import (
    ContextLengthExceeded,
    EngineClient,
    GenerateRequest,
    ModelInfo,
    Piece,
    Priority,
    RenderedPrompt,
    RequestError,
    Said,
)
from sidecar.jobs.chat import Chat, choices_of, request_of
from sidecar.jobs.turn import Turn
from sidecar.services import Services


class PlainReader:
    """All of it is said."""

    waiting = reasoning = False

    def feed(self, text: str) -> list[Piece]:
        return [Said(text)] if text else []

    def finish(self, *, complete: bool) -> list[Piece]:
        return []


async def raw_prompt(engine: EngineClient, prompt: str | Sequence[int]) -> RenderedPrompt:
    """A prompt as it stands: control tokens that a text spells are control tokens, those of
    fill-in-the-middle included; then what ends such a gap ends the reply. Raises RequestError for
    ids that the model does not have."""
    tokens = await engine.encode(prompt, control=True) if isinstance(prompt, str) else prompt
    model = engine.status().model
    if model is not None:
        for token in tokens:
            if not 0 <= token < model.vocab_size:
                raise RequestError(
                    f"prompt: {token} is not a token id; this model has {model.vocab_size}",
                    field="prompt",
                )
    if model is None or not model.has_fim:
        return RenderedPrompt(tokens=tuple(tokens))
    empty = await engine.fill_in_middle("", "")
    fills = empty.tokens[-1] in tokens
    return RenderedPrompt(
        tokens=tuple(tokens), stop_token_ids=empty.stop_token_ids if fills else ()
    )


def open_continuations(
    services: Services,
    chat: Chat,
    prompts: Sequence[RenderedPrompt],
    model: ModelInfo,
    *,
    field: str = "prompt",
) -> Turn:
    """`chat.n` replies to each of `prompts`, in order, which the caller must close. A gap is filled
    before anything else is done: someone is typing.

    Raises RequestError naming the field, ContextLengthExceeded, NotReady.
    """
    requests: list[GenerateRequest] = []
    for prompt in prompts:
        if len(prompt.tokens) >= model.context:
            raise ContextLengthExceeded(len(prompt.tokens), model.context, field=field)
        request = request_of(services, chat, model, prompt)
        if prompt.stop_token_ids:
            request = msgspec.structs.replace(request, priority=Priority.INTERACTIVE)
        requests += choices_of(request, chat.n, first=len(requests))
    return Turn(services.engine, requests, [PlainReader() for _ in requests])
