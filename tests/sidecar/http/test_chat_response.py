"""What a chat request gets back, whole and streamed."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from typing import Any

from http_door import COMPLETIONS, HELLO, asgi_door, chat, error_of, events_of, post, socket_door
from waiting import until

from engine import CacheUse, Overloaded, RequestError
from engine.testing import EOS, FakeEngine
from sidecar.http.limits import Limits

FACTS = {
    "cached_tokens": 4,
    "accepted": 6,
    "rejected": 2,
    "rounds": 2,
    "width": 5,
    "width_reason": "rows of width 6 differ",
    "exact": False,
    "inexact_reason": "widths that did not probe equal are in use",
    "queue_ms": 1.23456,
    "prefill_ms": 2.0,
    "decode_ms": 3.5,
    "cache": CacheUse(memory=3, disk=1, kind="turn", saved_ms=12.5),
}
USAGE = {
    "prompt_tokens": 13,
    "completion_tokens": 5,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {
        "accepted_prediction_tokens": 6,
        "rejected_prediction_tokens": 2,
    },
}
PILLION = {
    "seed": 11,
    "exact": False,
    "inexact_reason": "widths that did not probe equal are in use",
    "token_hash": hashlib.sha256(
        b"".join(token.to_bytes(4, "little") for token in [*b"four", EOS])
    ).hexdigest(),
    "tokens_per_round": 2.0,
    "rounds": 2,
    "accepted": 6,
    "rejected": 2,
    "width": 5,
    "width_reason": "rows of width 6 differ",
    "queue_ms": 1.235,
    "prefill_ms": 2.0,
    "decode_ms": 3.5,
    "cache": {"memory": 3, "disk": 1, "kind": "turn", "saved_ms": 12.5},
    "regimes": [],
}


async def test_a_whole_reply() -> None:
    async with asgi_door(FakeEngine("four", facts=FACTS)) as client:
        response = await chat(client, seed=11)
        again = await chat(client, seed=11)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "chat.completion",
        "model": "fake",
        "system_fingerprint": "fp_fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "four", "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": USAGE,
        "pillion": PILLION,
    }
    assert again.json()["id"] != response.json()["id"]


async def streamed(engine: FakeEngine, **fields: Any) -> list[Any]:
    async with asgi_door(engine) as client:
        response = await chat(client, stream=True, **fields)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


async def test_a_streamed_reply_in_order() -> None:
    events = await streamed(
        FakeEngine("four", facts=FACTS), seed=11, stream_options={"include_usage": True}
    )
    chunks = [event for event in events if isinstance(event, dict)]
    assert events[-1] == "[DONE]"
    assert {(c["id"], c["object"], c["model"]) for c in chunks} == {
        (chunks[0]["id"], "chat.completion.chunk", "fake")
    }
    assert [c["choices"] for c in chunks] == [
        [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]
        for delta, reason in [
            ({"role": "assistant", "content": ""}, None),
            *[({"content": letter}, None) for letter in "four"],
            ({}, "stop"),
        ]
    ] + [[]]
    assert [c["usage"] for c in chunks] == [None] * 6 + [USAGE]
    assert [c.get("pillion") for c in chunks] == [None] * 5 + [PILLION, None]


async def test_usage_is_streamed_only_when_asked_for() -> None:
    chunks = [event for event in await streamed(FakeEngine("hi")) if isinstance(event, dict)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in chunk for chunk in chunks)


async def test_max_tokens_ends_with_length() -> None:
    async with asgi_door(FakeEngine("abcdef")) as client:
        choice = (await chat(client, max_tokens=3)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == "abc"
    events = await streamed(FakeEngine("abcdef"), max_tokens=3)
    assert events[-2]["choices"][0]["finish_reason"] == "length"


async def test_no_event_splits_a_character() -> None:
    text = "é😀漢"
    events = await streamed(FakeEngine(text))
    deltas = [e["choices"][0]["delta"].get("content") for e in events if isinstance(e, dict)]
    assert deltas == ["", *text, None]


async def test_comments_tell_the_progress_through_a_long_prompt() -> None:
    long = [{"role": "user", "content": "x" * 200}]
    events = await streamed(FakeEngine("k", prefill_seconds=0.001), messages=long)
    total = 208
    assert events[1:6] == [f": prefill {done}/{total}" for done in (0, 64, 128, 192, total)]


async def test_silence_is_filled_with_comments() -> None:
    limits = Limits(first_event=0.01, keep_alive=0.01)
    async with asgi_door(FakeEngine("ab", round_seconds=0.05), limits=limits) as client:
        events = events_of((await chat(client, stream=True)).text)
    assert ": keep-alive" in events
    assert [e["choices"][0]["delta"].get("content") for e in events if isinstance(e, dict)] == [
        "",
        "a",
        "b",
        None,
    ]


async def test_a_stream_begins_while_the_request_still_waits() -> None:
    """A client must not time out on the status line because others are before it."""
    release = threading.Event()

    def reply(request: Any) -> str:
        release.wait(10)
        return "x"

    limits = Limits(first_event=0.01, keep_alive=0.01)
    async with socket_door(FakeEngine(reply), limits=limits) as served:
        reader, writer = await served.raw()
        writer.write(post(b'{"stream":true,"messages":[{"role":"user","content":"x"}]}'))
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"keep-alive\n"), 10)
        release.set()
        assert b"[DONE]" in await asyncio.wait_for(reader.readuntil(b"[DONE]"), 10)
        writer.close()


async def test_a_prompt_that_does_not_fit() -> None:
    engine = FakeEngine(context=40)
    async with asgi_door(engine) as client:
        for stream in (False, True):
            long = [{"role": "user", "content": "x" * 40}]
            response = await chat(client, messages=long, stream=stream)
            assert response.status_code == 400
            error = error_of(response)
            assert error["code"] == "context_length_exceeded"
            assert error["param"] == "messages"
            assert error["type"] == "invalid_request_error"
            assert (
                "This model's maximum context length is 40 tokens. However, your"
                in (error["message"])
            )
            assert "48 tokens" in error["message"]
    assert engine.seen == []


async def test_a_prompt_must_leave_room_for_one_token() -> None:
    engine = FakeEngine("abc", context=40)
    async with asgi_door(engine) as client:
        full = await chat(client, messages=[{"role": "user", "content": "x" * 32}])
        assert error_of(full)["code"] == "context_length_exceeded"
        assert engine.seen == []
        fits = await chat(client, messages=[{"role": "user", "content": "x" * 31}])
        assert fits.json()["usage"]["prompt_tokens"] == 39
        assert fits.json()["choices"][0]["finish_reason"] == "length"


async def test_a_prompt_that_cannot_fit_is_not_even_rendered() -> None:
    engine = FakeEngine(context=40)
    async with asgi_door(engine) as client:
        engine.codec = None  # rendering would now answer 503
        text = "x" * (40 * 64 + 1)
        for content in (text, [{"type": "text", "text": text}]):
            response = await chat(client, messages=[{"role": "user", "content": content}])
            assert error_of(response)["code"] == "context_length_exceeded"


async def test_the_engine_may_say_so_too() -> None:
    def reply(request: Any) -> str:
        raise RequestError("too long", field="messages", code="context_length_exceeded")

    async with asgi_door(FakeEngine(reply)) as client:
        for stream in (False, True):
            response = await chat(client, stream=stream)
            assert response.status_code == 400
            assert error_of(response)["code"] == "context_length_exceeded"


async def test_a_full_queue_is_429_with_retry_after() -> None:
    def reply(request: Any) -> str:
        raise Overloaded("256 requests are waiting; try again later")

    async with asgi_door(FakeEngine(reply)) as client:
        for stream in (False, True):
            response = await chat(client, stream=stream)
            assert response.status_code == 429
            assert response.headers["retry-after"] == "1"
            error = error_of(response)
            assert error["code"] == "overloaded"
            assert error["type"] == "rate_limit_error"


async def test_an_engine_that_dies_before_the_reply_is_500() -> None:
    async with asgi_door(FakeEngine("abc", dies_after=2)) as client:
        response = await chat(client)
    assert response.status_code == 500
    assert error_of(response) == {
        "message": "the engine died",
        "type": "server_error",
        "param": None,
        "code": "engine_error",
    }


async def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error_event() -> None:
    events = await streamed(FakeEngine("abc", dies_after=2))
    deltas = [e["choices"][0]["delta"].get("content") for e in events[2:-1]]
    assert deltas == ["a", "b"]
    assert events[-1]["error"]["code"] == "engine_error"
    assert events[-1]["error"]["message"] == "the engine died"


async def test_a_reply_that_somebody_else_cancels_is_no_success() -> None:
    engine = FakeEngine("x" * 500, round_seconds=0.01)
    async with asgi_door(engine) as client:

        async def cancel_first() -> None:
            await until(lambda: any(engine.steps.values()))
            engine.cancel(engine.seen[-1].id)

        response, _ = await asyncio.gather(chat(client), cancel_first())
        assert response.status_code == 503
        assert error_of(response)["code"] == "cancelled"
        engine.steps.clear()
        response, _ = await asyncio.gather(chat(client, stream=True), cancel_first())
        assert events_of(response.text)[-1]["error"]["code"] == "cancelled"


async def test_while_the_model_loads_everything_is_503_with_retry_after() -> None:
    loading = threading.Event()
    async with asgi_door(FakeEngine(loading=loading), loaded=False) as client:
        for response in (
            await client.post(COMPLETIONS, json={"messages": HELLO}),
            await client.post(COMPLETIONS, json={"messages": HELLO, "stream": True}),
            await client.get("/v1/models"),
            await client.get("/v1/models/fake"),
        ):
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            error = error_of(response)
            assert error["code"] == "not_ready"
            assert error["type"] == "server_error"
            assert "loading" in error["message"]
        health = await client.get("/health")
        assert health.status_code == 503
        assert health.json()["state"] == "loading"
