"""Calls that a reply has to make, whatever the upstream makes of ``tool_choice``; predictions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted_upstream import Answer, Call, delta, upstream, usage
from test_upstream import LLAMA, chat, door, four

from engine.testing import FakeEngine


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


TOOLS = [tool("look"), tool("find")]
NAMED = {"type": "function", "function": {"name": "find"}}


async def schemas_alone(call: Call, answer: Answer) -> None:
    """Takes no notice of tools, but holds replies to a schema, as a small llama.cpp does."""
    if "response_format" not in call.body:
        await answer.events(delta(content="I would "), delta("stop", content="look."), usage(9, 4))
        return
    held = call.body["response_format"]["json_schema"]["schema"]
    name = held.get("anyOf", [held])[0]["properties"]["name"]["const"]
    text = json.dumps({"name": name, "arguments": {"a": 1}})
    await answer.events(
        delta(content=text[:9]), delta(content=text[9:]), delta("stop"), usage(9, 9)
    )


@pytest.mark.parametrize(("choice", "name"), [("required", "look"), (NAMED, "find")])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_is_made_by_schema_where_tool_choice_is_not_heeded(
    choice: Any, name: str, stream: bool
) -> None:
    async with upstream(schemas_alone) as served, door(served.url) as (client, _):
        for _ in range(2):
            answer = await chat(client, tools=TOOLS, tool_choice=choice, stream=stream)
            assert f'"name":"{name}","arguments":"{{\\"a\\":1}}"' in answer.text
            assert '"finish_reason":"tool_calls"' in answer.text
            # What was said in the place of a call is no part of the reply.
            assert "would" not in answer.text
    # Once to find out; from then on it is asked in the way that works.
    assert ["tools" in call.body for call in served.calls] == [True, False, False]
    told = served.calls[1].body["messages"]
    assert [message["role"] for message in told] == ["system", "user"]
    assert f'"name":"{name}"' in told[0]["content"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_reasons_and_heeds_no_tool_choice(stream: bool) -> None:
    async def script(call: Call, answer: Answer) -> None:
        if "response_format" not in call.body:
            await answer.events(
                delta(reasoning_content="no call"), delta("stop", content="Look."), usage(9, 4)
            )
            return
        made = json.dumps({"name": "look", "arguments": {"a": 1}})
        await answer.events(
            delta(reasoning_content="one call"), delta("stop", content=made), usage(9, 9)
        )

    async with upstream(script) as served, door(served.url) as (client, _):
        for _ in range(2):
            answer = await chat(client, tools=TOOLS, tool_choice="required", stream=stream)
            assert '"name":"look","arguments":"{\\"a\\":1}"' in answer.text
            assert '"reasoning_content":"one call"' in answer.text
            assert "no call" not in answer.text
            assert "Look." not in answer.text
    assert ["tools" in call.body for call in served.calls] == [True, False, False]


async def test_a_template_without_tools_is_not_asked_twice() -> None:
    props = LLAMA | {"chat_template_caps": {"supports_tools": False}}
    async with upstream(schemas_alone, props=props) as served, door(served.url) as (client, engine):
        answer = await chat(client, tools=TOOLS, tool_choice="required")
        assert "shows the model no tools" in engine.status().notes[0]
    assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert len(served.calls) == 1


async def test_an_upstream_that_makes_no_call_is_refused_by_name() -> None:
    async with upstream(four) as served, door(served.url) as (client, _):
        answer = await chat(client, tools=TOOLS, tool_choice="required")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tool_choice"
    assert len(served.calls) == 2


@pytest.mark.parametrize("text", ['{"name": "lo', "I would rather"])
async def test_a_call_by_schema_that_is_cut_short(text: str) -> None:
    async def script(_call: Call, answer: Answer) -> None:
        await answer.events(delta("length", content=text), usage(9, 4))

    async with upstream(script) as served, door(served.url) as (client, _):
        answer = await chat(client, tools=TOOLS, tool_choice="required")
    assert len(served.calls) == 2
    if text.startswith("{"):
        [choice] = answer.json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "length")
    else:
        assert answer.json()["error"]["param"] == "tool_choice"


async def test_words_before_a_call_that_had_to_be_made() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        function = {"name": "look", "arguments": "{}"}
        call = delta("tool_calls", tool_calls=[{"index": 0, "id": "1", "function": function}])
        await answer.events(delta(reasoning_content="hm"), delta(content="Let me see."), call)

    async with upstream(script) as served, door(served.url) as (client, _):
        answer = await chat(client, tools=TOOLS, tool_choice="required")
    message = answer.json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Let me see.")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["look"]
    assert len(served.calls) == 1


async def test_a_call_of_no_declared_tool_is_visible_and_flagged() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        parts = [{"index": 0, "id": "1", "function": {"name": "rm", "arguments": '{"a":1}'}}]
        await answer.events(delta("tool_calls", tool_calls=parts))

    async with upstream(script) as served, door(served.url) as (client, _):
        reply = (await chat(client, tools=TOOLS)).json()
    [choice] = reply["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('rm({"a":1})', "stop")
    assert reply["pillion"]["unread_calls"] == ["no tool is named 'rm'"]


async def test_a_prediction_is_handed_on_and_counted() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        drafts = {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 1}
        await answer.events(
            delta("stop", content="x = 1\n"), usage(9, 7, completion_tokens_details=drafts)
        )

    wanted = {"type": "content", "content": "x = 2\n\U0001f600"}
    async with upstream(script) as served, door(served.url) as (client, _):
        reply = (await chat(client, prediction=wanted)).json()
    assert served.calls[0].body["prediction"] == wanted
    details = reply["usage"]["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (5, 1)


async def test_an_upstream_that_knows_no_predictions() -> None:
    async def script(call: Call, answer: Answer) -> None:
        if "prediction" in call.body:
            await answer.json({"error": {"message": "extra field: prediction"}}, 400)
        else:
            await four(call, answer)

    async with upstream(script) as served, door(served.url) as (client, _):
        for _ in range(2):
            reply = await chat(client, prediction={"type": "content", "content": "x"})
            assert reply.json()["choices"][0]["message"]["content"] == "four"
    assert ["prediction" in call.body for call in served.calls] == [True, False, False]


async def test_the_local_model_reads_a_prediction_in_its_own_tokens() -> None:
    local = FakeEngine("local")
    async with door("http://127.0.0.1:9/v1", local) as (client, engine):
        await engine.ready()
        await chat(client, prediction={"type": "content", "content": "xy"})
        body = {"prompt": [5, 6], "max_tokens": 2}
        refused = await client.post("/v1/completions", json=body)
    assert local.seen[0].prediction == (ord("x"), ord("y"))
    # Whose ids these are is not known here.
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "prompt"
