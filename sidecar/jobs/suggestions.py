"""What one client is shown at its cursors: remembered, computed, or computed ahead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from engine import EngineClient, PillionError, Priority, Sampling
from sidecar.config import CompletionConfig
from sidecar.jobs.completion import Completion, CompletionRequest, complete, reach
from sidecar.jobs.suggestion_memory import Answer, SuggestionMemory

# Alternatives differ from the likeliest one, but not beyond what the model holds for code.
_OTHERWISE = Sampling(temperature=0.8, top_p=0.95)

log = logging.getLogger(__name__)


class Suggestions:
    """ahead: while one is shown, compute what would follow it, in idle time."""

    def __init__(self, engine: EngineClient, config: CompletionConfig, *, ahead: bool) -> None:
        self._engine = engine
        self._config = config
        self._ahead = ahead
        self._memory = SuggestionMemory(reach(config))
        self._next: dict[str, tuple[str, asyncio.Task[None]]] = {}

    def recall(self, uri: str, request: CompletionRequest, count: int) -> tuple[str, ...] | None:
        """What is known already, of `count` alternatives at least. None where the model must be
        asked; then what is computed ahead for the document is not likely any more."""
        found = self._recall(uri, request)
        if found is None or found.asked < count:
            self.cancel(uri)
            return None
        self._look_ahead(uri, request, found.texts)
        return found.texts

    async def compute(self, uri: str, request: CompletionRequest, count: int) -> tuple[str, ...]:
        """Up to `count` different texts. Raises NotReady, RequestError or EngineError."""
        known = self._recall(uri, request)
        wanted = [request] if known is None else []
        wanted += [
            msgspec.structs.replace(request, sampling=_OTHERWISE, seed=number)
            for number in range(1, count)
        ]
        found = await self._all(wanted)
        texts = [*(known.texts if known is not None else ()), *(one.text for one in found)]
        answer = Answer(texts=_different(texts), asked=count)
        self._remember(uri, request, answer)
        self._look_ahead(uri, request, answer.texts)
        return answer.texts

    def cancel(self, uri: str) -> None:
        """Stop what is computed ahead for a document."""
        if (found := self._next.pop(uri, None)) is not None:
            found[1].cancel()

    def forget(self, uri: str) -> None:
        """The document is closed."""
        self.cancel(uri)
        self._memory.forget(uri)

    def close(self) -> None:
        """The client is gone."""
        for uri in list(self._next):
            self.cancel(uri)

    def _recall(self, uri: str, request: CompletionRequest) -> Answer | None:
        return self._memory.recall(uri, request.prefix, request.suffix, request.shown)

    def _remember(self, uri: str, request: CompletionRequest, answer: Answer) -> None:
        self._memory.remember(uri, request.prefix, request.suffix, answer, request.shown)

    async def _all(self, requests: list[CompletionRequest]) -> list[Completion]:
        tasks = [asyncio.ensure_future(self._complete(one)) for one in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _complete(self, request: CompletionRequest) -> Completion:
        return await complete(self._engine, self._config, request, account=False)

    def _look_ahead(self, uri: str, request: CompletionRequest, texts: tuple[str, ...]) -> None:
        if not self._ahead or not texts:
            return
        after = msgspec.structs.replace(
            request, prefix=request.prefix + texts[0], priority=Priority.IDLE
        )
        end = after.prefix[-reach(self._config) :]
        if uri in self._next and self._next[uri][0] == end:
            return
        self.cancel(uri)
        if self._recall(uri, after) is None:
            task = asyncio.create_task(self._compute_ahead(uri, after), name="ahead")
            self._next[uri] = end, task
            task.add_done_callback(lambda done: self._done(uri, done))

    def _done(self, uri: str, done: asyncio.Task[None]) -> None:
        if uri in self._next and self._next[uri][1] is done:
            del self._next[uri]

    async def _compute_ahead(self, uri: str, request: CompletionRequest) -> None:
        try:
            found = await self._complete(request)
        except PillionError as error:
            # Whoever asks for it later is told.
            log.debug("nothing is computed ahead: %s", error)
            return
        answer = Answer(texts=_different([found.text]), asked=1)
        self._remember(uri, request, answer)


def _different(texts: Iterable[str]) -> tuple[str, ...]:
    """The first of each kind, blank ones left out; white space at the end makes no difference."""
    found: dict[str, str] = {}
    for text in texts:
        if text.strip():
            found.setdefault(text.rstrip(), text)
    return tuple(found.values())
