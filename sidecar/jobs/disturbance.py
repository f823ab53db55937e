"""What else happens while a reply is decoded: keystrokes that preempt it, requests that are
cancelled half way, and others that share its prefix. None of it may change the reply."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from engine import (
    Chunk,
    EngineClient,
    Failed,
    Finished,
    GenerateRequest,
    Priority,
    error_of,
)

# Events of a reply, counted from 0, before which something may happen.
_MOMENTS = range(8)
_EACH_REPLY = 1

# Of a prompt that shares no prefix: enough to be cancelled in the middle of.
_FOREIGN_TOKENS = 64


class Tally(Struct, kw_only=True):
    """What happened so far. prefix_hits: disturbing requests that found cached tokens."""

    preemptions: int = 0
    cancellations: int = 0
    repeats: int = 0
    prefix_hits: int = 0


class Disturbances:
    """Draws what to do from a seeded generator. The order in which things then happen still
    depends on the machine; the compared replies must not."""

    def __init__(self, client: EngineClient, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self.tally = Tally()

    async def watch_both(
        self, first: GenerateRequest, second: GenerateRequest
    ) -> tuple[Finished, Finished]:
        """Both replies, disturbed; in either order or at the same time."""
        order = self._random.randrange(3)
        if order == 0:
            one, two = await asyncio.gather(self.watch(first), self.watch(second))
        elif order == 1:
            one, two = await self.watch(first), await self.watch(second)
        else:
            two = await self.watch(second)
            one = await self.watch(first)
        return one, two

    async def watch(self, request: GenerateRequest) -> Finished:
        """The reply, with `_EACH_REPLY` disturbances begun at random events of it."""
        moments = self._random.choices(_MOMENTS, k=_EACH_REPLY)
        tasks: list[asyncio.Task[None]] = []
        output: list[int] = []
        number = 0
        try:
            async with self._client.generate(request) as reply:
                async for event in reply:
                    if isinstance(event, Failed):
                        raise error_of(event)
                    if isinstance(event, Chunk):
                        output += event.tokens
                    over = isinstance(event, Finished)
                    # What a short reply left no time for happens at its end.
                    for _ in range(sum(m >= number if over else m == number for m in moments)):
                        tasks.append(asyncio.create_task(self._disturb(request, tuple(output))))
                    number += 1
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        assert isinstance(event, Finished)
        return event

    async def _disturb(self, request: GenerateRequest, output: Sequence[int]) -> None:
        await self._random.choice((self._preempt, self._cancel, self._repeat))(request, output)

    async def _preempt(self, request: GenerateRequest, output: Sequence[int]) -> None:
        """A keystroke: a short request on part of the same text that goes first."""
        length = self._random.randint(1, len(request.prompt))
        self.tally.preemptions += 1
        await self._short(request, request.prompt[:length], Priority.INTERACTIVE)

    async def _repeat(self, request: GenerateRequest, output: Sequence[int]) -> None:
        """The same text and some of its reply again, as a chat's next turn sends it."""
        kept = self._random.randint(0, len(output))
        self.tally.repeats += 1
        await self._short(request, (*request.prompt, *output[:kept]), Priority.AGENT)

    async def _short(
        self, request: GenerateRequest, prompt: tuple[int, ...], priority: Priority
    ) -> None:
        asked = self._like(request, prompt, priority, max_tokens=self._random.randint(1, 4))
        async with self._client.generate(asked) as reply:
            finished = await reply.finished()
        self.tally.prefix_hits += finished.cached_tokens > 0

    async def _cancel(self, request: GenerateRequest, output: Sequence[int]) -> None:
        """A request on other text, given up before, during or after its prefill."""
        cut = self._random.randrange(len(request.prompt))
        prompt = (request.prompt[cut:] + request.prompt[:cut])[:_FOREIGN_TOKENS]
        asked = self._like(request, prompt, self._random.choice(list(Priority)), max_tokens=64)
        patience = self._random.randrange(5)
        self.tally.cancellations += 1
        async with self._client.generate(asked) as reply:
            if patience == 0:
                reply.cancel()
            seen = 0
            async for event in reply:
                seen += 1
                if seen == patience:
                    reply.cancel()
                if isinstance(event, Failed):
                    raise error_of(event)

    def _like(
        self,
        request: GenerateRequest,
        prompt: tuple[int, ...],
        priority: Priority,
        *,
        max_tokens: int,
    ) -> GenerateRequest:
        return msgspec.structs.replace(
            request,
            id=self._client.new_id("disturbance"),
            prompt=prompt,
            boundaries=(),
            must_start_with="",
            draft=self._random.random() < 0.7,
            max_tokens=max_tokens,
            priority=priority,
        )
