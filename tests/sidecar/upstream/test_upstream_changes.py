"""What becomes of an upstream meanwhile: another model, a long queue, a reply without an end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scripted_upstream import Answer, Call, ScriptedUpstream, delta, text, upstream, usage
from test_upstream import chat, door, four, gap
from waiting import until

from engine.testing import FakeEngine


def listed(name: str) -> dict[str, Any]:
    return {"data": [{"id": name, "max_model_len": 4096}]}


async def serve_one_model(served: ScriptedUpstream, call: Call, answer: Answer) -> None:
    """As vLLM: 404 for each name but its own."""
    if call.body["model"] == served.models["data"][0]["id"]:
        await four(call, answer)
    else:
        await answer.json({"error": {"message": "The model does not exist.", "code": 404}}, 404)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstream_that_is_restarted_with_another_model(stream: bool) -> None:
    async def script(call: Call, answer: Answer) -> None:
        await serve_one_model(served, call, answer)

    served = ScriptedUpstream(script, listed("old"))
    await served.start()
    async with door(served.url) as (client, engine):
        before = await chat(client)
        await served.stop()
        served.models = listed("new")
        await served.start()
        after = [await chat(client, stream=stream) for _ in range(2)]
        status = engine.status()
    await served.stop()
    assert before.json()["pillion"]["served_by"] == f"old at {served.url}"
    for answer in after:
        assert answer.status_code == 200, answer.text
        assert f"new at {served.url}" in answer.text
    assert [call.body["model"] for call in served.calls] == ["old", "old", "new", "new"]
    assert status.model is not None
    assert (status.model.id, status.model.context) == ("new", 4096)
    assert "decodes new" in status.notes[0]


async def test_many_find_out_at_once_that_the_model_is_another() -> None:
    async def script(call: Call, answer: Answer) -> None:
        await serve_one_model(served, call, answer)

    async with upstream(script, listed("old")) as served, door(served.url) as (client, _):
        served.models = listed("new")
        answers = await asyncio.gather(*(chat(client) for _ in range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8


@pytest.mark.parametrize("named", [None, "old"])
async def test_what_is_not_found_for_another_reason_is_refused(named: str | None) -> None:
    async def script(call: Call, answer: Answer) -> None:
        await answer.json({"error": {"message": "no such thing"}}, 404)

    async with upstream(script, listed("old")) as served:
        async with door(served.url, model=named) as (client, _):
            if named is not None:
                # The settings say which; it is not exchanged for what is there.
                served.models = listed("new")
            answer = await chat(client)
    assert answer.status_code == 400
    assert "no such thing" in answer.json()["error"]["message"]
    assert len(served.calls) == 1


async def test_a_path_that_is_not_found_is_asked_for_in_another_way() -> None:
    async def script(call: Call, answer: Answer) -> None:
        if "suffix" in call.body:
            await answer.json({"detail": "Not Found"}, 404)
        else:
            await answer.events(text("42", "stop"))

    async with upstream(script) as served, door(served.url) as (_, engine):
        assert [await gap(engine), await gap(engine)] == ["42", "42"]
    assert ["suffix" in call.body for call in served.calls] == [True, False, False]


async def test_one_that_is_silent_is_not_down_for_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(call: Call, answer: Answer) -> None:
        if call.body["seed"] == 1:
            await asyncio.Event().wait()
        await four(call, answer)

    async with upstream(script) as served, door(served.url, FakeEngine("local")) as (client, _):
        queued = (await chat(client, seed=1)).json()
        other = (await chat(client, seed=2)).json()
    assert "say anything in time" in queued["pillion"]["fallback"]
    said = [one["choices"][0]["message"]["content"] for one in (queued, other)]
    assert said == ["local", "four"]
    # It is not asked again, which would make a long queue longer.
    assert [call.body["seed"] for call in served.calls] == [1, 2]
    assert "is down" not in caplog.text


async def test_one_that_is_silent_and_lists_no_model_is_down() -> None:
    async def script(_call: Call, _answer: Answer) -> None:
        served.models = {"data": []}
        await asyncio.Event().wait()

    async with (
        upstream(script) as served,
        door(served.url, FakeEngine("local")) as (client, engine),
    ):
        await chat(client)
        await until(lambda: "is down" in engine.status().notes[0])


async def test_a_reply_in_one_that_has_no_end() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        await answer.head(200, "application/json")
        for _ in range(20):
            await answer.raw(b" " * (1 << 20))
        await answer.raw(b"{}")

    async with upstream(script) as served, door(served.url) as (client, _):
        answer = await chat(client)
    assert "is longer than 16777216 bytes" in answer.json()["error"]["message"]
    assert len(served.calls) == 1


async def test_a_reply_in_one() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        await answer.json(delta("stop", content="four") | {"usage": usage(9, 1)["usage"]})

    async with upstream(script) as served, door(served.url) as (client, _):
        reply = (await chat(client)).json()
    assert reply["choices"][0]["message"]["content"] == "four"
