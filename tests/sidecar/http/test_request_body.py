"""Bodies and heads that are too large, too slow, too deep, or not what they say."""

from __future__ import annotations

import asyncio

import pytest
from http_door import COMPLETIONS, Served, asgi_door, error_of, post, socket_door
from waiting import until

from engine.testing import FakeEngine
from sidecar.config import Config, HttpConfig
from sidecar.http.limits import Limits
from sidecar.http.protocol import BoundedProtocol

SMALL = Config(http=HttpConfig(max_body_bytes=2000))
OK = b'{"messages":[{"role":"user","content":"x"}]}'


async def answer(served: Served, *pieces: bytes) -> bytes:
    """Everything the server sends on a connection that gets `pieces`, until it closes it."""
    reader, writer = await served.raw()
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    data = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return data


def body_of(size: int) -> bytes:
    head, tail = b'{"messages":[{"role":"user","content":"', b'"}]}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    async with asgi_door(FakeEngine(), config=SMALL) as client:
        assert (await client.post(COMPLETIONS, content=body_of(2000))).status_code == 200
        response = await client.post(COMPLETIONS, content=body_of(2001))
    assert response.status_code == 413
    error = error_of(response)
    assert error["code"] == "body_too_large"
    assert "2000 bytes" in error["message"]


async def test_a_large_body_in_chunks_is_413_as_soon_as_it_is_too_large() -> None:
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with socket_door(FakeEngine(), config=SMALL) as served:
        reader, writer = await served.raw()
        writer.write(head.encode() + b"5dc\r\n" + b"x" * 1500 + b"\r\n")
        writer.write(b"5dc\r\n" + b"x" * 1500 + b"\r\n")
        status = await asyncio.wait_for(reader.readline(), 10)
        assert status.startswith(b"HTTP/1.1 413")
        writer.close()


async def test_a_declared_length_that_is_too_large_is_413_before_the_body() -> None:
    async with socket_door(FakeEngine(), config=SMALL) as served:
        for length in (b"2001", b"9" * 30):
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            reader, writer = await served.raw()
            writer.write(head + length + b"\r\nExpect: 100-continue\r\n\r\n")
            status = await asyncio.wait_for(reader.readline(), 10)
            assert status.split()[1] in (b"413", b"400")
            writer.close()


async def test_a_body_that_never_ends_arriving_is_408() -> None:
    async with socket_door(FakeEngine(), limits=Limits(body=0.1)) as served:
        data = await answer(served, post(OK)[:-1])
    assert data.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in data
    assert b"request_timeout" in data


class Impatient(BoundedProtocol):
    patience = 0.1


async def test_a_head_that_never_ends_arriving_is_hung_up_on() -> None:
    async with socket_door(FakeEngine(), http=Impatient) as served:
        assert await answer(served) == b""
        assert await answer(served, b"GET /health HT") == b""
        # A second request on the connection gets no more patience than the first.
        health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        data = await answer(served, health, b"GET /heal")
        assert data.startswith(b"HTTP/1.1 200")


async def test_patience_is_for_clients_not_for_long_replies() -> None:
    async with socket_door(FakeEngine("abcd", round_seconds=0.1), http=Impatient) as served:
        data = await answer(served, post(OK, "Connection: close"))
    assert b'"content":"abcd"' in data


async def test_a_huge_head_is_refused() -> None:
    config = Config(http=HttpConfig(max_header_bytes=2048))
    async with socket_door(FakeEngine(), config=config) as served:
        data = await answer(served, post(OK, "Connection: close", "X-Long: " + "a" * 2000))
        assert data.startswith(b"HTTP/1.1 431")
        assert b"2048 bytes" in data
        data = await answer(served, b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * 5000)
        assert data.startswith(b"HTTP/1.1 400")
        assert b'"code":"invalid_http"' in data
        assert (await answer(served, post(OK, "Connection: close"))).startswith(b"HTTP/1.1 200")


async def test_what_is_not_http_gets_an_error_object() -> None:
    async with socket_door(FakeEngine()) as served:
        data = await answer(served, b"\x16\x03\x01\x02\x00hello\r\n\r\n")
    assert data.startswith(b"HTTP/1.1 400")
    assert b'"type":"invalid_request_error"' in data


async def test_garbage_after_an_answer_is_hung_up_on() -> None:
    async with socket_door(FakeEngine("x" * 50, round_seconds=0.005)) as served:
        chunked = post(OK).replace(b"Content-Length: 44", b"Transfer-Encoding: chunked")
        head, _, _ = chunked.partition(b"\r\n\r\n")
        data = await answer(served, head + b"\r\n\r\nZZZ not a chunk\r\n")
        assert data.startswith(b"HTTP/1.1 400")
        await until(lambda: not served.server.server_state.tasks)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b"nope", "not JSON"),
        (OK + b" trailing", "not JSON"),
        (b'{"messages":[{"role":"user","content":"\xff"}]}', "not UTF-8"),
        (OK[:-1] + b',"unknown":"\xff"}', "not UTF-8"),
        (OK[:-1] + b',"temperature":NaN}', "not JSON"),
        (OK[:-1] + b',"temperature":Infinity}', "not JSON"),
        (OK[:-1] + b',"unknown":' + b"[" * 200_000, "nested too deeply"),
        (OK[:-1] + b',"chat_template_kwargs":{"a":' + b'{"a":' * 200_000, "nested too deeply"),
        (b'{"messages":' + b"[" * 200_000, "expected `object`"),
        (b'{"messages":[{"role":"user","content":"\\ud800"}]}', "not JSON"),
        (b"[]", "expected `object`, got `array`"),
        (b"null", "expected `object`, got `null`"),
        (OK[:-1] + b',"temperature":1e999}', "temperature: number out of range"),
        (OK[:-1] + b',"seed":' + b"9" * 50_000 + b"}", "seed"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_body_that_is_no_request_is_400(body: bytes, words: str) -> None:
    async with asgi_door(FakeEngine()) as client:
        response = await client.post(COMPLETIONS, content=body)
        assert response.status_code == 400
        assert words in error_of(response)["message"]
        assert (await client.post(COMPLETIONS, content=OK)).status_code == 200


async def test_what_is_echoed_of_a_value_is_bounded() -> None:
    async with asgi_door(FakeEngine()) as client:
        role = "r" * 1_000_000
        response = await client.post(
            COMPLETIONS, json={"messages": [{"role": role, "content": "x"}]}
        )
    assert response.status_code == 400
    assert len(response.content) < 3000
