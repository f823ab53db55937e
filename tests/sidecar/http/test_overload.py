"""Too much to do, and clients that do not read: who is refused is told when to try again, and
whoever was accepted gets everything, once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from http_door import COMPLETIONS, HELLO, asgi_door, post, socket_door
from waiting import until

from engine import Finished, GenerateRequest, Overloaded
from engine.testing import FakeEngine

DOORS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"messages": HELLO},
    "/v1/completions": {"prompt": "x = "},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/v1/responses": {"input": "hello"},
    "/infill": {"input_prefix": "x = ", "input_suffix": "\n"},
}
LONG = "".join(f"{number} " for number in range(1000))


@pytest.mark.parametrize(
    ("path", "stream"),
    # `/infill` does not stream.
    [*((path, False) for path in DOORS), *((path, True) for path in list(DOORS)[:-1])],
)
async def test_every_door_says_when_to_try_again(path: str, stream: bool) -> None:
    def refuse(_request: GenerateRequest) -> str:
        raise Overloaded("256 requests are waiting already")

    async with asgi_door(FakeEngine(refuse)) as client:
        answer = await client.post(path, json=DOORS[path] | {"stream": stream})
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert "256 requests are waiting" in answer.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_choice_that_is_refused_takes_its_turn_with_it(stream: bool) -> None:
    opened: list[GenerateRequest] = []

    def third(request: GenerateRequest) -> str:
        opened.append(request)
        if len(opened) == 3:
            raise Overloaded("256 requests are waiting already")
        return "ok"

    engine = FakeEngine(third)
    async with socket_door(engine) as served:
        reader, writer = await served.raw()
        body = {"messages": HELLO, "n": 4, "stream": stream}
        writer.write(post(json.dumps(body).encode()))
        # What was streamed before cannot be taken back; then the refusal is the one ending.
        answer = await asyncio.wait_for(_until_told(reader), 60)
        assert answer.count(b'"overloaded"') == 1
        assert b"[DONE]" not in answer
        await until(lambda: not served.services.engine.open_requests, 60)
    assert len(engine.endings) == 4


async def _until_told(reader: asyncio.StreamReader) -> bytes:
    answer = b""
    while b'"overloaded"' not in answer:
        part = await reader.read(4096)
        assert part, answer
        answer += part
    return answer


async def test_who_does_not_read_holds_nobody_up_and_gets_every_token_later() -> None:
    engine = FakeEngine(lambda request: LONG if len(request.prompt) < 20 else "ok", context=30000)
    async with socket_door(engine) as served:
        reader, slow = await served.raw()
        transport = slow.transport
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()
        slow.write(post(json.dumps({"messages": HELLO, "stream": True}).encode()))
        # Decoded to its end while not a byte of it is read.
        await until(lambda: engine.endings, 60)
        other = [{"role": "user", "content": "hello, and much more than that"}]
        quick_reader, quick = await served.raw()
        quick.write(post(json.dumps({"messages": other, "stream": True}).encode()))
        assert b"data: [DONE]" in await asyncio.wait_for(quick_reader.readuntil(b"[DONE]"), 60)
        transport.resume_reading()
        answer = await asyncio.wait_for(_whole(reader), 60)
    events = [
        json.loads(line[6:]) for line in answer.decode().splitlines() if line.startswith("data: {")
    ]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == LONG
    assert answer.count(b"data: [DONE]") == 1
    assert all(isinstance(ending, Finished) for ending in engine.endings.values())


async def _whole(reader: asyncio.StreamReader) -> bytes:
    answer = b""
    while b"[DONE]" not in answer:
        part = await reader.read(1 << 16)
        assert part
        answer += part
    return answer
