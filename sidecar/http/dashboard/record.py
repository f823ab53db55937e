"""The last requests: what they were and what became of them, in memory alone."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from engine import (
    CacheUse,
    Chunk,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Prefilling,
    RegimeSurplus,
)

MOST_REQUESTS = 50
MOST_REPLAY_TOKENS = 1 << 18
"""Prompts and replies are kept for a replay while they have no more tokens than that together."""
REPLAY = "replay"

# What asked, by how it names its requests; an unknown name is its own answer.
_KINDS = {
    "chatcmpl": "chat",
    "cmpl": "completion",
    "complete": "suggestion",
    "msg": "message",
    "resp": "response",
    "req": "generate",
}


class Fallback(Struct, frozen=True, kw_only=True):
    """Why a reply, or a part of it, was decoded without drafts, or not at all. seconds: of that
    part; None for what concerns the whole."""

    reason: str
    seconds: float | None = None


class OpenRequest(Struct, frozen=True, kw_only=True):
    """A request that has no ending yet. phase: ``queued``, ``prompt`` or ``reply``. tokens: seen
    since somebody looks."""

    id: str
    kind: str
    started: float
    phase: str
    prompt_tokens: int
    done: int
    tokens: int


class PastRequest(Struct, frozen=True, kw_only=True):
    """One that ended. ending: a finish reason, or ``failed``. replay: whether it can be decoded
    again. Names and units are those of `engine.Finished`; started is Unix time."""

    id: str
    kind: str
    started: float
    seconds: float
    ending: str
    prompt_tokens: int
    sampled: bool
    asked_to_draft: bool
    tokens: int = 0
    cached_tokens: int = 0
    cache: CacheUse = CacheUse()
    accepted: int = 0
    rejected: int = 0
    rounds: int = 0
    width: int = 1
    exact: bool = True
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    regimes: tuple[RegimeSurplus, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    replay: bool = False


@dataclass
class _Open:
    request: GenerateRequest
    started: float = field(default_factory=time.time)
    phase: str = "queued"
    done: int = 0
    tokens: int = 0


class Record:
    """Observes an engine's client (`EngineClient.observers`); `watch` is a watcher of its events.

    ended: how many requests have; committed: tokens seen by `watch`.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._past: deque[PastRequest] = deque(maxlen=MOST_REQUESTS)
        self._replays: deque[tuple[GenerateRequest, Finished]] = deque(maxlen=MOST_REQUESTS)
        self._news = asyncio.Event()
        self.ended = 0
        self.committed = 0

    def __call__(self, news: GenerateRequest | Event) -> None:
        """A request was posted, or ended."""
        if isinstance(news, GenerateRequest):
            if not news.warm:
                self._open[news.id] = _Open(news)
        elif (known := self._open.pop(news.id, None)) is not None:
            self._end(known, news)
        self._tell()

    def watch(self, event: Event) -> None:
        """Anything at all happened to a request."""
        known = self._open.get(event.id)
        if known is None:
            return
        if isinstance(event, Prefilling):
            known.phase, known.done = "prompt", event.done
        elif isinstance(event, Chunk):
            known.phase, known.done = "reply", len(known.request.prompt)
            known.tokens += len(event.tokens)
            self.committed += len(event.tokens)
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def news(self) -> asyncio.Event:
        """Set when something happened since this was called."""
        return self._news

    def _end(self, known: _Open, ending: Event) -> None:
        request = known.request
        if kind_of(request.id) == REPLAY:
            return
        # What an upstream or its stand-in decoded cannot be had again.
        own = isinstance(ending, Finished) and not ending.served_by and not ending.fallback
        replay = own and isinstance(ending, Finished) and bool(ending.tokens)
        if isinstance(ending, Finished) and replay:
            self._replays.append((request, ending))
            self._forget_long_ones()
        self._past.append(_past(known, ending, replay))
        self.ended += 1

    def _forget_long_ones(self) -> None:
        total = 0
        for index, (request, finished) in enumerate(reversed(self._replays)):
            total += len(request.prompt) + len(request.prediction) + len(finished.tokens)
            if total > MOST_REPLAY_TOKENS:
                for _ in range(len(self._replays) - index):
                    self._replays.popleft()
                return

    def open(self) -> list[OpenRequest]:
        """Those without an ending, the oldest first."""
        return [
            OpenRequest(
                id=request_id,
                kind=kind_of(request_id),
                started=round(known.started, 3),
                phase=known.phase,
                prompt_tokens=len(known.request.prompt),
                done=known.done,
                tokens=known.tokens,
            )
            for request_id, known in self._open.items()
        ]

    def past(self, after: int = 0) -> list[PastRequest]:
        """Those that ended behind the first `after` ones, as far as they are still known."""
        fresh = min(self.ended - after, len(self._past))
        return list(self._past)[len(self._past) - fresh :] if fresh > 0 else []

    def replayable(self, request_id: str) -> tuple[GenerateRequest, Finished] | None:
        """A request and what it led to; None where that is not known any more."""
        found = (pair for pair in reversed(self._replays) if pair[0].id == request_id)
        return next(found, None)


def kind_of(request_id: str) -> str:
    """What asked for it, for people."""
    name = request_id.replace("_", "-").partition("-")[0]
    return _KINDS.get(name, name)


def _past(known: _Open, ending: Event, replay: bool) -> PastRequest:
    request = known.request
    facts: dict[str, Any] = {
        "id": request.id,
        "kind": kind_of(request.id),
        "started": round(known.started, 3),
        "seconds": round(time.time() - known.started, 4),
        "prompt_tokens": len(request.prompt),
        "sampled": not request.sampling.greedy,
        "asked_to_draft": request.draft,
    }
    if not isinstance(ending, Finished):
        why = f"{ending.code}: {ending.message}" if isinstance(ending, Failed) else ""
        return PastRequest(**facts, ending="failed", fallbacks=(Fallback(reason=why),))
    return PastRequest(
        **facts,
        ending=ending.finish_reason,
        tokens=len(ending.tokens),
        cached_tokens=ending.cached_tokens,
        cache=ending.cache,
        accepted=ending.accepted,
        rejected=ending.rejected,
        rounds=ending.rounds,
        width=ending.width,
        exact=ending.exact,
        queue_ms=round(ending.queue_ms, 3),
        prefill_ms=round(ending.prefill_ms, 3),
        decode_ms=round(ending.decode_ms, 3),
        regimes=ending.regimes,
        fallbacks=tuple(_fallbacks(ending)),
        replay=replay,
    )


def _fallbacks(finished: Finished) -> list[Fallback]:
    spent: dict[str, float] = {}
    for regime in finished.regimes:
        for reason, seconds in regime.target_only.items():
            spent[reason] = spent.get(reason, 0.0) + seconds
    parts = sorted(spent.items(), key=lambda part: -part[1])
    whole = [finished.fallback, finished.width_reason, finished.inexact_reason]
    return [
        *(Fallback(reason=reason) for reason in whole if reason),
        *(Fallback(reason=reason, seconds=round(seconds, 6)) for reason, seconds in parts),
    ]
