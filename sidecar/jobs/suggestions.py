"""What one client is shown at its cursors: remembered, computed, or computed ahead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from engine import EngineClient, PillionError, Priority, Sampling
from sidecar.config import CompletionConfig
from sidecar.jobs.completion import Completion, CompletionRequest, complete, reach
from sidecar.jobs.suggestion_memory import Answer, Cursor, SuggestionMemory

# Alternatives differ from the likeliest one, but not beyond what the model holds for code.
_OTHERWISE = Sampling(temperature=0.8, top_p=0.95)

log = logging.getLogger(__name__)

_End = tuple[int, int, str]


AHEAD_SECONDS = 0.1
"""A suggestion that is not typed past for so long is looked at."""


class Suggestions:
    """ahead: while one is shown, compute what would follow it, in idle time."""

    def __init__(self, engine: EngineClient, config: CompletionConfig, *, ahead: bool) -> None:
        self._engine = engine
        self._config = config
        self._ahead = ahead
        self._memory = SuggestionMemory(reach(config))
        self._next: dict[str, tuple[_End, asyncio.TimerHandle | asyncio.Task[None]]] = {}

    def recall(
        self, cursor: Cursor, request: CompletionRequest, count: int
    ) -> tuple[str, ...] | None:
        """What is known already, where at least `count` alternatives were looked for. None where
        the model must be asked; then what is computed ahead for the document is not likely any
        more. cursor: the place that `request` is about."""
        found = self._memory.recall(cursor)
        if found is None or found.asked < count:
            self.cancel(cursor.document)
            return None
        self._look_ahead(cursor, request, found.texts)
        return found.texts

    async def compute(
        self, cursor: Cursor, request: CompletionRequest, count: int
    ) -> tuple[str, ...]:
        """Up to `count` different texts. Raises NotReady, RequestError or EngineError."""
        known = self._memory.recall(cursor) if count > 1 else None
        wanted = [request] if known is None else []
        wanted += [
            msgspec.structs.replace(request, sampling=_OTHERWISE, seed=number)
            for number in range(1, count)
        ]
        found = await self._all(wanted)
        texts = [*(known.texts if known is not None else ()), *(one.text for one in found)]
        answer = Answer(texts=_different(texts), asked=count)
        self._memory.remember(cursor, answer)
        self._look_ahead(cursor, request, answer.texts)
        return answer.texts

    def cancel(self, document: str) -> None:
        """Stop what is computed ahead for a document."""
        if (found := self._next.pop(document, None)) is not None:
            found[1].cancel()

    def forget(self, document: str) -> None:
        """The document is closed."""
        self.cancel(document)
        self._memory.forget(document)

    def close(self) -> None:
        """The client is gone."""
        for document in list(self._next):
            self.cancel(document)

    async def _all(self, requests: list[CompletionRequest]) -> list[Completion]:
        if len(requests) == 1:
            return [await self._complete(requests[0])]
        tasks = [asyncio.ensure_future(self._complete(one)) for one in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _complete(self, request: CompletionRequest) -> Completion:
        return await complete(self._engine, self._config, request, account=False)

    def _look_ahead(
        self, cursor: Cursor, request: CompletionRequest, texts: tuple[str, ...]
    ) -> None:
        if not self._ahead or not texts:
            return
        after, document = cursor.behind(texts[0]), cursor.document
        end = after.line, after.column, after.prefix[-64:]
        if document in self._next and self._next[document][0] == end:
            return
        self.cancel(document)
        # Most are typed past, and a timer costs a key less than a task.
        loop = asyncio.get_running_loop()
        self._next[document] = end, loop.call_later(AHEAD_SECONDS, self._begin, after, request)

    def _begin(self, cursor: Cursor, request: CompletionRequest) -> None:
        end, _ = self._next.pop(cursor.document)
        if self._memory.recall(cursor) is None:
            task = asyncio.create_task(self._compute_ahead(cursor, request), name="ahead")
            self._next[cursor.document] = end, task
            task.add_done_callback(lambda done: self._done(cursor.document, done))

    def _done(self, document: str, done: asyncio.Task[None]) -> None:
        if document in self._next and self._next[document][1] is done:
            del self._next[document]

    async def _compute_ahead(self, cursor: Cursor, request: CompletionRequest) -> None:
        ahead = msgspec.structs.replace(request, prefix=cursor.prefix, priority=Priority.IDLE)
        try:
            found = await self._complete(ahead)
        except PillionError as error:
            # Whoever asks for it later is told.
            log.debug("nothing is computed ahead: %s", error)
            return
        self._memory.remember(cursor, Answer(texts=_different([found.text]), asked=1))


def _different(texts: Iterable[str]) -> tuple[str, ...]:
    """The first of each kind, blank ones left out; white space at the end makes no difference."""
    found: dict[str, str] = {}
    for text in texts:
        if text.strip():
            found.setdefault(text.rstrip(), text)
    return tuple(found.values())
