"""Agents, edits and explanations through an upstream, also where its replies are not in order."""

from __future__ import annotations

import json

import pytest
from scripted_upstream import Answer, Call, delta, upstream, usage
from test_upstream import HELLO, chat, door, four

from sidecar.config import Config, EditConfig
from sidecar.jobs.edit import EditRequest, edit
from sidecar.jobs.explain import ExplainRequest, explain
from sidecar.services import Services

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


async def test_a_second_try_begins_anew() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        first = delta(tool_calls=[{"index": 0, "function": {"name": "look", "arguments": '{"a"'}}])
        rest = delta("tool_calls", tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}])
        await answer.events(first, *([rest] if len(served.calls) > 1 else []))

    async with upstream(script) as served, door(served.url) as (client, _):
        message = (await chat(client, tools=[LOOK])).json()["choices"][0]["message"]
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"a":1}']


async def test_an_empty_finish_reason_is_none() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        first = {"index": 0, "function": {"name": "look", "arguments": '{"a"'}}
        rest = {"index": 0, "function": {"arguments": ":1}"}}
        await answer.events(delta("", tool_calls=[first]), delta("stop", tool_calls=[rest]))

    async with upstream(script) as served, door(served.url) as (client, _):
        message = (await chat(client, tools=[LOOK])).json()["choices"][0]["message"]
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"a":1}']


async def test_what_developers_say_is_said_by_the_system() -> None:
    parts = [{"type": "input_text", "text": "No shell."}]
    told = [{"role": "developer", "content": parts}, {"role": "user", "content": "hello"}]
    late = {"role": "developer", "content": "Now with a shell."}
    async with upstream(four) as served, door(served.url) as (client, _):
        await client.post("/v1/responses", json={"instructions": "Be brief.", "input": told})
        text = [{"type": "text", "text": "Be brief."}]
        await chat(client, messages=[{"role": "developer", "content": text}, *HELLO, late])
    first, second = ([(m["role"], m["content"]) for m in c.body["messages"]] for c in served.calls)
    assert first == [("system", "Be brief.\n\nNo shell."), ("user", "hello")]
    assert second == [("system", text), ("user", "hello"), ("system", "Now with a shell.")]


async def test_arguments_of_earlier_calls_are_json_text() -> None:
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {"path": "a"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "text"}
    told = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    async with upstream(four) as served, door(served.url) as (client, _):
        await client.post("/v1/messages", json={"max_tokens": 9, "messages": [*HELLO, *told]})
    [call] = served.calls[0].body["messages"][1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"path": "a"}


@pytest.mark.parametrize("arguments", ['{"path": "a', "[1]", "1e999"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_cut_short_is_text(arguments: str, stream: bool) -> None:
    async def script(_call: Call, answer: Answer) -> None:
        function = {"name": "look", "arguments": arguments}
        await answer.events(delta("length", tool_calls=[{"index": 0, "function": function}]))

    body = {"messages": HELLO, "max_tokens": 9, "stream": stream, "tools": [{"name": "look"}]}
    async with upstream(script) as served, door(served.url) as (client, _):
        answer = await client.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    assert json.dumps(f"look({arguments})")[1:-1] in answer.text
    assert "tool_use" not in answer.text
    assert "max_tokens" in answer.text


async def test_what_an_upstream_thinks_is_no_part_of_an_edit_or_an_explanation() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        code = "```\nx = 2\n```"
        await answer.events(delta(reasoning_content="x?"), delta("stop", content=code), usage(9, 9))

    async with upstream(script) as served, door(served.url) as (_, engine):
        made = await edit(engine, EditConfig(), EditRequest(text="x = 1\n", instruction="Two."))
        services = Services(engine=engine, config=Config(), shutdown=lambda: None)
        said: list[str] = []
        explained = await explain(services, ExplainRequest(text="x = 1\n"), said.append)
    assert made.text == "x = 2\n"
    assert explained.markdown == "".join(said) == "```\nx = 2\n```"


async def test_agents_read_that_a_prompt_is_too_long_for_an_upstream() -> None:
    async def script(_call: Call, answer: Answer) -> None:
        await answer.json({"error": {"message": "context length exceeded"}}, 400)

    async with upstream(script) as served, door(served.url) as (client, _):
        message = await client.post("/v1/messages", json={"messages": HELLO, "max_tokens": 9})
        response = await client.post("/v1/responses", json={"input": "hello", "stream": True})
    assert message.json()["error"]["message"].startswith("prompt is too long: ")
    assert response.status_code == 200
    assert "event: response.failed" in response.text
    assert '"code":"context_length_exceeded"' in response.text
