"""An upstream behind the doors: what it is asked, what becomes of its replies, and of its ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from scripted_upstream import Answer, Call, Script, ScriptedUpstream, delta, text, upstream, usage
from waiting import until

from engine import EngineClient, Event, Finished, GenerateRequest, RequestError
from engine.testing import FakeEngine
from sidecar.config import CompletionConfig, Config
from sidecar.http.app import create_app
from sidecar.jobs.completion import CompletionRequest, complete, uses_context
from sidecar.services import Services
from sidecar.upstream.backend import UpstreamBackend
from sidecar.upstream.connection import Patience

QUICK = Patience(connect=5, silence=0.3, pause=0.01, again=0.02)
HELLO = [{"role": "user", "content": "hello"}]
LLAMA = {"default_generation_settings": {"n_ctx": 2048}}


@contextlib.asynccontextmanager
async def door(
    url: str, local: FakeEngine | None = None, **options: Any
) -> AsyncIterator[tuple[httpx2.AsyncClient, EngineClient]]:
    """The HTTP door of a daemon with that upstream."""
    backend = UpstreamBackend(url, local=local, patience=QUICK, **options)
    engine = EngineClient(backend)
    engine.start()
    try:
        await asyncio.wait_for(engine.ready(), 20)
        services = Services(engine=engine, config=Config(), shutdown=lambda: None)
        transport = httpx2.ASGITransport(app=create_app(services))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client, engine
        assert engine.open_requests == 0
    finally:
        await engine.stop()


async def chat(client: httpx2.AsyncClient, **fields: Any) -> httpx2.Response:
    body = {"messages": HELLO, **fields}
    return await client.post("/v1/chat/completions", json=body)


async def four(_call: Call, answer: Answer) -> None:
    await answer.events(delta(content="fo"), delta("stop", content="ur"), usage(9, 2))


async def test_a_chat() -> None:
    async with upstream(four) as served, door(served.url, key="secret") as (client, _):
        answer = await chat(
            client, max_tokens=7, temperature=0.5, seed=3, stop=["x"], top_k=4, model="big"
        )
    [call] = served.calls
    assert call.path == "/v1/chat/completions"
    assert call.headers["authorization"] == "Bearer secret"
    asked = call.body
    assert asked["messages"] == HELLO
    assert (asked["model"], asked["max_tokens"], asked["seed"]) == ("big", 7, 3)
    assert (asked["temperature"], asked["stop"], asked["top_k"]) == (0.5, ["x"], 4)
    assert "min_p" not in asked
    reply = answer.json()
    assert reply["choices"][0]["message"]["content"] == "four"
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["prompt_tokens"] == 9
    assert reply["usage"]["completion_tokens"] == 2
    facts = reply["pillion"]
    assert facts["served_by"] == f"big at {served.url}"
    assert facts["exact"] is False
    assert "not known" in facts["inexact_reason"]
    assert facts["token_hash"] == ""


async def test_reasoning_and_tool_calls() -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        for name in ("look", "find")
    ]

    async def script(_call: Call, answer: Answer) -> None:
        def called(index: int, **function: str) -> dict[str, Any]:
            return delta(tool_calls=[{"index": index, "id": f"x{index}", "function": function}])

        await answer.events(
            delta(reasoning_content="hm"),
            delta(reasoning_content="m"),
            delta(content="so \ud83d\ude00"),
            called(0, name="look", arguments='{"a"'),
            called(0, arguments=":1}"),
            called(1, name="find", arguments="{}"),
            delta("tool_calls"),
        )

    async with upstream(script) as served, door(served.url) as (client, _):
        whole = (await chat(client, tools=tools, tool_choice="required", seed=1)).json()
        again = (await chat(client, tools=tools, tool_choice="required", seed=1)).json()
        streamed = (await chat(client, tools=tools, stream=True)).text
    message = whole["choices"][0]["message"]
    assert message["reasoning_content"] == "hmm"
    assert message["content"] == "so \ud83d\ude00".encode("utf-16", "surrogatepass").decode(
        "utf-16"
    )
    calls = [call["function"] for call in message["tool_calls"]]
    assert calls == [
        {"name": "look", "arguments": '{"a":1}'},
        {"name": "find", "arguments": "{}"},
    ]
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    ids = [
        [call["id"] for call in one["choices"][0]["message"]["tool_calls"]]
        for one in (whole, again)
    ]
    assert ids[0] == ids[1]
    assert served.calls[0].body["tool_choice"] == "required"
    assert served.calls[0].body["tools"] == tools
    assert '"reasoning_content":"hm"' in streamed
    assert streamed.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        (
            {"response_format": {"type": "json_object"}},
            {"name": "reply", "schema": {"type": "object"}, "strict": True},
        ),
        ({"reasoning_effort": "low"}, "low"),
    ],
)
async def test_what_is_handed_on(fields: dict[str, Any], asked: Any) -> None:
    async with upstream(four) as served, door(served.url) as (client, _):
        await chat(client, **fields)
    body = served.calls[0].body
    held = body.get("response_format", {}).get("json_schema")
    assert asked in (held, body.get("chat_template_kwargs", {}).get("reasoning_effort"))


async def test_raw_completions_and_token_ids() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        await answer.events(text("a"), text("b", "length"), usage(3, 2))

    async with upstream(script) as served, door(served.url) as (client, _):
        one = await client.post("/v1/completions", json={"prompt": "<|x|> é", "max_tokens": 2})
        await client.post("/v1/completions", json={"prompt": [5, 6], "max_tokens": 2})
        await client.post("/v1/completions", json={"prompt": "p", "suffix": "s", "max_tokens": 2})
    assert one.json()["choices"][0]["text"] == "ab"
    assert one.json()["choices"][0]["finish_reason"] == "length"
    first, second, third = (call.body for call in served.calls)
    assert first["prompt"] == "<|x|> é"
    assert second["prompt"] == [5, 6]
    assert (third["prompt"], third["suffix"]) == ("p", "s")


async def gap(engine: EngineClient) -> str:
    request = CompletionRequest(prefix="def f():\n    return ", suffix="\n\nx = 1\n")
    return (await complete(engine, CompletionConfig(), request)).text


async def test_gaps_by_infill() -> None:
    async def script(call: Call, answer: Answer) -> None:
        await answer.events(
            {"content": "4", "stop": False},
            {"content": "2\n", "stop": True, "stop_type": "eos", "tokens_predicted": 2},
            done=False,
        )

    async with upstream(script, props=LLAMA) as served, door(served.url) as (_, engine):
        assert await gap(engine) == "42"
        assert uses_context(Config().workspace, engine)
        status = engine.status()
    assert status.model is not None
    assert status.model.context == 2048
    [call] = served.calls
    assert call.path == "/infill"
    assert call.body["input_prefix"] == "def f():\n    return "
    assert call.body["input_suffix"] == "\n\nx = 1\n"
    assert call.body["n_predict"] == CompletionConfig().max_tokens


async def test_gaps_of_another_pillion_are_streamed() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        await answer.events(text("42", "stop"))

    props = LLAMA | {"build_info": "pillion 1.0"}
    async with upstream(script, props=props) as served, door(served.url) as (_, engine):
        assert await gap(engine) == "42"
    [call] = served.calls
    assert (call.path, call.body["suffix"]) == ("/v1/completions", "\n\nx = 1\n")


async def test_gaps_by_the_tokens_of_a_known_model() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        await answer.events(text("42", "stop"))

    models = {"data": [{"id": "Qwen/Qwen2.5-Coder-7B"}]}
    async with upstream(script, models) as served, door(served.url) as (_, engine):
        assert await gap(engine) == "42"
    [call] = served.calls
    assert call.body["prompt"] == (
        "<|fim_prefix|>def f():\n    return <|fim_suffix|>\n\nx = 1\n<|fim_middle|>"
    )


async def test_gaps_where_suffix_is_not_supported() -> None:
    async def script(call: Call, answer: Answer) -> None:
        if "suffix" in call.body:
            refusal = {"object": "error", "message": "suffix is not currently supported"}
            await answer.json(refusal, 400)
        else:
            await answer.events(text("42", "stop"))

    async with upstream(script) as served, door(served.url) as (_, engine):
        assert await gap(engine) == "42"
        assert await gap(engine) == "42"
        assert "before the cursor alone" in engine.status().notes[0]
    assert ["suffix" in call.body for call in served.calls] == [True, False, False]


async def test_a_gap_that_is_refused_in_every_way_changes_nothing() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        await answer.json({"error": {"message": "seed is bad", "param": "seed"}}, 400)

    async with upstream(script, props=LLAMA) as served, door(served.url) as (_, engine):
        with pytest.raises(RequestError, match="seed is bad"):
            await gap(engine)
        assert "gaps by /infill" in engine.status().notes[0]
    assert [call.path for call in served.calls] == [
        "/infill",
        "/v1/completions",
        "/v1/completions",
    ]


async def test_cancelling_closes_the_connection() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        await answer.head(200, "text/event-stream")
        await answer.event(delta(content="on and on"))
        await asyncio.Event().wait()

    async with upstream(script) as served, door(served.url) as (_, engine):
        prompt = await engine.chat(HELLO)
        async with engine.generate(GenerateRequest(id="a", prompt=prompt.tokens)) as reply:
            await anext(reply)
            reply.cancel()
            finished = await reply.finished()
        assert finished.finish_reason == "cancelled"
        await asyncio.wait_for(served.calls[0].gone.wait(), 20)
        totals = engine.status().totals
    assert (totals.requests, totals.cancelled) == (1, 1)


async def test_a_refusal_names_the_field() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        error = {"message": "n is too large", "param": "n", "code": 400, "type": "BadRequest"}
        await answer.json({"error": error}, 400)

    async with upstream(script) as served, door(served.url, FakeEngine("local")) as (client, _):
        answer = await chat(client)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"
    assert "n is too large" in answer.json()["error"]["message"]
    assert len(served.calls) == 1


async def test_a_prompt_that_is_too_long() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        said = "This model's maximum context length is 8192 tokens."
        await answer.json({"object": "error", "message": said, "code": 400}, 400)

    async with upstream(script) as served, door(served.url) as (client, _):
        answer = await chat(client)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_log_probabilities_are_refused() -> None:
    async with upstream(four) as served, door(served.url) as (client, _):
        answer = await chat(client, logprobs=True)
    assert answer.json()["error"]["param"] == "logprobs"
    assert served.calls == []


class Broken:
    """Scripts that go wrong before the first word, in ways in which upstreams do."""

    async def dies(self, _call: Call, answer: Answer) -> None:
        answer.die()

    async def dies_behind_its_head(self, _call: Call, answer: Answer) -> None:
        await answer.head(200, "text/event-stream")
        answer.die()

    async def hangs(self, _call: Call, answer: Answer) -> None:
        await asyncio.Event().wait()

    async def fails(self, _call: Call, answer: Answer) -> None:
        await answer.json({"error": {"message": "out of memory"}}, 500)

    async def is_overrun(self, _call: Call, answer: Answer) -> None:
        await answer.json({"detail": "no worker"}, 503)

    async def talks_nonsense(self, _call: Call, answer: Answer) -> None:
        await answer.head(200, "text/event-stream")
        await answer.raw(b"data: {nonsense\n\n")

    async def is_something_else(self, _call: Call, answer: Answer) -> None:
        await answer.events(["what"], {"choices": "none"})

    async def wants_a_key(self, _call: Call, answer: Answer) -> None:
        await answer.json({"error": "Unauthorized"}, 401)

    async def ends_early(self, _call: Call, answer: Answer) -> None:
        await answer.events()

    async def gives_up(self, _call: Call, answer: Answer) -> None:
        await answer.events({"error": {"message": "worker died"}})


QUICKEST = ("dies", "fails", "talks_nonsense")
WAYS = [name for name in vars(Broken) if not name.startswith("_")]


@pytest.mark.parametrize(
    "way", [way if way in QUICKEST else pytest.param(way, marks=pytest.mark.slow) for way in WAYS]
)
async def test_before_the_first_word_the_local_model_takes_over(way: str) -> None:
    script: Script = getattr(Broken(), way)
    async with upstream(script) as served, door(served.url, FakeEngine("local")) as (client, _):
        reply = (await chat(client, stream=False)).json()
    assert reply["choices"][0]["message"]["content"] == "local"
    assert reply["pillion"]["fallback"]
    assert "served_by" not in reply["pillion"]
    assert len(served.calls) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_without_a_local_model_each_is_an_error(way: str) -> None:
    script: Script = getattr(Broken(), way)
    async with upstream(script) as served, door(served.url) as (client, engine):
        answer = await chat(client)
        assert engine.status().totals.failed == 1
    assert answer.status_code in (500, 503)
    assert answer.json()["error"]["message"]


async def test_in_the_middle_of_a_reply_nothing_is_tried_again() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        await answer.head(200, "text/event-stream")
        await answer.event(delta(content="half a "))
        answer.die()

    async with upstream(script) as served, door(served.url, FakeEngine("local")) as (client, _):
        streamed = (await chat(client, stream=True)).text
    assert "half a " in streamed
    assert "local" not in streamed.split("error")[0]
    last = json.loads(streamed.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["type"] == "server_error"
    assert len(served.calls) == 1


async def test_too_many_requests_are_tried_once_more_and_said() -> None:
    async def script(call: Call, answer: Answer) -> None:
        if len(served.calls) % 2 or call.body["seed"] == 1:
            await answer.json({"error": {"message": "slow down"}}, 429, "retry-after: 0.01")
        else:
            await four(call, answer)

    async with upstream(script) as served, door(served.url, FakeEngine("local")) as (client, _):
        patient = await chat(client, seed=0)
        refused = await chat(client, seed=1)
    assert patient.json()["choices"][0]["message"]["content"] == "four"
    assert refused.status_code == 429
    assert refused.headers["retry-after"]
    assert len(served.calls) == 4


async def test_an_upstream_that_goes_and_comes_back() -> None:
    served = ScriptedUpstream(four)
    await served.start()
    async with door(served.url, FakeEngine("local")) as (client, engine):
        await served.stop()
        first = (await chat(client)).json()
        note = engine.status().notes[0]
        second = (await chat(client)).json()
        await served.start()
        await until(lambda: "is down" not in engine.status().notes[0])
        third = (await chat(client)).json()
        totals = engine.status().totals
    await served.stop()
    assert "is down" in note
    assert "fake answers here meanwhile" in note
    said = [one["choices"][0]["message"]["content"] for one in (first, second, third)]
    assert said == ["local", "local", "four"]
    assert totals.requests >= 1


async def test_nobody_there_at_the_start() -> None:
    local = FakeEngine("<think>hm</think>local")
    async with door("http://127.0.0.1:9/v1", local) as (client, engine):
        reply = (await chat(client)).json()
        assert "is down" in engine.status().notes[0]
    message = reply["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "local")
    assert local.seen[0].prompt[-1] < 300


async def test_cancelling_the_local_model() -> None:
    local = FakeEngine("x" * 400, round_seconds=0.002)
    async with door("http://127.0.0.1:9/v1", local) as (_, engine):
        prompt = await engine.chat(HELLO)
        async with engine.generate(GenerateRequest(id="a", prompt=prompt.tokens)) as reply:
            async for event in reply:
                if not isinstance(event, Finished):
                    reply.cancel()
    assert local.steps["a"] < 400


async def test_the_end_of_the_daemon_ends_every_reply() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        await asyncio.Event().wait()

    async with upstream(script) as served, door(served.url) as (_, engine):
        prompt = await engine.chat(HELLO)
        reply = engine.generate(GenerateRequest(id="a", prompt=prompt.tokens))
        await until(lambda: served.calls)
        await engine.stop()
        with pytest.raises(Exception, match="the daemon is stopping"):
            await reply.finished()
        assert engine.status().state == "stopped"


class LateBackend(UpstreamBackend):
    """Its thread begins when somebody has called into it so many times."""

    def __init__(self, calls: int = 1) -> None:
        super().__init__("http://127.0.0.1:9/v1", patience=QUICK)
        self.left = calls
        self.called = threading.Event()

    def _run(self) -> None:
        self.called.wait()
        super()._run()

    def _call(self, work: Callable[..., object], *args: object) -> None:
        super()._call(work, *args)
        self.left -= 1
        if self.left <= 0:
            self.called.set()


def test_a_stop_before_the_thread_has_begun_is_heeded() -> None:
    backend = LateBackend()
    backend.start(lambda _: None, lambda: None)
    stopping = threading.Thread(target=backend.stop, daemon=True)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive()
    assert backend.status().state == "stopped"


async def test_a_request_that_is_cancelled_at_once_has_its_ending() -> None:
    events: list[Event] = []
    backend = LateBackend(calls=2)
    backend.start(events.append, lambda: None)
    backend.post(GenerateRequest(id="a", prompt=(1,)))
    backend.cancel("a")
    await until(lambda: events)
    await asyncio.to_thread(backend.stop)
    [ending] = events
    assert isinstance(ending, Finished)
    assert ending.finish_reason == "cancelled"
