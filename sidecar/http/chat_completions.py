"""`POST /v1/chat/completions`."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from engine import EngineError, ModelInfo, PillionError, Reasoned, RequestError, Said, TokenLogprob
from sidecar.http.endpoint import Endpoint, Exchange
from sidecar.http.errors import error_body
from sidecar.http.models import served_model
from sidecar.http.schema.chat_request import ChatMessage, ChatRequest
from sidecar.http.schema.chat_response import (
    AssistantMessage,
    CalledFunction,
    ChatCompletion,
    ChatCompletionChunk,
    Choice,
    ChunkChoice,
    Delta,
    WrittenToolCall,
)
from sidecar.http.schema.logprobs import ChoiceLogprobs, logprobs_of
from sidecar.http.schema.usage import ReplyFacts, Usage, facts_of, usage_of
from sidecar.http.sse import EventStream
from sidecar.http.tool_choice import reply_format_of
from sidecar.jobs.chat import Chat, open_turn, reasoning_variables
from sidecar.jobs.turn import Called, Ended, Part, Progress, Turn, Waiting, head_of

_TOKEN_ID = re.compile(r"[0-9]{1,10}")


class ChatCompletions(Endpoint[ChatRequest]):
    """OpenAI's chat completions."""

    shape = ChatRequest

    async def answer(self, wire: ChatRequest, exchange: Exchange) -> None:
        model = served_model(self.services, wire.model or None)
        session = exchange.session(wire.prompt_cache_key, wire.prompt_cache_key_camel)
        chat = chat_of(wire, session)
        spelled = await self.services.engine.token_bytes() if wire.logprobs else ()
        async with await open_turn(self.services, chat, model) as turn:
            parts = self.parts(turn)
            if not wire.stream:
                await exchange.json(await _complete(turn, self, chat.id, model, spelled))
                return
            parts = await head_of(parts)
            usage = bool(wire.stream_options and wire.stream_options.include_usage)
            streaming = _Streaming(chat, model, self.stream(exchange), usage, spelled)
            with contextlib.suppress(TimeoutError):
                await streaming.run(parts)


def chat_of(wire: ChatRequest, session: str | None) -> Chat:
    """The request in the words of the engine. Raises RequestError naming the field."""
    template = reasoning_variables(wire.reasoning_effort) | (wire.chat_template_kwargs or {})
    stop = [wire.stop] if isinstance(wire.stop, str) else wire.stop or []
    # A model that sees no tools calls none.
    tools = wire.tools if wire.tools and wire.tool_choice != "none" else []
    return Chat(
        # Unique for ever, not only among open requests: agents merge turns of one id.
        id=f"chatcmpl-{secrets.token_hex(12)}",
        messages=tuple(_message(message) for message in wire.messages),
        tools=tuple(_plain(tool) for tool in tools),
        reply=reply_format_of(wire),
        template=template,
        several_calls=wire.parallel_tool_calls is not False,
        n=wire.n or 1,
        prediction=_prediction(wire),
        logprobs=(wire.top_logprobs or 0) if wire.logprobs else None,
        max_tokens=wire.max_completion_tokens or wire.max_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        min_p=wire.min_p,
        repetition_penalty=wire.repetition_penalty,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        logit_bias=logit_bias(wire.logit_bias or {}),
        seed=wire.seed,
        stop=tuple(stop),
        ignore_eos=bool(wire.ignore_eos),
        draft=wire.draft is not False,
        explain=bool(wire.explain),
        session=session,
    )


def _prediction(wire: ChatRequest) -> str:
    content = wire.prediction.content if wire.prediction is not None else ""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _message(message: ChatMessage) -> dict[str, object]:
    plain = _plain(message)
    if isinstance(message.content, list):
        # What the model once refused is text to it like any other.
        plain["content"] = [
            {"type": "text", "text": part.text if part.type == "text" else part.refusal}
            for part in message.content
        ]
    return plain


def _plain(value: msgspec.Struct) -> dict[str, object]:
    """`value` as the JSON object it came from, without what was left out."""
    plain = {}
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, msgspec.Struct):
            field = _plain(field)
        elif isinstance(field, list):
            field = [_plain(item) if isinstance(item, msgspec.Struct) else item for item in field]
        if field is not None:
            plain[name] = field
    return plain


def logit_bias(wire: dict[str, float]) -> dict[int, float]:
    """Token id to bias. Raises RequestError for a key that is none."""
    for key in wire:
        if not _TOKEN_ID.fullmatch(key):
            raise RequestError(f"logit_bias: {key[:100]!r} is not a token id", field="logit_bias")
    return {int(key): bias for key, bias in wire.items()}


class _Message:
    """One choice of a reply that is sent whole."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.text: list[str] = []
        self.logprobs: list[tuple[str, Sequence[TokenLogprob]]] = []
        self.calls: list[WrittenToolCall] = []
        self.ended: Ended | None = None

    def add(self, part: Part) -> None:
        match part.content:
            case Reasoned():
                self.reasoning.append(part.content.text)
            case Said():
                self.text.append(part.content.text)
                self.logprobs.append((part.content.text, part.logprobs))
            case Called():
                self.calls.append(_written(part.content))
            case Ended():
                self.ended = part.content

    def choice(self, index: int, spelled: Sequence[bytes]) -> Choice:
        assert self.ended is not None
        content = "".join(self.text)
        return Choice(
            index=index,
            message=AssistantMessage(
                content=content or (None if self.calls else ""),
                reasoning_content="".join(self.reasoning) or UNSET,
                tool_calls=tuple(self.calls) or UNSET,
            ),
            finish_reason=self.ended.reason,
            logprobs=logprobs_of(self.logprobs, spelled) if spelled else None,
        )


async def _complete(
    turn: Turn, endpoint: ChatCompletions, id: str, model: ModelInfo, spelled: Sequence[bytes]
) -> ChatCompletion:
    """Wait for all of it. Raises the error that a reply failed with."""
    messages: dict[int, _Message] = {}
    async for part in endpoint.parts(turn):
        messages.setdefault(part.choice, _Message()).add(part)
    endings = [messages[index].ended for index in sorted(messages)]
    if not endings or None in endings:
        raise EngineError(f"the reply {id} had no end")
    ended = [one for one in endings if one is not None]
    return ChatCompletion(
        id=id,
        created=int(time.time()),
        model=model.id,
        system_fingerprint=fingerprint(model),
        choices=tuple(messages[index].choice(index, spelled) for index in sorted(messages)),
        usage=_usage(ended),
        pillion=facts_of(ended[0].finished, ended[0].repaired, ended[0].unread),
    )


def _usage(ended: Sequence[Ended]) -> Usage:
    reasoning = sum(one.reasoning_tokens for one in ended)
    return usage_of(*(one.finished for one in ended), reasoning=reasoning)


def _written(call: Called, index: int | UnsetType = UNSET) -> WrittenToolCall:
    function = CalledFunction(name=call.name, arguments=call.arguments)
    return WrittenToolCall(index=index, id=call.id, function=function)


class _Streaming:
    """One streamed answer on its way out."""

    def __init__(
        self,
        chat: Chat,
        model: ModelInfo,
        stream: EventStream,
        usage: bool,
        spelled: Sequence[bytes],
    ) -> None:
        self._chat = chat
        self._model = model
        self._stream = stream
        self._usage = usage
        self._spelled = spelled
        self._created = int(time.time())
        self._calls = [0] * chat.n
        self._ended: list[Ended] = []

    async def run(self, parts: Any) -> None:
        """Send all of it. Raises TimeoutError when the client stalls."""
        await self._stream.open()
        for choice in range(self._chat.n):
            await self._send_delta(Delta(role="assistant", content=""), choice)
        try:
            async with contextlib.aclosing(parts):
                async for part in parts:
                    await self._on_part(part)
            if self._usage:
                await self._send((), usage=_usage(self._ended))
            await self._stream.done()
        except PillionError as error:
            # The status line is gone; this is what OpenAI's clients look for instead.
            await self._stream.data(error_body(error))
        await self._stream.close()

    async def _on_part(self, part: Part) -> None:
        content = part.content
        match content:
            case Waiting():
                await self._stream.comment("keep-alive")
            case Progress():
                await self._stream.comment(f"prefill {content.done}/{content.total}")
            case Said():
                said = [(content.text, part.logprobs)]
                logprobs = logprobs_of(said, self._spelled) if self._spelled else None
                await self._send_delta(Delta(content=content.text), part.choice, logprobs)
            case Reasoned():
                await self._send_delta(Delta(reasoning_content=content.text), part.choice)
            case Called():
                index = self._calls[part.choice]
                self._calls[part.choice] += 1
                delta = Delta(tool_calls=(_written(content, index),))
                await self._send_delta(delta, part.choice)
            case Ended():
                self._ended.append(content)
                last = ChunkChoice(delta=Delta(), finish_reason=content.reason, index=part.choice)
                facts = facts_of(content.finished, content.repaired, content.unread)
                await self._send((last,), pillion=facts)

    async def _send_delta(
        self, delta: Delta, choice: int, logprobs: ChoiceLogprobs | None = None
    ) -> None:
        await self._send((ChunkChoice(delta=delta, index=choice, logprobs=logprobs),))

    async def _send(
        self,
        choices: tuple[ChunkChoice, ...],
        *,
        usage: Usage | None = None,
        pillion: ReplyFacts | UnsetType = UNSET,
    ) -> None:
        await self._stream.data(
            ChatCompletionChunk(
                id=self._chat.id,
                created=self._created,
                model=self._model.id,
                system_fingerprint=fingerprint(self._model),
                choices=choices,
                usage=usage if self._usage else UNSET,
                pillion=pillion,
            )
        )


def fingerprint(model: ModelInfo) -> str:
    """OpenAI's name for what computed a reply."""
    return f"fp_{model.fingerprint[:12]}"
