"""`GET /dashboard/events`: what changed, as server-sent events, for as long as somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from engine import CacheNode, CacheReport, Overloaded, PillionError
from sidecar.http.dashboard.record import Record
from sidecar.http.limits import Limits
from sidecar.http.request import while_connected
from sidecar.http.sse import EventStream
from sidecar.metrics import status_report
from sidecar.services import Services

TICK_SECONDS = 0.5
"""Between two events at least."""
CACHE_SECONDS = 2.0
"""Between two looks at the prefix cache at least; each is work for the engine's thread."""
MOST_NODES = 400
MOST_WATCHERS = 16
# Of the status: they change all the time, or are nothing to look at.
_LEFT_OUT = ("uptime_s", "costs", "socket")


class Feed:
    """The endpoint. Every event is an object with what is different from the event before:
    ``status`` (`status_report`), ``open`` and ``ended`` (`OpenRequest`, `PastRequest`), ``cache``
    (`CacheNode`), and always ``time`` and ``committed``, the tokens decoded since the event
    before. The last one has ``over``, the engine's state."""

    def __init__(self, services: Services, record: Record, limits: Limits) -> None:
        self._services = services
        self._record = record
        self._limits = limits
        self._watchers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        if scope["method"] == "HEAD":
            # The router lets it in with GET, and it would never end.
            raise HTTPException(405, headers={"Allow": "GET"})
        if self._watchers >= MOST_WATCHERS:
            raise Overloaded(f"{self._watchers} pages look on already; close one")
        watchers = self._services.engine.watchers
        if self._watchers == 0:
            watchers.append(self._record.watch)
        self._watchers += 1
        try:
            with contextlib.suppress(ClientDisconnect, TimeoutError):
                await while_connected(
                    receive, self._run(EventStream(send, stall=self._limits.stall))
                )
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                watchers.remove(self._record.watch)

    async def _run(self, stream: EventStream) -> None:
        await stream.open()
        view = _View(self._services, self._record)
        engine = self._services.engine
        while (state := engine.status().state) not in ("stopped", "failed"):
            news = [self._record.news(), engine.news()]
            if (event := await view.event()) is not None:
                await stream.data(event)
            else:
                await stream.comment("nothing happened")
            await _any_of(news, self._limits.keep_alive)
            await asyncio.sleep(TICK_SECONDS)
        await stream.data({"time": round(time.time(), 3), "committed": 0, "over": state})
        await stream.close()


async def _any_of(events: list[asyncio.Event], seconds: float) -> None:
    """Return when one of them is set, or after so long."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waiting:
            wait.cancel()


class _View:
    """What one page knows already."""

    def __init__(self, services: Services, record: Record) -> None:
        self._services = services
        self._record = record
        self._known: dict[str, Any] = {}
        self._ended = 0
        self._committed = record.committed
        self._cache_counts: Any = None
        self._cache_at = 0.0

    async def event(self) -> dict[str, Any] | None:
        """What is different now; None if nothing."""
        status = status_report(self._services)
        for name in _LEFT_OUT:
            del status[name]
        event: dict[str, Any] = {}
        ended = [msgspec.to_builtins(past) for past in self._record.past(self._ended)]
        if ended:
            event["ended"] = ended
        self._ended = self._record.ended
        current = {"status": status, "open": msgspec.to_builtins(self._record.open())}
        if (cache := await self._cache(status)) is not None:
            current["cache"] = cache
        event |= {name: now for name, now in current.items() if self._known.get(name) != now}
        self._known |= current
        committed = self._record.committed - self._committed
        self._committed += committed
        if not event and not committed:
            return None
        return {"time": round(time.time(), 3), "committed": committed, **event}

    async def _cache(self, status: dict[str, Any]) -> dict[str, Any] | None:
        counts = status["cache"]
        late = time.monotonic() - self._cache_at > CACHE_SECONDS
        if status["state"] != "ready" or counts == self._cache_counts or not late:
            return None
        self._cache_counts, self._cache_at = counts, time.monotonic()
        try:
            report = await self._services.engine.cache("outline")
        except PillionError:
            return None
        return outline(report)


def outline(report: CacheReport) -> dict[str, Any]:
    """The first nodes, parents before children, without what was written."""
    shown: tuple[CacheNode, ...] = report.nodes[:MOST_NODES]
    return {"nodes": msgspec.to_builtins(shown), "left_out": len(report.nodes) - len(shown)}
