"""A door on a Unix socket, with a scripted engine behind it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rpc_client import RpcClient

from engine import EngineClient
from engine.testing import FakeEngine
from sidecar.config import Config
from sidecar.lsp.server import serve_connection
from sidecar.services import Services


@dataclass
class Door:
    """`connections` are the running `serve_connection` tasks, `ended` those that returned."""

    path: str
    services: Services
    backend: FakeEngine
    stopped: asyncio.Event
    clients: list[RpcClient] = field(default_factory=list)
    connections: set[asyncio.Task[None]] = field(default_factory=set)
    ended: list[asyncio.Task[None]] = field(default_factory=list)

    async def client(self, *encodings: str, handshake: bool = True) -> RpcClient:
        client = await RpcClient.connect(self.path)
        self.clients.append(client)
        if handshake:
            await client.initialize(*encodings)
        return client


@contextlib.asynccontextmanager
async def open_door(
    folder: Path, backend: FakeEngine, config: Config, *, wait: bool
) -> AsyncIterator[Door]:
    engine = EngineClient(backend)
    engine.start()
    if wait:
        await engine.ready()
    stopped = asyncio.Event()
    services = Services(engine=engine, config=config, shutdown=stopped.set)
    door = Door(str(folder / "door.sock"), services, backend, stopped)

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve_connection(reader, writer, services))
        door.connections.add(task)
        task.add_done_callback(door.connections.discard)
        task.add_done_callback(door.ended.append)

    server = await asyncio.start_unix_server(connected, door.path)
    try:
        yield door
    finally:
        server.close()
        for client in door.clients:
            await client.close()
        if door.connections:
            await asyncio.wait(door.connections, timeout=20)
        assert not door.connections, "a connection outlived its client"
        # serve_connection never raises.
        assert not [task for task in door.ended if not task.cancelled() and task.exception()]
        await engine.stop()


@pytest.fixture
async def serve(home: Path) -> AsyncIterator[Callable[..., Any]]:
    """`await serve(reply, ...)`: a Door on a FakeEngine (or `kind`) of these arguments."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *args: Any,
            kind: type[FakeEngine] = FakeEngine,
            config: Config | None = None,
            wait: bool = True,
            **kwargs: Any,
        ) -> Door:
            backend = kind(*args, **kwargs)
            return await stack.enter_async_context(
                open_door(home, backend, config or Config(), wait=wait)
            )

        yield start
