"""Too much to do, and clients that do not read: who is refused is told when to try again, and
whoever was accepted gets everything, once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
from http_door import COMPLETIONS, HELLO, asgi_door, post, socket_door
from waiting import until

from engine import CacheOptions, Finished, GenerateRequest, Overloaded, watched_client
from engine.testing import FakeEngine
from sidecar.cli.private_daemon import private_daemon
from sidecar.config import Config, EngineConfig
from sidecar.jobs.chaos import Ledger

DOORS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"messages": HELLO},
    "/v1/completions": {"prompt": "x = "},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/v1/responses": {"input": "hello"},
    "/infill": {"input_prefix": "x = ", "input_suffix": "\n"},
}
# How the streams end of replies that are whole.
LAST = {
    COMPLETIONS: ["data: [DONE]"],
    "/v1/completions": ["data: [DONE]"],
    "/v1/messages": ["event: message_stop"],
    "/v1/responses": ["event: response.completed", "event: response.incomplete"],
}
LENGTHS = {"/v1/responses": {"max_output_tokens": 40}}
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


@pytest.mark.slow
async def test_a_real_engine_refuses_what_is_too_much_and_completes_the_rest() -> None:
    ledger = Ledger()
    options = EngineConfig(max_active=1, max_queue=2)
    engine = watched_client(
        options, CacheOptions(disk=0), ledger.posted, ledger.emitted, ledger.turned
    )
    with private_daemon(Config(engine=options), engine) as address:
        await until(lambda: engine.status().state != "loading", 120)
        key = {"x-api-key": address.api_key or ""}
        async with httpx2.AsyncClient(base_url=address.url, headers=key, timeout=120) as client:

            async def ask(number: int) -> tuple[int, bool]:
                path = list(LAST)[number % len(LAST)]
                body = DOORS[path] | {"stream": True, "seed": number}
                answer = await client.post(path, json=body | LENGTHS.get(path, {"max_tokens": 40}))
                if answer.status_code == 200:
                    return 200, sum(answer.text.count(last) for last in LAST[path]) == 1
                return answer.status_code, answer.headers.get("retry-after") == "1"

            answers = [one for _ in range(4) for one in await gathered(ask, 24)]
            await until(lambda: not engine.open_requests, 60)
    assert all(right for _, right in answers)
    assert {status for status, _ in answers} == {200, 429}
    assert ledger.not_ended_once() == 0
    assert ledger.requests == len(answers)
    endings = ledger.endings()
    assert endings["overloaded"] == sum(status == 429 for status, _ in answers)
    assert "cancelled" not in endings


async def gathered(
    ask: Callable[[int], Awaitable[tuple[int, bool]]], count: int
) -> list[tuple[int, bool]]:
    """All of them at once."""
    return await asyncio.gather(*map(ask, range(count)))
