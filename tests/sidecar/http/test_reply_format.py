"""`response_format` and `tool_choice`: what reaches the engine, and how calls come back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_door import asgi_door, chat, error_of, events_of

from engine import GenerateRequest, RequestError
from engine.testing import FakeEngine

PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
    "required": ["path"],
}
READ = {"type": "function", "function": {"name": "read", "parameters": PARAMETERS}}
NOW = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "read"}}
CALL = (
    "<tool_call>\n<function=read>\n<parameter=path>\na.py\n</parameter>\n"
    "<parameter=line>\n7\n</parameter>\n</function>\n</tool_call>"
)
JSON = {"type": "json_schema", "json_schema": {"name": "p", "schema": PARAMETERS, "strict": True}}


async def requested(**fields: Any) -> GenerateRequest:
    engine = FakeEngine()
    async with asgi_door(engine) as client:
        response = await chat(client, **fields)
    assert response.status_code == 200, response.text
    return engine.seen[0]


async def grammar_of(**fields: Any) -> str:
    grammar = (await requested(**fields)).grammar
    assert grammar is not None
    return grammar.text


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"tools": [READ]},
        {"tools": [READ], "tool_choice": "auto"},
        {"tools": [READ], "tool_choice": "none"},
    ],
)
async def test_a_reply_is_free_unless_it_is_asked_to_be_otherwise(fields: dict[str, Any]) -> None:
    assert (await requested(**fields)).grammar is None


async def test_a_schema_reaches_the_engine_with_its_order_of_properties() -> None:
    text = await grammar_of(response_format=JSON)
    assert '"properties": {"path": {"type": "string"}, "line": {"type": "integer"}}' in text
    assert "tool_call" not in text
    loose = {"type": "json_schema", "json_schema": {"schema": PARAMETERS, "strict": False}}
    assert await grammar_of(response_format=loose) == text


async def test_any_object() -> None:
    assert '%json {"type": "object"' in await grammar_of(response_format={"type": "json_object"})


async def test_required_is_a_call_of_any_tool_and_as_many_as_the_model_likes() -> None:
    text = await grammar_of(tools=[READ, NOW], tool_choice="required")
    assert '"read>\\n"' in text
    assert '"now>\\n"' in text
    assert "call)*" in text
    one = await grammar_of(tools=[READ], tool_choice="required", parallel_tool_calls=False)
    assert "call)*" not in one


async def test_a_named_tool_is_called_once() -> None:
    text = await grammar_of(tools=[READ, NOW], tool_choice=NAMED)
    assert '"read>\\n"' in text
    assert '"now>\\n"' not in text
    assert "call)*" not in text


async def test_json_with_tools_at_hand_may_be_preceded_by_a_call() -> None:
    text = await grammar_of(tools=[READ], response_format=JSON)
    assert text.startswith("start: %json")
    assert '"read>\\n"' in text
    alone = await grammar_of(tools=[READ], response_format=JSON, tool_choice="none")
    assert '"read>\\n"' not in alone
    forced = await grammar_of(tools=[READ], response_format=JSON, tool_choice="required")
    assert forced.startswith("start: call")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [NOW], "tool_choice": NAMED}, "tool_choice"),
        (
            {
                "tools": [
                    NOW,
                    {"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/x"}}},
                ],
                "tool_choice": "required",
            },
            "tools[1].function.parameters",
        ),
    ],
)
async def test_what_cannot_be_enforced_names_its_field(fields: Any, param: str) -> None:
    engine = FakeEngine()
    async with asgi_door(engine) as client:
        response = await chat(client, **fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert engine.seen == []


async def test_calls_come_back_as_calls() -> None:
    async with asgi_door(FakeEngine(f"{CALL}\n{CALL}")) as client:
        response = await chat(client, tools=[READ], tool_choice="required")
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    calls = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert [set(call) for call in calls] == [{"id", "type", "function"}] * 2
    assert len({call["id"] for call in calls}) == 2
    assert calls[0]["type"] == "function"
    assert calls[0]["function"]["name"] == "read"
    assert json.loads(calls[0]["function"]["arguments"]) == {"path": "a.py", "line": 7}


async def streamed(text: str, **fields: Any) -> list[dict[str, Any]]:
    async with asgi_door(FakeEngine(text)) as client:
        response = await chat(client, stream=True, **fields)
    events = [event for event in events_of(response.text) if isinstance(event, dict)]
    return [event["choices"][0] for event in events]


async def test_calls_are_streamed_whole() -> None:
    first, only, last = await streamed(CALL, tools=[READ], tool_choice=NAMED)
    assert first["delta"] == {"role": "assistant", "content": ""}
    (call,) = only["delta"]["tool_calls"]
    assert call["index"] == 0
    assert call["function"]["name"] == "read"
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")


async def test_a_call_that_was_cut_short_is_the_text_it_is() -> None:
    cut = CALL[: len(CALL) // 2]
    async with asgi_door(FakeEngine(CALL)) as client:
        response = await chat(client, tools=[READ], tool_choice=NAMED, max_tokens=len(cut))
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == cut
    assert "tool_calls" not in choice["message"]
    _, text, last = await streamed(CALL, tools=[READ], tool_choice=NAMED, max_tokens=len(cut))
    assert text["delta"] == {"content": cut}
    assert last["finish_reason"] == "length"


async def test_json_is_text_also_where_calls_were_possible() -> None:
    async with asgi_door(FakeEngine('{"path": "a"}')) as client:
        response = await chat(client, tools=[READ], response_format=JSON)
    choice = response.json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", '{"path": "a"}')


async def test_json_alone_is_streamed_as_it_comes() -> None:
    deltas = await streamed('{"path"', response_format=JSON)
    assert [choice["delta"].get("content") for choice in deltas] == ["", *'{"path"', None]


async def test_a_grammar_that_the_engine_refuses_is_a_400_also_when_streaming() -> None:
    def refuse(_request: GenerateRequest) -> str:
        raise RequestError("response_format is too complex", field="response_format")

    async with asgi_door(FakeEngine(refuse)) as client:
        response = await chat(client, stream=True, response_format=JSON)
    assert response.status_code == 400
    assert error_of(response)["param"] == "response_format"
