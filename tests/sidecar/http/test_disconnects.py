"""A client that leaves, at whatever point, frees the engine; so does a server that stops."""

from __future__ import annotations

import asyncio
import json

import pytest
from http_door import Served, post, socket_door
from waiting import until

from engine import Finished
from engine.testing import FakeEngine
from sidecar.http.limits import Limits

# Not cancelled, any of these replies would take a minute.
LONG = "x" * 3000


def chat_request(*, stream: bool, content: str = "hi") -> bytes:
    body = {"stream": stream, "messages": [{"role": "user", "content": content}]}
    return post(json.dumps(body).encode())


async def assert_cancelled(engine: FakeEngine, *, tokens: int | None = None) -> None:
    """The engine's only request ends as cancelled, long before its reply was complete."""
    await until(lambda: engine.endings)
    [ending] = engine.endings.values()
    assert isinstance(ending, Finished)
    assert ending.finish_reason == "cancelled"
    if tokens is not None:
        assert engine.steps[ending.id] == tokens
    assert engine.steps[ending.id] < len(LONG) / 2


async def assert_serving(served: Served) -> None:
    reader, writer = await served.raw()
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("abruptly", [True, False])
async def test_leaving_in_the_middle_of_a_reply(stream: bool, abruptly: bool) -> None:
    engine = FakeEngine(LONG, round_seconds=0.02)
    async with socket_door(engine) as served:
        _, writer = await served.raw()
        writer.write(chat_request(stream=stream))
        await until(lambda: any(engine.steps.values()))
        if abruptly:
            writer.transport.abort()
        else:
            writer.close()
        await assert_cancelled(engine)
        await assert_serving(served)
        assert served.services.engine.open_requests == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_during_prefill(stream: bool) -> None:
    engine = FakeEngine(LONG, round_seconds=0.02, prefill_seconds=0.05)
    async with socket_door(engine) as served:
        _, writer = await served.raw()
        writer.write(chat_request(stream=stream, content="x" * 4000))
        await until(lambda: engine.seen)
        writer.close()
        await assert_cancelled(engine, tokens=0)


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_while_queued(stream: bool) -> None:
    engine = FakeEngine(LONG, round_seconds=0.02)
    async with socket_door(engine) as served:
        _, first = await served.raw()
        first.write(chat_request(stream=False))
        await until(lambda: any(engine.steps.values()))
        _, second = await served.raw()
        second.write(chat_request(stream=stream, content="second"))
        await until(lambda: served.services.engine.open_requests == 2)
        second.close()
        # The fake engine looks at its queue only after the first reply.
        await until(lambda: len(served.server.server_state.connections) == 1)
        first.close()
        await until(lambda: len(engine.endings) == 2)
        waiting = engine.endings[engine.seen[1].id]
        assert isinstance(waiting, Finished)
        assert waiting.finish_reason == "cancelled"
        assert engine.steps[waiting.id] == 0


async def test_leaving_in_the_middle_of_the_body() -> None:
    engine = FakeEngine()
    async with socket_door(engine) as served:
        _, writer = await served.raw()
        writer.write(chat_request(stream=False)[:-5])
        await until(lambda: served.server.server_state.tasks)
        writer.close()
        await until(lambda: not served.server.server_state.tasks)
        await assert_serving(served)
    assert engine.seen == []


async def test_a_second_request_on_the_connection_does_not_hide_that_the_client_left() -> None:
    engine = FakeEngine(LONG, round_seconds=0.02)
    async with socket_door(engine) as served:
        _, writer = await served.raw()
        writer.write(chat_request(stream=True) + chat_request(stream=True))
        await until(lambda: any(engine.steps.values()))
        writer.transport.abort()
        await assert_cancelled(engine)


async def test_a_client_that_stops_reading_is_gone() -> None:
    engine = FakeEngine("y" * 20000, round_seconds=0.001, context=30000)
    async with socket_door(engine, limits=Limits(stall=0.2)) as served:
        _, writer = await served.raw()
        assert isinstance(writer.transport, asyncio.ReadTransport)
        writer.transport.pause_reading()
        writer.write(chat_request(stream=True))
        await until(lambda: engine.endings)
        [ending] = engine.endings.values()
        assert isinstance(ending, Finished)
        assert ending.finish_reason == "cancelled"
        writer.transport.abort()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_server_that_stops_ends_open_replies(stream: bool) -> None:
    engine = FakeEngine(LONG, round_seconds=0.02)
    async with asyncio.timeout(15):
        async with socket_door(engine, timeout_graceful_shutdown=1) as served:
            reader, writer = await served.raw()
            writer.write(chat_request(stream=stream))
            await until(lambda: any(engine.steps.values()))
            served.server.should_exit = True
            await reader.read()
            await assert_cancelled(engine)


async def test_many_clients_that_leave_at_random_points_leak_nothing() -> None:
    engine = FakeEngine("abc", prefill_seconds=0.001)
    async with socket_door(engine) as served:
        for number in range(60):
            _, writer = await served.raw()
            request = chat_request(stream=number % 2 == 0)
            writer.write(request[: len(request) - (number % 5) * 20])
            await asyncio.sleep(number % 7 * 0.001)
            writer.transport.abort() if number % 3 else writer.close()
        await until(lambda: not served.server.server_state.tasks)
        await until(lambda: not served.services.engine.open_requests)
        await assert_serving(served)
