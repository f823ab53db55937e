"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from engine import (
    Chunk,
    EngineError,
    Event,
    Failed,
    Finished,
    ModelInfo,
    PillionError,
    Prefilling,
    Reply,
    RequestError,
    error_of,
)
from sidecar.http.errors import error_body, json_response
from sidecar.http.limits import Limits
from sidecar.http.models import served_model
from sidecar.http.request import read_json, while_connected
from sidecar.http.schema.chat_request import ChatMessage, ChatRequest
from sidecar.http.schema.chat_response import (
    AssistantMessage,
    ChatCompletion,
    ChatCompletionChunk,
    Choice,
    ChunkChoice,
    Delta,
    WrittenToolCall,
)
from sidecar.http.schema.usage import ReplyFacts, Usage, facts_of, usage_of
from sidecar.http.sse import EventStream
from sidecar.http.tool_calls import reply_format_of, written
from sidecar.jobs.chat import Chat, open_chat
from sidecar.services import Services

_TOKEN_ID = re.compile(r"[0-9]{1,10}")
_MAX_SESSION = 256

ReadCalls = Callable[[str], Awaitable[tuple[WrittenToolCall, ...]]]


class ChatCompletions:
    """The endpoint. It is an ASGI application of its own, so that one scope holds the whole
    exchange: when the client leaves, at whatever point, the engine's request is cancelled."""

    def __init__(self, services: Services, limits: Limits) -> None:
        self._services = services
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with contextlib.suppress(ClientDisconnect):
            wire = await read_json(
                request,
                ChatRequest,
                limit=self._services.config.http.max_body_bytes,
                seconds=self._limits.body,
            )
            session = session_of(request.headers, wire)
            await while_connected(receive, self._answer(wire, session, scope, receive, send))

    async def _answer(
        self, wire: ChatRequest, session: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        model = served_model(self._services, wire.model)
        chat = chat_of(wire, session)
        async with await open_chat(self._services, chat, model) as reply:
            held = chat.reply is not None and chat.reply.calls
            read_calls = partial(self._read_calls, chat.tools, bool(wire.stream)) if held else None
            if not wire.stream:
                completion = await complete(reply, model, read_calls)
                await json_response(completion)(scope, receive, send)
                return
            # Nothing is sent before the engine has had the time to refuse.
            first = await next_event(reply, self._limits.first_event)
            if isinstance(first, Failed):
                raise error_of(first)
            stream = EventStream(send, stall=self._limits.stall)
            usage = bool(wire.stream_options and wire.stream_options.include_usage)
            streaming = _Streaming(reply, model, stream, usage, self._limits.keep_alive, read_calls)
            with contextlib.suppress(TimeoutError):
                await streaming.run(first)

    async def _read_calls(
        self, tools: Sequence[Mapping[str, Any]], streamed: bool, text: str
    ) -> tuple[WrittenToolCall, ...]:
        calls = await self._services.engine.tool_calls(text, tools)
        return written(calls, streamed=streamed)


def session_of(headers: Headers, wire: ChatRequest) -> str | None:
    """The name under which an agent's turns belong together, if it sends one."""
    session = (
        headers.get("x-session-id")
        or headers.get("x-session-affinity")
        or wire.prompt_cache_key
        or wire.prompt_cache_key_camel
    )
    return session[:_MAX_SESSION] if session else None


def chat_of(wire: ChatRequest, session: str | None) -> Chat:
    """The request in the words of the engine. Raises RequestError naming the field."""
    template = dict(wire.chat_template_kwargs or {})
    if wire.reasoning_effort is not None:
        template.setdefault("reasoning_effort", wire.reasoning_effort)
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
        max_tokens=wire.max_completion_tokens or wire.max_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        min_p=wire.min_p,
        repetition_penalty=wire.repetition_penalty,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        logit_bias=_logit_bias(wire.logit_bias or {}),
        seed=wire.seed,
        stop=tuple(stop),
        ignore_eos=bool(wire.ignore_eos),
        draft=wire.draft is not False,
        explain=bool(wire.explain),
        session=session,
    )


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


def _logit_bias(wire: dict[str, float]) -> dict[int, float]:
    for key in wire:
        if not _TOKEN_ID.fullmatch(key):
            raise RequestError(f"logit_bias: {key[:100]!r} is not a token id", field="logit_bias")
    return {int(key): bias for key, bias in wire.items()}


async def next_event(reply: Reply, seconds: float) -> Event | None:
    """The reply's next event, or None when there is none within `seconds`."""
    # Not wait_for: Python 3.11's swallows a cancellation that comes together with an event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await anext(reply)
    return None


async def complete(
    reply: Reply, model: ModelInfo, read_calls: ReadCalls | None = None
) -> ChatCompletion:
    """Wait for the whole reply. Raises the error it failed with.

    read_calls: finds the tool calls in a reply that may consist of them.
    """
    text: list[str] = []
    async for event in reply:
        if isinstance(event, Chunk):
            text.append(event.text)
        elif isinstance(event, Failed):
            raise error_of(event)
        elif isinstance(event, Finished):
            content = "".join(text)
            calls = await read_calls(content) if read_calls is not None else ()
            return ChatCompletion(
                id=reply.id,
                created=int(time.time()),
                model=model.id,
                system_fingerprint=_fingerprint(model),
                choices=(
                    Choice(
                        message=AssistantMessage(
                            content=None if calls else content, tool_calls=calls or UNSET
                        ),
                        finish_reason=finish_reason(event, calls),
                    ),
                ),
                usage=usage_of(event),
                pillion=facts_of(event),
            )
    raise EngineError(f"the reply {reply.id} had no end")


def finish_reason(finished: Finished, calls: tuple[WrittenToolCall, ...] = ()) -> str:
    """OpenAI's word for it. Raises EngineError for a reply that somebody else cut short."""
    if finished.finish_reason == "cancelled":
        raise EngineError("the reply was cancelled: the daemon is stopping", code="cancelled")
    if calls:
        return "tool_calls"
    return finished.finish_reason


class _Streaming:
    """One streamed reply on its way out. A reply that may consist of tool calls is held back until
    it is clear whether it does."""

    def __init__(
        self,
        reply: Reply,
        model: ModelInfo,
        stream: EventStream,
        usage: bool,
        keep_alive: float,
        read_calls: ReadCalls | None = None,
    ) -> None:
        self._reply = reply
        self._model = model
        self._stream = stream
        self._usage = usage
        self._keep_alive = keep_alive
        self._read_calls = read_calls
        self._held_back: list[str] = []
        self._created = int(time.time())

    async def run(self, event: Event | None) -> None:
        """Send all of it, starting with `event`. Raises TimeoutError when the client stalls."""
        await self._stream.open()
        await self._send_delta(Delta(role="assistant", content=""))
        try:
            while not isinstance(event, Finished):
                await self._on_event(event)
                event = await next_event(self._reply, self._keep_alive)
            await self._finish(event)
        except PillionError as error:
            # The status line is gone; this is what OpenAI's clients look for instead.
            await self._stream.data(error_body(error))
        await self._stream.close()

    async def _on_event(self, event: Event | None) -> None:
        match event:
            case None:
                await self._stream.comment("keep-alive")
            case Prefilling():
                await self._stream.comment(f"prefill {event.done}/{event.total}")
            case Chunk() if self._read_calls is not None:
                self._held_back.append(event.text)
                await self._stream.comment("keep-alive")
            case Chunk() if event.text:
                await self._send_delta(Delta(content=event.text))
            case Failed():
                raise error_of(event)

    async def _finish(self, finished: Finished) -> None:
        calls: tuple[WrittenToolCall, ...] = ()
        if self._read_calls is not None:
            content = "".join(self._held_back)
            calls = await self._read_calls(content)
            await self._send_delta(Delta(tool_calls=calls) if calls else Delta(content=content))
        last = ChunkChoice(delta=Delta(), finish_reason=finish_reason(finished, calls))
        await self._send((last,), pillion=facts_of(finished))
        if self._usage:
            await self._send((), usage=usage_of(finished))
        await self._stream.done()

    async def _send_delta(self, delta: Delta) -> None:
        await self._send((ChunkChoice(delta=delta),))

    async def _send(
        self,
        choices: tuple[ChunkChoice, ...],
        *,
        usage: Usage | None = None,
        pillion: ReplyFacts | UnsetType = UNSET,
    ) -> None:
        await self._stream.data(
            ChatCompletionChunk(
                id=self._reply.id,
                created=self._created,
                model=self._model.id,
                system_fingerprint=_fingerprint(self._model),
                choices=choices,
                usage=usage if self._usage else UNSET,
                pillion=pillion,
            )
        )


def _fingerprint(model: ModelInfo) -> str:
    return f"fp_{model.fingerprint[:12]}"
