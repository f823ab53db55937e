"""Clients that behave badly: what is counted, and a short run against a real engine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from waiting import until

from engine import Chunk, EngineOptions, Failed, Finished, GenerateRequest, Priority
from sidecar.cli.bench_chaos import run
from sidecar.jobs.chaos import Chaos, Clients, Ledger
from sidecar.runtime_dir import Address

FINE: dict[str, Any] = {
    "seconds": 600.0,
    "requests": 5,
    "endings": {},
    "not_ended_once": 0,
    "answers": {"200": 3, "stream": 2, "400": 1, "503": 1, "429": 1, "left": 4, "garbage": 2},
    "broken_streams": 0,
    "leaked_sequences": 0,
    "rss_growth_share": 0.0,
    "max_wait_rounds_interactive": 2,
}


def post(ledger: Ledger, id: str, priority: Priority = Priority.AGENT) -> None:
    with ledger.posted(GenerateRequest(id=id, prompt=(1,), priority=priority)):
        pass


def finished(id: str, reason: str = "stop") -> Finished:
    return Finished(id=id, finish_reason=reason, tokens=(), token_hash="", seed=0, prompt_tokens=1)


def test_endings_are_counted_by_request() -> None:
    ledger = Ledger()
    for id in "abc":
        post(ledger, id)
    for event in (finished("a"), finished("b"), finished("b", "cancelled")):
        ledger.emitted(event)
    assert ledger.requests == 3
    assert ledger.endings() == {"stop": 2, "cancelled": 1}
    assert ledger.not_ended_once() == 2


def test_a_keystrokes_wait_is_counted_in_turns_of_others() -> None:
    ledger = Ledger()
    for id, priority in (("agent", Priority.AGENT), ("key", Priority.INTERACTIVE)):
        post(ledger, id, priority)
    ledger.turned("agent")
    ledger.emitted(Chunk(id="agent", tokens=(1,), text="a"))
    post(ledger, "other key", Priority.INTERACTIVE)
    ledger.turned("other key")
    ledger.emitted(finished("other key"))
    assert ledger.max_wait == 1
    # Behind the first token it still must not wait, and not for what nobody hears of.
    ledger.emitted(Chunk(id="key", tokens=(1,), text="a"))
    ledger.turned("key")
    ledger.turned("audit of key")
    ledger.turned("")
    assert ledger.max_wait == 3
    ledger.emitted(finished("key"))
    ledger.turned("agent")
    assert ledger.max_wait == 3


def test_a_turn_does_not_end_while_a_key_is_queued() -> None:
    ledger = Ledger()
    told = threading.Event()

    def end_a_turn() -> None:
        ledger.turned("agent")
        told.set()

    thread = threading.Thread(target=end_a_turn)
    with ledger.posted(GenerateRequest(id="key", prompt=(1,), priority=Priority.INTERACTIVE)):
        # The engine may refuse it at once, from the same thread.
        ledger.emitted(Failed(id="key", code="engine_error", message="stopped"))
        thread.start()
        assert not told.wait(0.05)
    thread.join(60)
    assert told.is_set()
    assert ledger.endings() == {"engine_error": 1}


def test_what_should_not_have_happened_is_said() -> None:
    assert Chaos(**FINE).problems == []
    bad = {
        "answers": {"200": 9, "500": 1},
        "not_ended_once": 1,
        "broken_streams": 1,
        "leaked_sequences": 1,
        "rss_growth_share": 0.2,
        "max_wait_rounds_interactive": 3,
    }
    for name, value in bad.items():
        assert len(Chaos(**FINE | {name: value}).problems) == 1
    assert Chaos(**FINE | {"seconds": 20.0, "rss_growth_share": 0.2}).problems == []


async def test_a_daemon_that_fails_at_everything_is_found_out() -> None:
    open: set[asyncio.Task[None] | None] = set()

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
        writer.write(b"HTTP/1.1 500 Wrong\r\n\r\n")
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        open.discard(asyncio.current_task())

    async with await asyncio.start_server(fail, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        clients = Clients(Address(pid=1, socket="", url=url, version="", model=""), 0)
        async with asyncio.timeout(60):
            while not {"500", "garbage 500"} <= set(clients.answers):
                await clients.run(16, 0.05)
            await until(lambda: not open)
    said = Chaos(**FINE | {"answers": dict(clients.answers)}).problems
    assert [problem.split(" ", 1)[1] for problem in said] == [
        "requests were answered with 500",
        f"was answered with 500, {clients.answers['garbage 500']} times",
    ]


@pytest.mark.slow
def test_a_short_run_owes_nobody_anything() -> None:
    result = run(EngineOptions(), seconds=20)
    assert result.problems == []
    assert result.requests > 20
    assert {"cancelled", "length"} <= set(result.endings)
    assert {"left", "garbage", "stream"} <= set(result.answers)
