"""`POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's API."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator

import msgspec
from starlette.types import Receive, Scope, Send

from engine import ContextLengthExceeded, Finished, ModelInfo, PillionError, RequestError
from sidecar.http.endpoint import Endpoint, Exchange
from sidecar.http.errors import error_response, status_of
from sidecar.http.message_blocks import MessageBlocks
from sidecar.http.message_input import (
    conversation_of,
    functions_of,
    messages_of,
    reply_format_of,
    template_of,
)
from sidecar.http.models import served_model
from sidecar.http.schema.messages_request import CountTokensRequest, MessagesRequest
from sidecar.http.schema.messages_response import (
    BlockDelta,
    Message,
    MessageError,
    MessageErrorBody,
    MessageEvent,
    MessageUsage,
    TokenCount,
)
from sidecar.http.schema.usage import facts_of
from sidecar.http.sse import EventStream
from sidecar.jobs.chat import Chat, characters_of, check_countable, open_turn, render
from sidecar.jobs.turn import Ended, Part, Progress, Turn, Waiting, head_of
from sidecar.services import Services

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Messages(Endpoint[MessagesRequest]):
    """Anthropic's messages."""

    shape = MessagesRequest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Errors before the reply are in Anthropic's shape, too."""
        try:
            await super().__call__(scope, receive, send)
        except PillionError as error:
            await refuse(error, scope, receive, send)

    async def answer(self, wire: MessagesRequest, exchange: Exchange) -> None:
        model = _served(self.services, wire.model)
        user = wire.metadata.user_id if wire.metadata is not None else None
        chat = msgspec.structs.replace(
            chat_of(wire),
            max_tokens=wire.max_tokens,
            temperature=wire.temperature,
            top_p=wire.top_p,
            top_k=wire.top_k,
            seed=wire.seed,
            stop=tuple(wire.stop_sequences or ()),
            draft=wire.draft is not False,
            session=exchange.session(user, conversation_of(wire)),
        )
        async with await open_turn(self.services, chat, model) as turn:
            parts = self.parts(turn)
            if not wire.stream:
                await exchange.json(await _whole(chat.id, model.id, parts))
                return
            parts = await head_of(parts)
            streaming = _Streaming(chat.id, model.id, turn, self.stream(exchange))
            with contextlib.suppress(TimeoutError):
                await streaming.run(parts)


class CountTokens(Endpoint[CountTokensRequest]):
    """How long a prompt is, without answering it."""

    shape = CountTokensRequest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Errors are in Anthropic's shape."""
        try:
            await super().__call__(scope, receive, send)
        except PillionError as error:
            await refuse(error, scope, receive, send)

    async def answer(self, wire: CountTokensRequest, exchange: Exchange) -> None:
        model = _served(self.services, wire.model)
        chat = chat_of(wire)
        # What does not fit is counted, too, and what holds a reply to a form costs no tokens.
        chat = msgspec.structs.replace(chat, reply=None)
        check_countable(characters_of(chat), "messages")
        boundless = msgspec.structs.replace(model, context=2**62)
        prompt = await render(self.services, chat, boundless)
        await exchange.json(TokenCount(len(prompt.tokens)))


def _served(services: Services, name: str | None) -> ModelInfo:
    """The loaded model. Claude Code asks for some of Anthropic's by name whatever it is told, so
    those mean it, too; the reply says which one it is."""
    return served_model(services, None if name and name.startswith("claude-") else name)


def chat_of(wire: CountTokensRequest) -> Chat:
    """What decides about the prompt, in the words of the engine."""
    tools = functions_of(wire)
    return Chat(
        # Unique for ever: agents merge messages of one id.
        id=f"msg_{secrets.token_hex(12)}",
        messages=tuple(messages_of(wire)),
        tools=tools,
        reply=reply_format_of(wire, bool(tools)),
        several_calls=not (wire.tool_choice and wire.tool_choice.disable_parallel_tool_use),
        template=template_of(wire),
    )


async def refuse(error: PillionError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the error."""
    response = error_response(error)
    body = msgspec.json.encode(MessageErrorBody(error=_error(error)))
    response.body = body
    response.headers["content-length"] = str(len(body))
    await response(scope, receive, send)


def _error(error: PillionError) -> MessageError:
    fallback = "invalid_request_error" if isinstance(error, RequestError) else "api_error"
    message = error.message
    if error.code == ContextLengthExceeded.code:
        # Claude Code makes its conversation shorter when it reads this. Upstreams say no numbers.
        if isinstance(error, ContextLengthExceeded):
            message = f"{error.prompt_tokens} tokens > {error.context} maximum"
        message = f"prompt is too long: {message}"
    return MessageError(_KINDS.get(status_of(error), fallback), message[:2000])


def _usage(finished: Finished) -> MessageUsage:
    return MessageUsage(
        input_tokens=finished.prompt_tokens - finished.cached_tokens,
        output_tokens=len(finished.tokens),
        cache_read_input_tokens=finished.cached_tokens,
    )


def _stop_reason(ended: Ended) -> str:
    if ended.finished.stop_sequence is not None and ended.reason == "stop":
        return "stop_sequence"
    return _REASONS.get(ended.reason, ended.reason)


async def _whole(id: str, model: str, parts: AsyncGenerator[Part, None]) -> Message:
    """Wait for all of it. Raises the error that the reply failed with."""
    blocks = MessageBlocks()
    async for part in parts:
        blocks.add(part)
        if isinstance(part.content, Ended):
            blocks.finish()
            ended = part.content
            return Message(
                id=id,
                model=model,
                content=tuple(blocks.written),
                stop_reason=_stop_reason(ended),
                stop_sequence=ended.finished.stop_sequence,
                usage=_usage(ended.finished),
                pillion=facts_of(ended.finished, ended.repaired, ended.unread),
            )
    raise AssertionError("a turn ends with Ended")


class _Streaming:
    """One streamed message on its way out."""

    def __init__(self, id: str, model: str, turn: Turn, stream: EventStream) -> None:
        self._id = id
        self._model = model
        self._prompt_tokens = turn.prompt_tokens
        self._stream = stream
        self._blocks = MessageBlocks()
        self._begun = False

    async def run(self, parts: AsyncGenerator[Part, None]) -> None:
        """Send all of it. Raises TimeoutError when the client stalls."""
        await self._stream.open()
        try:
            async with contextlib.aclosing(parts):
                async for part in parts:
                    await self._begin(part)
                    await self._on_part(part)
        except PillionError as error:
            await self._send(MessageEvent(type="error", error=_error(error)))
        await self._stream.close()

    async def _begin(self, part: Part) -> None:
        """The first event says how much of the prompt came from the cache, if that is known."""
        if self._begun:
            return
        self._begun = True
        cached = part.content.cached if isinstance(part.content, Progress) else 0
        usage = MessageUsage(
            input_tokens=self._prompt_tokens - cached,
            output_tokens=0,
            cache_read_input_tokens=cached,
        )
        message = Message(id=self._id, model=self._model, usage=usage)
        await self._send(MessageEvent(type="message_start", message=message))
        await self._send(MessageEvent(type="ping"))

    async def _on_part(self, part: Part) -> None:
        content = part.content
        match content:
            case Waiting():
                await self._send(MessageEvent(type="ping"))
            case Progress():
                await self._stream.comment(f"prefill {content.done}/{content.total}")
            case Ended():
                await self._end(content)
            case _:
                for event in self._blocks.add(part):
                    await self._send(event)

    async def _end(self, ended: Ended) -> None:
        for event in self._blocks.finish():
            await self._send(event)
        delta = BlockDelta(
            stop_reason=_stop_reason(ended), stop_sequence=ended.finished.stop_sequence
        )
        facts = facts_of(ended.finished, ended.repaired, ended.unread)
        usage = _usage(ended.finished)
        await self._send(
            MessageEvent(type="message_delta", delta=delta, usage=usage, pillion=facts)
        )
        await self._send(MessageEvent(type="message_stop"))

    async def _send(self, event: MessageEvent) -> None:
        await self._stream.data(event, event=event.type)
