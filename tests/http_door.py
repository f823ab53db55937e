"""The HTTP door over a fake engine: in-process, and behind a real uvicorn on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import uvicorn
from waiting import until

from engine import EngineClient
from engine.testing import FakeEngine
from sidecar.config import Config
from sidecar.http.app import create_app, uvicorn_options
from sidecar.http.limits import Limits
from sidecar.services import Services

COMPLETIONS = "/v1/chat/completions"
DEFAULTS = Config()
HELLO = [{"role": "user", "content": "hello"}]


@contextlib.asynccontextmanager
async def services_of(
    engine: FakeEngine, config: Config, loaded: bool = True
) -> AsyncIterator[Services]:
    client = EngineClient(engine)
    client.start()
    if loaded:
        await client.ready()
    yield Services(engine=client, config=config, shutdown=lambda: None, url="http://x")
    await client.stop()


@contextlib.asynccontextmanager
async def asgi_door(
    engine: FakeEngine,
    *,
    config: Config = DEFAULTS,
    limits: Limits | None = None,
    loaded: bool = True,
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the app, without sockets."""
    async with services_of(engine, config, loaded) as services:
        transport = httpx2.ASGITransport(app=create_app(services, limits=limits))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client


class Served:
    """A running server: where it listens, and what it serves."""

    def __init__(self, port: int, server: uvicorn.Server, services: Services) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.server = server
        self.services = services
        self._writers: list[asyncio.StreamWriter] = []

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection, closed at the latest when the door is."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        return reader, writer

    async def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def socket_door(
    engine: FakeEngine,
    *,
    config: Config = DEFAULTS,
    limits: Limits | None = None,
    **options: Any,
) -> AsyncIterator[Served]:
    """The app behind uvicorn on a free port, run the way the daemon runs it."""
    async with services_of(engine, config) as services:
        app = create_app(services, limits=limits)
        listener = socket.create_server(("127.0.0.1", 0))
        # Small, so that a client which does not read is felt soon.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        merged = {**uvicorn_options(config.http), "timeout_graceful_shutdown": 5, **options}
        server = uvicorn.Server(uvicorn.Config(app, **merged))
        task = asyncio.create_task(server._serve(sockets=[listener]))
        await until(lambda: server.started)
        served = Served(listener.getsockname()[1], server, services)
        try:
            yield served
        finally:
            server.should_exit = True
            await task
            await served.hang_up()


async def chat(client: httpx2.AsyncClient, **fields: Any) -> httpx2.Response:
    return await client.post(COMPLETIONS, json={"messages": HELLO, **fields})


def error_of(response: httpx2.Response) -> dict[str, Any]:
    """The OpenAI error object of a refusal, complete or it is not one."""
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


def events_of(text: str) -> list[Any]:
    """The JSON of every event of a stream, in order; comments as ``": ..."``, the end as
    ``[DONE]``."""
    assert text.endswith("\n\n")
    events: list[Any] = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            events.append(block)
        elif block == "data: [DONE]":
            events.append("[DONE]")
        else:
            assert block.startswith("data: {"), block
            events.append(json.loads(block.removeprefix("data: ")))
    return events


def post(body: bytes, *headers: str, host: str = "localhost") -> bytes:
    """A raw HTTP/1.1 chat request."""
    lines = [f"POST {COMPLETIONS} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body
