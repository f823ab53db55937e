"""What every endpoint that decodes has in common."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import ClassVar, Generic, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from sidecar.http.errors import json_response
from sidecar.http.limits import Limits
from sidecar.http.request import read_json, while_connected
from sidecar.http.sse import EventStream
from sidecar.jobs.turn import Part, Turn
from sidecar.services import Services

T = TypeVar("T")
_MAX_SESSION = 256


class Exchange:
    """One request being answered."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers = Headers(scope=scope)
        self._scope, self._receive, self.send = scope, receive, send

    async def json(self, content: object) -> None:
        """Answer with one JSON document."""
        await json_response(content)(self._scope, self._receive, self.send)

    def session(self, *named: str | None) -> str | None:
        """The name under which an agent's turns belong together, if it sends one: by a header, or
        one of the fields that `named` are."""
        headers = (self.headers.get(name) for name in ("x-session-id", "x-session-affinity"))
        session = next(filter(None, (*headers, *named, self.headers.get("session-id"))), None)
        return session[:_MAX_SESSION] if session else None


class Endpoint(Generic[T]):
    """It is an ASGI application of its own, so that one scope holds the whole exchange: when the
    client leaves, at whatever point, the engine's request is cancelled."""

    shape: ClassVar[type]

    def __init__(self, services: Services, limits: Limits) -> None:
        self.services = services
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with contextlib.suppress(ClientDisconnect):
            wire: T = await read_json(
                request,
                self.shape,
                limit=self.services.config.http.max_body_bytes,
                seconds=self.limits.body,
            )
            work = self.answer(wire, Exchange(scope, receive, send))
            await while_connected(receive, work)

    async def answer(self, wire: T, exchange: Exchange) -> None:
        """Do what the body `wire` asks for. Cancelled when the client leaves."""
        raise TypeError(f"{type(self).__name__} answers nothing")

    def parts(self, turn: Turn) -> AsyncGenerator[Part, None]:
        """What the turn writes, for a stream: nothing is sent before the engine has had the time
        to refuse, and silence is noticed."""
        return turn.parts(first=self.limits.first_event, silence=self.limits.keep_alive)

    def stream(self, exchange: Exchange) -> EventStream:
        """Where a streamed answer goes."""
        return EventStream(exchange.send, stall=self.limits.stall)
