"""An open chat turn: its replies, taken apart into what doors send."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Sequence

from msgspec import Struct

from engine import (
    Chunk,
    EngineClient,
    EngineError,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    PieceReader,
    Prefilling,
    Reasoned,
    Reply,
    Said,
    TokenLogprob,
    ToolCall,
    Unread,
    error_of,
)

# A call that is being written is a token a round; clients need not hear of each.
_OFTEN = 1.0


class Progress(Struct, frozen=True):
    """`done` of `total` prompt tokens are computed; `cached` of them came free."""

    done: int
    total: int
    cached: int


class Waiting(Struct, frozen=True):
    """Nothing to send yet: the engine is silent, or writes what may become a tool call."""


class Called(Struct, frozen=True, kw_only=True):
    """A tool call; `id` is the same again when the reply is repeated with its seed. arguments:
    JSON text of an object."""

    id: str
    name: str
    arguments: str


class Ended(Struct, frozen=True, kw_only=True):
    """The end of one choice. reason: ``stop``, ``length`` or ``tool_calls``. repaired: what was
    put right in its calls. unread: what looked like a call and was none. reasoning_tokens: how
    many of its tokens were reasoning."""

    finished: Finished
    reason: str
    reasoning_tokens: int = 0
    repaired: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


class Part(Struct, frozen=True, kw_only=True):
    """choice: which of the turn's replies. logprobs: of tokens that `Said` is made of."""

    content: Reasoned | Said | Called | Progress | Waiting | Ended
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


class Turn:
    """Opens a reply for each of `requests`, each with its reader; all to one prompt, or none of
    them with tools. calls: a reply ends behind so many."""

    def __init__(
        self,
        engine: EngineClient,
        requests: Sequence[GenerateRequest],
        readers: Sequence[PieceReader],
        *,
        calls: int | None = None,
    ) -> None:
        self.prompt_tokens = len(requests[0].prompt)
        self._choices = [
            _Choice(index, reader, request, calls)
            for index, (reader, request) in enumerate(zip(readers, requests, strict=True))
        ]
        self._replies = [engine.generate(request) for request in requests]

    async def parts(self, *, first: float, silence: float) -> AsyncGenerator[Part, None]:
        """Everything, in the order in which it comes; the last part of a choice is its `Ended`.

        first, silence: seconds after which a `Waiting` comes in place of the first event, and of a
        later one. Raises the error that a reply fails with.
        """
        loop = asyncio.get_running_loop()
        sent = 0.0
        async for index, event in self._events(first, silence):
            if event is None:
                yield Part(content=Waiting())
                continue
            choice = self._choices[index]
            for part in choice.parts(event):
                if isinstance(part.content, Waiting) and loop.time() - sent < _OFTEN:
                    continue
                sent = loop.time()
                yield part
            if choice.full and not choice.cut:
                choice.cut = True
                self._replies[index].cancel()

    async def _events(
        self, seconds: float, silence: float
    ) -> AsyncGenerator[tuple[int, Event | None], None]:
        """The next event of any reply, and whose; None for silence."""
        if len(self._replies) > 1:
            async for found in self._interleaved(seconds, silence):
                yield found
            return
        event: Event | None = None
        while not isinstance(event, Finished | Failed):
            event = await _next_event(self._replies[0], seconds)
            seconds = silence
            yield 0, event

    async def _interleaved(
        self, seconds: float, silence: float
    ) -> AsyncGenerator[tuple[int, Event | None], None]:
        waits = {
            asyncio.ensure_future(anext(reply)): index for index, reply in enumerate(self._replies)
        }
        try:
            while waits:
                done, _ = await asyncio.wait(
                    waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                seconds = silence
                if not done:
                    yield 0, None
                for task in sorted(done, key=lambda one: waits[one]):
                    index = waits.pop(task)
                    event = task.result()
                    if not isinstance(event, Finished | Failed):
                        waits[asyncio.ensure_future(anext(self._replies[index]))] = index
                    yield index, event
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def cancel(self) -> None:
        """End every reply where it is; each still has its `Ended`, with the reason ``length``."""
        for choice, reply in zip(self._choices, self._replies, strict=True):
            choice.cut = True
            reply.cancel()

    async def aclose(self) -> None:
        """Give up what is still open."""
        for reply in self._replies:
            await reply.aclose()

    async def __aenter__(self) -> Turn:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _next_event(reply: Reply, seconds: float) -> Event | None:
    """The reply's next event, or None when there is none within `seconds`."""
    # Not wait_for: Python 3.11's swallows a cancellation that comes together with an event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await anext(reply)
    return None


class _Choice:
    """One reply on its way from events to parts."""

    def __init__(
        self, index: int, reader: PieceReader, request: GenerateRequest, most_calls: int | None
    ) -> None:
        self._index = index
        self._most_calls = most_calls
        self._reader = reader
        self._request = request
        # Whether it was ended here, before the engine did.
        self.cut = False
        self._calls = 0
        self._logprobs: list[TokenLogprob] = []
        self._undecided = self._reasoning_tokens = 0
        self._repaired: list[str] = []
        self._unread: list[str] = []

    @property
    def full(self) -> bool:
        """Whether it has made all the calls that it may; what follows is dropped."""
        return self._most_calls is not None and self._calls >= self._most_calls

    def parts(self, event: Event) -> list[Part]:
        """What the event brings."""
        match event:
            case Prefilling():
                return [self._part(Progress(event.done, event.total, event.cached))]
            case Chunk():
                self._logprobs += event.logprobs
                self._undecided += len(event.tokens)
                thinking = self._reader.reasoning
                pieces = self._reader.feed(event.text)
                parts = [part for piece in pieces for part in self._piece(piece)]
                # Of tokens that say something in one round with others those are kept, too.
                if (thinking and not pieces) or (pieces and not isinstance(pieces[-1], Said)):
                    self._logprobs.clear()
                return parts or ([self._part(Waiting())] if self._reader.waiting else [])
            case Failed():
                raise error_of(event)
            case Finished():
                return self._end(event)

    def _end(self, finished: Finished) -> list[Part]:
        if finished.finish_reason == "cancelled" and not self.cut:
            raise EngineError("the reply was cancelled: the daemon is stopping", code="cancelled")
        complete = finished.finish_reason == "stop"
        pieces = self._reader.finish(complete=complete)
        parts = [part for piece in pieces for part in self._piece(piece)]
        reason = "length" if self.cut and not complete else finished.finish_reason
        if self.full or (self._calls and complete):
            reason = "tool_calls"
        ended = Ended(
            finished=finished,
            reason=reason,
            reasoning_tokens=self._reasoning_tokens,
            repaired=tuple(self._repaired),
            unread=tuple(self._unread),
        )
        return [*parts, self._part(ended)]

    def _piece(self, piece: Reasoned | Said | ToolCall | Unread) -> list[Part]:
        if self.full:
            return []
        if isinstance(piece, Unread):
            self._unread.append(piece.reason)
            return []
        tokens, self._undecided = self._undecided, 0
        if isinstance(piece, Said):
            logprobs, self._logprobs = tuple(self._logprobs), []
            return [Part(choice=self._index, content=piece, logprobs=logprobs)]
        if isinstance(piece, Reasoned):
            self._reasoning_tokens += tokens
            return [self._part(piece)]
        if piece.repaired:
            self._repaired.append(f"{piece.name}: {piece.repaired}")
        origin = (self._request.seed, self._request.prompt, self._calls)
        self._calls += 1
        digest = hashlib.blake2b(repr(origin).encode(), digest_size=12).hexdigest()
        called = Called(id=f"call_{digest}", name=piece.name, arguments=piece.arguments)
        return [self._part(called)]

    def _part(self, content: Reasoned | Called | Progress | Waiting | Ended) -> Part:
        return Part(choice=self._index, content=content)


async def head_of(parts: AsyncGenerator[Part, None]) -> AsyncGenerator[Part, None]:
    """`parts`, once the first of them is there: an error that comes in its place is raised here,
    before anything was sent."""
    first = await anext(parts)

    async def whole() -> AsyncGenerator[Part, None]:
        async with contextlib.aclosing(parts):
            yield first
            async for part in parts:
                yield part

    return whole()
