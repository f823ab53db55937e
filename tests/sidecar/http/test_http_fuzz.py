"""Malformed and truncated input by the thousand: no crash, no hang, an answer to all that can be
answered, and still serving after it. Seeded, so a failure repeats."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from typing import Any

import h11
import httpx2
import msgspec
import pytest
from http_door import COMPLETIONS, HELLO, Served, asgi_door, error_of, post, socket_door
from waiting import until

from engine.testing import FakeEngine
from sidecar.http.schema.chat_request import ChatRequest

VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    2**70,
    "",
    "x",
    "\x00\U0001f600",
    [],
    [1],
    [None],
    ["a"] * 20,
    [[[]]],
    {},
    {"a": 1},
    {"type": "function", "function": None},
    {"role": "user"},
    [{"type": "text", "text": 1}],
]
FIELDS = [field.encode_name for field in msgspec.structs.fields(ChatRequest)]
FULL = {
    "model": "default",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "añ😀"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "stop": ["a"],
    "logit_bias": {"1": 1},
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"x": [1, {"y": None}]},
    "max_tokens": 4,
    "temperature": 0.5,
    "seed": 1,
}  # fmt: skip


def check(response: httpx2.Response) -> None:
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error_of(response)


async def test_every_field_with_every_kind_of_value() -> None:
    async with asgi_door(FakeEngine()) as client:
        for field in FIELDS:
            for value in VALUES:
                response = await client.post(
                    COMPLETIONS, json={"messages": HELLO, "max_tokens": 2, field: value}
                )
                check(response)
                if response.status_code != 200:
                    param = error_of(response)["param"]
                    assert param, (field, value)
                    assert param.split("[")[0].split(".")[0] == field, (field, value)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a document."""
    children = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    inner = [place for key, child in children for place in places(child, (*path, key))]
    return [path, *inner] if path else inner


async def test_every_place_in_a_full_request_with_every_kind_of_value() -> None:
    async with asgi_door(FakeEngine()) as client:
        for path in places(FULL):
            for value in VALUES[::3]:
                document = json.loads(json.dumps(FULL))
                target = document
                for key in path[:-1]:
                    target = target[key]
                target[path[-1]] = value
                check(await client.post(COMPLETIONS, json=document))


async def test_broken_json() -> None:
    rng = random.Random(1)
    whole = json.dumps(FULL, ensure_ascii=False).encode()
    async with asgi_door(FakeEngine()) as client:
        for _ in range(300):
            body = bytearray(whole)
            if rng.random() < 0.5:
                del body[rng.randrange(len(body)) :]
            for _ in range(rng.randrange(4)):
                if body:
                    body[rng.randrange(len(body))] = rng.randrange(256)
            check(await client.post(COMPLETIONS, content=bytes(body)))
        check(await client.post(COMPLETIONS, content=whole))


LINES = [
    b"GET /health HTTP/1.1",
    b"GET /health HTTP/1.0",
    b"GET /health HTTP/9.9",
    b"GET  /health HTTP/1.1",
    b"get /health HTTP/1.1",
    b"GET http://evil.example/health HTTP/1.1",
    b"GET * HTTP/1.1",
    b"CONNECT localhost:1 HTTP/1.1",
    b"TRACE /health HTTP/1.1",
    b"PRI * HTTP/2.0",
    b"POST /v1/chat/completions HTTP/1.1",
    b"POST /v1/chat/completions",
    b"\x00\x01\x02 / HTTP/1.1",
    b"GET /\xff\xfe HTTP/1.1",
    b"GET /%00%ff%2e%2e/ HTTP/1.1",
    b"GET /" + b"a" * 3000 + b" HTTP/1.1",
    b"",
]
HEADERS = [
    b"Host: localhost",
    b"Host: localhost",
    b"Host: localhost",
    b"Host: evil.example",
    b"Host: ",
    b"Host : localhost",
    b"Content-Length: 10",
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 0x10",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: nonsense",
    b"Content-Type: application/json",
    b"Content-Type: \xff",
    b"Expect: 100-continue",
    b"Upgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Key: x",
    b"Upgrade: h2c\r\nConnection: upgrade",
    b"Origin: null",
    b"Authorization: Bearer \xe9",
    b"X-Session-Id: \xff\xfe",
    b"no colon here",
    b": no name",
    b"X: a\r\n folded",
    b"X: \x00",
    b"Cookie: " + b"c" * 2000,
]
BODIES = [b"", b"{}", b"0123456789", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1\r\n"]


def broken_http(rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        headers = rng.sample(HEADERS, rng.randrange(5))
        data = b"\r\n".join([rng.choice(LINES), *headers, b"", rng.choice(BODIES)])
    else:
        data = post(json.dumps(FULL).encode(), "Content-Type: application/json")
        for _ in range(rng.randrange(3)):
            place = rng.randrange(len(data))
            data = data[:place] + rng.randbytes(rng.randrange(3)) + data[place + 1 :]
    if rng.random() < 0.4:
        data = data[: rng.randrange(len(data) + 1)]
    return data


def answerable(data: bytes) -> bool:
    """Whether `data` is a whole request, or already certain never to become one."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=64 << 10)
    connection.receive_data(data)
    try:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                return False
            if isinstance(event, h11.EndOfMessage):
                return True
    except h11.RemoteProtocolError:
        return True


async def exchange(served: Served, data: bytes) -> None:
    """Send `data`; demand an answer if there is one to give, and leave."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        writer.write(data)
        if data and answerable(data):
            status = await asyncio.wait_for(reader.readline(), 10)
            assert status.startswith(b"HTTP/1.1 "), (data, status)
            assert 100 <= int(status.split()[1]) < 600
            assert status.split()[1] != b"500", data
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("seed", range(4))
async def test_broken_http(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(seed)
    engine = FakeEngine()
    async with socket_door(engine) as served:
        for _ in range(10):
            await asyncio.gather(*(exchange(served, broken_http(rng)) for _ in range(25)))
        await until(lambda: not served.server.server_state.tasks)
        await until(lambda: not served.server.server_state.connections)
        assert served.services.engine.open_requests == 0
        async with httpx2.AsyncClient(base_url=served.url) as client:
            response = await client.post(COMPLETIONS, json={"messages": HELLO})
            assert response.json()["choices"][0]["message"]["content"] == "ok"
    # What a client sends is no fault of the server's; uvicorn logs every exception as an error.
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
