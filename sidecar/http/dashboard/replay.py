"""`POST /dashboard/replay`: decode a past request again, without drafts and with them."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from engine import Finished, GenerateRequest, Priority, RequestError, Span
from sidecar.http.dashboard.record import REPLAY, Record
from sidecar.http.errors import json_response
from sidecar.http.limits import Limits
from sidecar.http.request import read_json, while_connected
from sidecar.services import Services

_MOST_BODY = 4096


class ReplayRequest(Struct, frozen=True, kw_only=True):
    """id: of a past request, as the events have it."""

    id: str


class Decoded(Struct, frozen=True, kw_only=True):
    """One decoding. same: whether its tokens are those of the reply that was sent. parts_at: the
    first token that differs, from 1. seconds: of its rounds alone, whatever came in between."""

    same: bool
    parts_at: int | None
    tokens: int
    rounds: int
    seconds: float
    token_hash: str
    timeline: tuple[Span, ...]


class Replayed(Struct, frozen=True, kw_only=True):
    """slower: how many times as long target-only took; None where a reply has too few tokens."""

    id: str
    target_only: Decoded
    drafted: Decoded
    slower: float | None


class Replay:
    """The endpoint. It asks for what nobody waits for (IDLE), so a keystroke goes before it."""

    def __init__(self, services: Services, record: Record, limits: Limits) -> None:
        self._services = services
        self._record = record
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientDisconnect):
            request = Request(scope, receive)
            wire = await read_json(
                request, ReplayRequest, limit=_MOST_BODY, seconds=self._limits.body
            )
            await while_connected(receive, self._answer(wire, scope, receive, send))

    async def _answer(
        self, wire: ReplayRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        known = self._record.replayable(wire.id)
        if known is None:
            raise RequestError(
                f"id: {wire.id[:100]!r} is not among the last requests that can be replayed",
                field="id",
                code="not_found",
            )
        request, finished = known
        target_only = await self._decode(request, finished, draft=False)
        drafted = await self._decode(request, finished, draft=True)
        slower = target_only.seconds / drafted.seconds if drafted.seconds else None
        replayed = Replayed(
            id=wire.id,
            target_only=target_only,
            drafted=drafted,
            slower=None if slower is None else round(slower, 3),
        )
        await json_response(replayed)(scope, receive, send)

    async def _decode(
        self, request: GenerateRequest, finished: Finished, *, draft: bool
    ) -> Decoded:
        again = again_of(request, finished, self._services.engine.new_id(REPLAY), draft=draft)
        async with self._services.engine.generate(again) as reply:
            return compare(finished, await reply.finished())


def again_of(
    request: GenerateRequest, finished: Finished, request_id: str, *, draft: bool
) -> GenerateRequest:
    """The same request, as far as its reply went. A reply that was cut short is not wrong."""
    changes: dict[str, Any] = {
        "id": request_id,
        "seed": finished.seed,
        "max_tokens": len(finished.tokens),
        "draft": draft,
        "explain": True,
        "margins": False,
        "priority": Priority.IDLE,
    }
    return msgspec.structs.replace(request, **changes)


def compare(original: Finished, again: Finished) -> Decoded:
    """`again` beside the reply that was sent."""
    pairs = enumerate(zip(original.tokens, again.tokens, strict=False), 1)
    parts = next((at for at, (one, other) in pairs if one != other), None)
    if parts is None and len(original.tokens) != len(again.tokens):
        parts = min(len(original.tokens), len(again.tokens)) + 1
    return Decoded(
        same=parts is None,
        parts_at=parts,
        tokens=len(again.tokens),
        rounds=again.rounds,
        seconds=round(sum(regime.seconds for regime in again.regimes), 6),
        token_hash=again.token_hash,
        timeline=again.timeline,
    )
