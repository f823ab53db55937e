"""What a chat reply is made of: reasoning, calls that the model chose to make, choices, tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_door import asgi_door, chat, events_of
from test_reply_format import CALL, NOW, READ

from engine import GenerateRequest
from engine.testing import FakeEngine

REPLY = f"<think>\nHm.\n</think>\n\nYes.\n\n{CALL}\n{CALL}"


async def choice_of(text: str = REPLY, **fields: Any) -> dict[str, Any]:
    async with asgi_door(FakeEngine(text)) as client:
        response = await chat(client, **fields)
    body: dict[str, Any] = response.json()
    return body["choices"][0] | {"usage": body["usage"], "pillion": body["pillion"]}


async def test_a_free_reply_may_reason_answer_and_call() -> None:
    choice = await choice_of(tools=[READ])
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
    assert choice["finish_reason"] == "tool_calls"
    first, second = message["tool_calls"]
    assert first["id"] != second["id"]
    for call in (first, second):
        assert json.loads(call["function"]["arguments"]) == {"path": "a.py", "line": 7}
    assert choice["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_the_same_parts_are_streamed() -> None:
    async with asgi_door(FakeEngine(REPLY)) as client:
        response = await chat(client, stream=True, tools=[READ])
    events = [event for event in events_of(response.text) if isinstance(event, dict)]
    deltas = [event["choices"][0]["delta"] for event in events]
    kinds = [next(iter(set(delta) - {"role"}), "end") for delta in deltas]
    order = [kind for index, kind in enumerate(kinds) if kinds[index - 1 : index] != [kind]]
    assert order == ["content", "reasoning_content", "content", "tool_calls", "end"]
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 1]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_seed_repeats_the_ids_of_calls_too() -> None:
    async def ids(**fields: Any) -> list[str]:
        message = (await choice_of(tools=[READ], **fields))["message"]
        return [call["id"] for call in message["tool_calls"]]

    assert await ids(seed=1) == await ids(seed=1)
    assert not set(await ids(seed=1)) & {*await ids(seed=2), *await ids()}


async def test_what_is_no_call_of_a_tool_is_text_and_flagged() -> None:
    choice = await choice_of(CALL, tools=[NOW])
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"
    assert choice["pillion"]["unread_calls"] == ["no tool is named 'read'"]
    repaired = await choice_of(CALL.removesuffix("\n</tool_call>"), tools=[READ])
    assert repaired["finish_reason"] == "tool_calls"
    assert repaired["pillion"]["repaired_calls"] == ["read: its markers were incomplete"]
    hidden = await choice_of(CALL, tools=[READ], tool_choice="none")
    assert hidden["message"]["content"] == CALL


async def test_one_call_at_most_ends_the_reply() -> None:
    engine = FakeEngine(REPLY)
    async with asgi_door(engine) as client:
        response = await chat(client, tools=[READ], parallel_tool_calls=False)
    choice = response.json()["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"


async def test_several_choices_whole_and_streamed() -> None:
    def reply(request: GenerateRequest) -> str:
        return f"seed {request.seed}"

    async with asgi_door(FakeEngine(reply)) as client:
        whole = (await chat(client, n=3, seed=7)).json()
        streamed = await chat(client, n=3, seed=7, stream=True)
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert texts == ["seed 7", "seed 8", "seed 9"]
    assert whole["usage"]["completion_tokens"] == 21
    assert whole["usage"]["prompt_tokens"] == 13
    written = ["", "", ""]
    for event in events_of(streamed.text):
        if isinstance(event, dict):
            (choice,) = event["choices"]
            written[choice["index"]] += choice["delta"].get("content", "")
    assert written == texts


async def test_log_probabilities_of_what_is_said() -> None:
    choice = await choice_of("<think>x</think>ab", logprobs=True, top_logprobs=2)
    first, second, *_ = choice["logprobs"]["content"]
    assert (first["token"], first["bytes"], first["logprob"]) == ("a", [97], -0.5)
    assert [one["token"] for one in second["top_logprobs"]] == ["b", "c"]


@pytest.mark.parametrize("round_tokens", [1, 3, 5, 16, 64])
async def test_log_probabilities_are_those_of_what_is_said(round_tokens: int) -> None:
    """Whatever else one round commits: the reasoning's end, and what is said behind it."""
    async with asgi_door(
        FakeEngine("<think>Yes?</think>\n\nYes.", round_tokens=round_tokens)
    ) as client:
        whole = (await chat(client, logprobs=True)).json()["choices"][0]
        streamed = events_of((await chat(client, logprobs=True, stream=True)).text)
    assert whole["message"]["content"] == "Yes."
    tokens = [one["token"] for one in whole["logprobs"]["content"]]
    assert "".join(tokens) == "Yes."
    chunks = [event["choices"][0]["logprobs"] for event in streamed if isinstance(event, dict)]
    assert [one["token"] for some in chunks if some for one in some["content"]] == tokens


async def test_a_prediction_reaches_the_drafter_and_changes_nothing_else() -> None:
    engine = FakeEngine()
    async with asgi_door(engine) as client:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        for content in ("ab", parts):
            await chat(client, prediction={"type": "content", "content": content})
    assert [bytes(request.prediction) for request in engine.seen] == [b"ab", b"ab"]


async def test_the_engine_can_tell_a_title_from_the_conversation() -> None:
    engine = FakeEngine()
    async with asgi_door(engine) as client:
        for tools in ([], [READ]):
            body = {"messages": [{"role": "user", "content": "a"}], "tools": tools}
            headers = {"x-session-id": "s"}
            await client.post("/v1/chat/completions", json=body, headers=headers)
        await chat(client)
    assert [(request.session, request.tools) for request in engine.seen] == [
        ("s", False),
        ("s", True),
        (None, False),
    ]
