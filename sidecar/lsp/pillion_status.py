"""`pillion/status`: what the daemon is doing, and `pillion/didChangeStatus` when that changes.

Answers while the model loads.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from engine import EngineClient
from sidecar.lsp.params import Params
from sidecar.lsp.session import OpenRequest, Session
from sidecar.metrics import status_report
from sidecar.services import Services
from sidecar.summary import Summary, summarize

DID_CHANGE_STATUS = "pillion/didChangeStatus"
PAUSE_SECONDS = 0.25
"""Between two notifications, so that a status bar does not flicker with the keys."""
WORKING_SECONDS = 1.0
"""How often the numbers are told while the model works."""


class StatusParams(Params, frozen=True, kw_only=True):
    """watch: notify this connection of `summary` from now on, whenever it changes."""

    watch: bool = False


def pillion_status(session: Session, params: StatusParams, request: OpenRequest) -> dict[str, Any]:
    """Result: `sidecar.metrics.status_report`, and ``summary``, a `sidecar.summary.Summary`."""
    summary = _summary(session.services)
    if params.watch:
        session.follow("status", lambda: _watch(session, summary))
    return status_report(session.services) | {"summary": msgspec.to_builtins(summary)}


async def _watch(session: Session, told: Summary) -> None:
    engine = session.services.engine
    while True:
        news = engine.news()
        summary = _summary(session.services)
        if summary != told:
            session.notify(DID_CHANGE_STATUS, msgspec.to_builtins(summary))
            told = summary
            await _pause(engine)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WORKING_SECONDS if engine.working else None):
                await news.wait()


async def _pause(engine: EngineClient) -> None:
    """As long as the engine lives: soon after its end the connections close, and the client would
    never know why."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PAUSE_SECONDS):
            while engine.status().state in ("loading", "ready"):
                await engine.changed()


def _summary(services: Services) -> Summary:
    return summarize(
        services.engine.status(),
        requested_model=services.config.engine.model,
        working=services.engine.working,
    )
