"""A chat turn: what every door that speaks of messages asks the engine for."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from engine import (
    ContextLengthExceeded,
    GenerateRequest,
    ModelInfo,
    RenderedPrompt,
    ReplyFormat,
    RequestError,
    Sampling,
)
from sidecar.config import ChatConfig
from sidecar.jobs.turn import Turn
from sidecar.services import Services

# No tokenizer packs more than this many characters into a token on average, so longer prompts are
# refused without keeping the codec thread, which keystrokes need too, busy for seconds.
_MAX_CHARACTERS_PER_TOKEN = 64


class Chat(Struct, frozen=True, kw_only=True):
    """One turn to answer; None (or empty) is what the client left out.

    messages: OpenAI-shaped. tools: OpenAI-shaped function definitions. template: further variables
    of the chat template. reply: what the reply is held to. logit_bias: token id to bias. seed: any
    integer; the second of `n` choices has the next one. several_calls: or else a reply ends
    behind its first. prediction: what the reply may turn out to
    be. logprobs, explain: see `GenerateRequest`. session: a retention hint for the prefix cache.
    """

    id: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template: Mapping[str, Any] = {}
    reply: ReplyFormat | None = None
    several_calls: bool = True
    n: int = 1
    prediction: str = ""
    logprobs: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    draft: bool = True
    explain: bool = False
    session: str | None = None


MOST_COUNTED = 1 << 21
"""Characters of a text that is only counted, or shown as tokens."""


async def open_turn(services: Services, chat: Chat, model: ModelInfo) -> Turn:
    """Render the turn's prompt and open its choices, which the caller must close.

    Raises RequestError naming the field, ContextLengthExceeded, NotReady.
    """
    request, prompt = await _request(services, chat, model)
    requests = choices_of(request, chat.n)
    tools = chat.tools or None
    readers = [services.engine.reader(tools, reasoning=prompt.reasoning) for _ in requests]
    return Turn(services.engine, requests, readers, calls=None if chat.several_calls else 1)


def choices_of(request: GenerateRequest, n: int, first: int = 0) -> list[GenerateRequest]:
    """The requests of `n` choices, which are counted from `first`."""
    assert request.seed is not None
    return [
        msgspec.structs.replace(
            request,
            id=f"{request.id}-{first + choice}" if first + choice else request.id,
            seed=(request.seed + choice) % 2**64,
        )
        for choice in range(n)
    ]


async def _request(
    services: Services, chat: Chat, model: ModelInfo
) -> tuple[GenerateRequest, RenderedPrompt]:
    prompt = await render(services, chat, model)
    # What is longer than any reply is of no use.
    predicted = chat.prediction[: model.context * _MAX_CHARACTERS_PER_TOKEN]
    prediction = await services.engine.encode(predicted) if predicted else ()
    request = request_of(services, chat, model, prompt)
    return msgspec.structs.replace(request, prediction=tuple(prediction)), prompt


def request_of(
    services: Services, chat: Chat, model: ModelInfo, prompt: RenderedPrompt
) -> GenerateRequest:
    """What the engine is asked for one reply to `prompt`. Raises RequestError naming the field."""
    defaults = services.config.chat
    seed = chat.seed if chat.seed is not None else defaults.seed
    return GenerateRequest(
        id=chat.id,
        prompt=prompt.tokens,
        max_tokens=chat.max_tokens if chat.max_tokens is not None else defaults.max_tokens,
        sampling=sampling_of(chat, defaults, model),
        # The engine's seeds are 64 bits wide; whatever the client chose maps onto one of them. One
        # is drawn here, rather than there, because a tool call's id depends on it.
        seed=secrets.randbits(53) if seed is None else seed % 2**64,
        stop=chat.stop,
        stop_token_ids=prompt.stop_token_ids,
        ignore_eos=chat.ignore_eos,
        must_start_with=prompt.must_start_with,
        grammar=prompt.grammar,
        logprobs=chat.logprobs,
        draft=chat.draft,
        explain=chat.explain,
        boundaries=prompt.boundaries,
        segments=prompt.segments,
        session=chat.session,
        tools=bool(chat.tools),
    )


async def render(services: Services, chat: Chat, model: ModelInfo) -> RenderedPrompt:
    """The turn's prompt. Raises RequestError naming the field, ContextLengthExceeded, NotReady."""
    _check_before_rendering(chat, model)
    template = {**reasoning_variables(services.config.chat.reasoning), **chat.template}
    reply = chat.reply
    if reply is not None and wants_reasoning(template):
        reply = msgspec.structs.replace(reply, reasons=True)
    try:
        prompt = await services.engine.chat(
            chat.messages, tools=chat.tools or None, template=template, reply=reply
        )
    except RecursionError:
        raise RequestError("the messages or tools are nested too deeply", field="tools") from None
    if len(prompt.tokens) >= model.context:
        raise ContextLengthExceeded(len(prompt.tokens), model.context)
    return prompt


# Levels of OpenAI and Anthropic that few templates know, as the nearest that they do.
_LEVELS = {"none": "off", "minimal": "low", "xhigh": "high", "max": "high"}


def reasoning_variables(reasoning: str | None) -> dict[str, Any]:
    """Template variables for ``off``, ``on`` or a level. Templates call the level one thing or the
    other, and ignore what they do not know."""
    if reasoning is None:
        return {}
    reasoning = _LEVELS.get(reasoning, reasoning)
    if reasoning in ("off", "on"):
        return {"enable_thinking": reasoning == "on"}
    return {
        "enable_thinking": True,
        "reasoning_effort": reasoning,
        "reasoning_strength": reasoning,
    }


def wants_reasoning(template: Mapping[str, Any]) -> bool:
    """Whether these variables ask for it, rather than leave it to the template."""
    return template.get("enable_thinking") is True


def sampling_of(chat: Chat, config: ChatConfig, model: ModelInfo) -> Sampling:
    """The request's own values, then the configured ones, then the model's. Raises RequestError
    naming what is out of range."""

    def value(name: str) -> Any:
        for source in (chat, config):
            if (said := getattr(source, name, None)) is not None:
                return said
        return getattr(model.default_sampling, name)

    for token in chat.logit_bias:
        if token >= model.vocab_size:
            raise RequestError(
                f"logit_bias: {token} is not a token id; this model has {model.vocab_size}",
                field="logit_bias",
            )
    return Sampling(
        temperature=value("temperature"),
        top_p=value("top_p"),
        top_k=value("top_k"),
        min_p=value("min_p"),
        repetition_penalty=value("repetition_penalty"),
        presence_penalty=value("presence_penalty"),
        frequency_penalty=value("frequency_penalty"),
        logit_bias=tuple(sorted(chat.logit_bias.items())),
    )


def _check_before_rendering(chat: Chat, model: ModelInfo) -> None:
    if any(not stop for stop in chat.stop):
        raise RequestError("stop must not contain an empty string", field="stop")
    check_length(characters_of(chat), model, "messages")


def characters_of(chat: Chat) -> int:
    """How long the messages' texts are."""
    return sum(_characters(message.get("content")) for message in chat.messages)


def check_length(characters: int, model: ModelInfo, field: str) -> None:
    """Raises ContextLengthExceeded where so many are too many however they are packed."""
    if characters > model.context * _MAX_CHARACTERS_PER_TOKEN:
        tokens = characters // _MAX_CHARACTERS_PER_TOKEN
        raise ContextLengthExceeded(tokens, model.context, field=field)


def check_countable(length: int, field: str) -> None:
    """Raises RequestError for what is too long to be counted, whatever the model's context."""
    if length > MOST_COUNTED:
        raise RequestError(
            f"{field}: no more than {MOST_COUNTED} characters or tokens are counted at once; send "
            "it in parts",
            field=field,
            code="body_too_large",
        )


def _characters(content: Any) -> int:
    if isinstance(content, list):
        return sum(len(part["text"]) for part in content)
    return len(content or "")
