"""Prompts that are likely to come are computed ahead, in idle time, and dropped when they are not
likely any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from engine import EngineClient, Failed, GenerateRequest, PillionError, Priority, RenderedPrompt

log = logging.getLogger(__name__)

MIN_TOKENS = 16
"""A shorter prompt is computed quicker than it is spoken of."""


class Warmth:
    """At most one prompt a key is on its way; a newer one takes its place."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def warm(self, key: str, prompt: Awaitable[RenderedPrompt], *, stable: bool) -> None:
        """stable: only up to where the prompt is the same at any place of the file."""
        self.cancel(key)
        task = self._tasks[key] = asyncio.create_task(self._warm(prompt, stable), name="warm")
        task.add_done_callback(lambda done: self._forget(key, done))

    def cancel(self, key: str) -> None:
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()

    def close(self) -> None:
        """The client is gone."""
        for key in list(self._tasks):
            self.cancel(key)

    def _forget(self, key: str, done: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is done:
            del self._tasks[key]

    async def _warm(self, prompt: Awaitable[RenderedPrompt], stable: bool) -> None:
        try:
            made = await prompt
            length = made.stable if stable else len(made.tokens)
            if length < MIN_TOKENS:
                return
            request = GenerateRequest(
                id=self._engine.new_id("warm"),
                prompt=made.tokens[:length],
                boundaries=tuple(end for end in made.boundaries if end <= length),
                segments=tuple(one for one in made.segments if one.end <= length),
                priority=Priority.IDLE,
                warm=True,
            )
            async with self._engine.generate(request) as reply:
                async for event in reply:
                    if isinstance(event, Failed):
                        log.debug("warming failed: %s", event.message)
        except PillionError as error:
            # Whoever asks for it later is told.
            log.debug("nothing is warmed: %s", error)
