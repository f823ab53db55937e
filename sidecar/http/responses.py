"""`POST /v1/responses`."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from engine import ContextLengthExceeded, ModelInfo, PillionError, ReplyFormat, RequestError
from sidecar.http.endpoint import Endpoint, Exchange
from sidecar.http.limits import Limits
from sidecar.http.models import served_model
from sidecar.http.response_input import Origin, functions_of, messages_of
from sidecar.http.response_items import ResponseItems
from sidecar.http.response_store import ResponseStore
from sidecar.http.schema.responses_request import ChosenTool, ResponsesRequest
from sidecar.http.schema.responses_response import (
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    Response,
    ResponseError,
    ResponseEvent,
    ResponseUsage,
)
from sidecar.http.schema.usage import facts_of
from sidecar.http.sse import EventStream
from sidecar.http.tool_choice import ANY_OBJECT
from sidecar.jobs.chat import Chat, open_turn, reasoning_variables
from sidecar.jobs.turn import Ended, Part, Progress, Waiting, head_of
from sidecar.services import Services


class Responses(Endpoint[ResponsesRequest]):
    """OpenAI's responses, with a store of its own for the conversations."""

    shape = ResponsesRequest

    def __init__(self, services: Services, limits: Limits) -> None:
        super().__init__(services, limits)
        self._store = ResponseStore()

    async def answer(self, wire: ResponsesRequest, exchange: Exchange) -> None:
        model = served_model(self.services, wire.model or None)
        id = f"resp_{secrets.token_hex(24)}"
        before = (
            self._store.messages(wire.previous_response_id) if wire.previous_response_id else ()
        )
        conversation = [*before, *messages_of(wire)]
        chat, origins = chat_of(wire, id, conversation, exchange.session(wire.prompt_cache_key))
        sealed = "reasoning.encrypted_content" in (wire.include or ())
        spelled = await self.services.engine.token_bytes() if chat.logprobs is not None else ()
        items = ResponseItems(id, origins, sealed, spelled)

        def keep() -> None:
            if wire.store is not False:
                self._store.keep(id, [*conversation, items.message])

        making = _Making(_begun(wire, id, model), items, keep)
        stream = self.stream(exchange) if wire.stream else None
        try:
            async with await open_turn(self.services, chat, model) as turn:
                parts = self.parts(turn)
                if stream is None:
                    await exchange.json(await making.whole(parts))
                    return
                parts = await head_of(parts)
                with contextlib.suppress(TimeoutError):
                    await making.streamed(stream, parts)
        except RequestError as error:
            # Codex looks for it in the stream, and then makes its conversation shorter.
            if stream is None or error.code != ContextLengthExceeded.code:
                raise
            with contextlib.suppress(TimeoutError):
                await making.refuse(stream, error)


def chat_of(
    wire: ResponsesRequest, id: str, conversation: list[Any], session: str | None
) -> tuple[Chat, dict[str, Origin]]:
    """The request in the words of the engine, and where its tools were declared."""
    functions, origins = functions_of(wire.tools or ())
    if wire.tool_choice == "none":
        functions = []
    instructions = [{"role": "system", "content": wire.instructions}] if wire.instructions else []
    if not conversation:
        raise RequestError("input must hold at least one item", field="input")
    likely = wire.top_logprobs or "message.output_text.logprobs" in (wire.include or ())
    effort = wire.reasoning.effort if wire.reasoning is not None else None
    chat = Chat(
        id=id,
        messages=(*instructions, *conversation),
        tools=tuple(functions),
        reply=_reply_format(wire, bool(functions)),
        several_calls=wire.parallel_tool_calls is not False,
        template=reasoning_variables(effort) | (wire.chat_template_kwargs or {}),
        logprobs=(wire.top_logprobs or 0) if likely else None,
        max_tokens=wire.max_output_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        seed=wire.seed,
        draft=wire.draft is not False,
        session=session,
    )
    return chat, origins


def _reply_format(wire: ResponsesRequest, may_call: bool) -> ReplyFormat | None:
    several = wire.parallel_tool_calls is not False
    if isinstance(wire.tool_choice, ChosenTool):
        return ReplyFormat(calls=True, tool=wire.tool_choice.name, several=False)
    if wire.tool_choice == "required":
        return ReplyFormat(calls=True, several=several)
    wanted = wire.text.format if wire.text is not None else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_schema" and wanted.schema is None:
        raise RequestError("text.format.schema is missing", field="text.format")
    schema = ANY_OBJECT
    if wanted.schema is not None and wanted.type == "json_schema":
        schema = msgspec.json.encode(wanted.schema).decode()
    return ReplyFormat(schema=schema, calls=may_call, several=several)


def _begun(wire: ResponsesRequest, id: str, model: ModelInfo) -> Response:
    return Response(
        id=id,
        created_at=int(time.time()),
        model=model.id,
        status="in_progress",
        instructions=wire.instructions,
        metadata=wire.metadata or {},
        parallel_tool_calls=wire.parallel_tool_calls is not False,
        previous_response_id=wire.previous_response_id,
        store=wire.store is not False,
        temperature=wire.temperature,
        top_p=wire.top_p,
        max_output_tokens=wire.max_output_tokens,
        tool_choice=wire.tool_choice or "auto",
        tools=tuple(
            {key: value for key, value in msgspec.to_builtins(tool).items() if value is not None}
            for tool in wire.tools or ()
        ),
    )


class _Making:
    """One response on its way out. keep: called at its end, before anybody can refer to it."""

    def __init__(self, begun: Response, items: ResponseItems, keep: Callable[[], None]) -> None:
        self._begun = begun
        self._items = items
        self._keep = keep
        self._sent = 0

    async def whole(self, parts: AsyncGenerator[Part, None]) -> Response:
        """Wait for all of it. Raises the error that the reply failed with."""
        async for part in parts:
            self._items.add(part)
            if isinstance(part.content, Ended):
                return self._finished(part.content)
        raise AssertionError("a turn ends with Ended")

    async def streamed(self, stream: EventStream, parts: AsyncGenerator[Part, None]) -> None:
        """Send all of it. Raises TimeoutError when the client stalls."""
        await stream.open()
        await self._send(stream, ResponseEvent(type="response.created", response=self._begun))
        await self._send(stream, ResponseEvent(type="response.in_progress", response=self._begun))
        try:
            async with contextlib.aclosing(parts):
                async for part in parts:
                    await self._on_part(stream, part)
        except PillionError as error:
            await self._fail(stream, error)
        await stream.close()

    async def refuse(self, stream: EventStream, error: PillionError) -> None:
        """Send a response that failed before it began."""
        await stream.open()
        await self._send(stream, ResponseEvent(type="response.created", response=self._begun))
        await self._fail(stream, error)
        await stream.close()

    async def _on_part(self, stream: EventStream, part: Part) -> None:
        content = part.content
        match content:
            case Waiting():
                await stream.comment("keep-alive")
            case Progress():
                await stream.comment(f"prefill {content.done}/{content.total}")
            case Ended():
                for event in self._items.finish(cut=content.reason == "length"):
                    await self._send(stream, event)
                response = self._finished(content)
                kind = f"response.{response.status}"
                await self._send(stream, ResponseEvent(type=kind, response=response))
            case _:
                for event in self._items.add(part):
                    await self._send(stream, event)

    def _finished(self, ended: Ended) -> Response:
        finished = ended.finished
        cut = ended.reason == "length"
        self._items.finish(cut=cut)
        self._keep()
        produced = len(finished.tokens)
        return msgspec.structs.replace(
            self._begun,
            status="incomplete" if cut else "completed",
            incomplete_details=IncompleteDetails("max_output_tokens") if cut else None,
            output=tuple(self._items.output),
            usage=ResponseUsage(
                input_tokens=finished.prompt_tokens,
                input_tokens_details=InputDetails(finished.cached_tokens, 0),
                output_tokens=produced,
                output_tokens_details=OutputDetails(ended.reasoning_tokens),
                total_tokens=finished.prompt_tokens + produced,
            ),
            pillion=facts_of(finished, ended.repaired, ended.unread),
        )

    async def _fail(self, stream: EventStream, error: PillionError) -> None:
        failed = msgspec.structs.replace(
            self._begun,
            status="failed",
            output=tuple(self._items.output),
            error=ResponseError(code=error.code, message=error.message),
        )
        await self._send(stream, ResponseEvent(type="response.failed", response=failed))

    async def _send(self, stream: EventStream, event: ResponseEvent) -> None:
        numbered = msgspec.structs.replace(event, sequence_number=self._sent)
        self._sent += 1
        await stream.data(numbered, event=event.type)
