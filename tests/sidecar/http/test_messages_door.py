"""`/v1/messages`: what of a request reaches the model, and how replies come back."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from http_door import asgi_door
from test_chat_request_fields import RecordingCodec

from engine import GenerateRequest, Overloaded
from engine.testing import FakeEngine

PATH = "/v1/messages"
ASK: dict[str, Any] = {"max_tokens": 400, "messages": [{"role": "user", "content": "hello"}]}
READ = {"name": "read", "input_schema": {"type": "object", "properties": {"path": {}}}}
CALL = "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>"
REPLY = f"<think>\nHm.\n</think>\n\nYes.\n\n{CALL}"


def named_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Each event's name and data; comments are left out."""
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if not block.startswith(":"):
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            events.append((event["type"], event))
    return events


async def posted(reply: Any = "ok", path: str = PATH, **fields: Any) -> httpx2.Response:
    async with asgi_door(FakeEngine(reply)) as client:
        return await client.post(path, json=ASK | fields)


async def test_a_whole_message() -> None:
    message = (await posted(REPLY, tools=[READ])).json()
    assert message["id"].startswith("msg_")
    thinking, text, call = message["content"]
    assert thinking == {"type": "thinking", "thinking": "Hm.", "signature": "pillion"}
    assert text == {"type": "text", "text": "Yes."}
    assert call["id"].startswith("toolu_")
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "read", {"path": "a"})
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert message["usage"]["input_tokens"] == 13
    assert message["usage"]["output_tokens"] == len(REPLY) + 1


async def test_a_streamed_message_is_in_the_documented_order() -> None:
    events = named_events((await posted(REPLY, tools=[READ], stream=True)).text)
    kinds = [kind for index, (kind, _) in enumerate(events) if kind != "ping" or index == 1]
    deltas = [event["delta"] for kind, event in events if kind == "content_block_delta"]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    blocks: list[int] = []
    for kind, event in events:
        if kind == "content_block_start":
            blocks.append(event["index"])
        elif kind.startswith("content_block"):
            assert event["index"] == blocks[-1]
    assert blocks == [0, 1, 2]
    assert kinds.count("content_block_stop") == 3
    assert "".join(delta.get("thinking", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("text", "") for delta in deltas) == "Yes."
    assert deltas[-1] == {"type": "input_json_delta", "partial_json": '{"path": "a"}'}
    last = events[-2][1]
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert last["usage"]["output_tokens"] == len(REPLY) + 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({}, "end_turn"), ({"max_tokens": 1}, "max_tokens")],
)
async def test_why_a_message_ended(fields: dict[str, Any], reason: str) -> None:
    assert (await posted(**fields)).json()["stop_reason"] == reason


async def test_what_a_conversation_becomes() -> None:
    engine, codec = FakeEngine(), RecordingCodec()
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "text", "text": "Yes."},
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}},
    ]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [_text("text")]}
    failed = {"type": "tool_result", "tool_use_id": "t", "content": "no file", "is_error": True}
    marked = _text("Go on.") | {"cache_control": {"type": "ephemeral"}}
    body = ASK | {
        "system": [_text("x-anthropic-billing-header: cc_version=1;"), _text("Be brief.")],
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [result, failed, marked]},
            {"role": "system", "content": "Careful."},
        ],
        "tools": [READ, {"type": "web_search_20250305", "name": "web_search"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "someone"},
    }
    async with asgi_door(engine) as client:
        engine.codec = codec
        assert (await client.post(PATH, json=body)).status_code == 200
    messages, tools, template = codec.asked[0]
    call = {"name": "read", "arguments": {"path": "a"}}
    assert list(messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "Yes.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "text"},
        {"role": "tool", "tool_call_id": "t", "content": "Error: no file"},
        {"role": "user", "content": "Go on."},
        {"role": "system", "content": "Careful."},
    ]
    assert [tool["function"]["name"] for tool in tools] == ["read"]
    assert template == {"enable_thinking": True}
    assert engine.seen[0].session == "someone"


async def test_turns_with_cache_marks_are_one_session() -> None:
    engine = FakeEngine()
    mark = {"cache_control": {"type": "ephemeral"}}
    first = {"role": "user", "content": [_text("hello")]}
    further = [first, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "go on"}]
    system = [_text("Be brief.") | mark]
    other = {"role": "user", "content": [_text("bye")]}
    async with asgi_door(engine) as client:
        for messages in ([first], further, [other], [first]):
            body = ASK | {"system": system, "messages": messages}
            assert (await client.post(PATH, json=body)).status_code == 200
        body = ASK | {"system": [_text("Be brief.")], "messages": [first]}
        assert (await client.post(PATH, json=body)).status_code == 200
    one, two, third, again, unmarked = [request.session for request in engine.seen]
    assert one == two == again
    assert len({one, third, unmarked}) == 3
    assert unmarked is None


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"stop_sequences": [""]}, "stop"),
    ],
)
async def test_a_refusal_has_anthropics_shape(fields: dict[str, Any], field: str) -> None:
    response = await posted(**fields)
    assert response.status_code == 400
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert field in body["error"]["message"]


async def test_an_overlong_prompt_is_told_as_agents_expect_it() -> None:
    response = await posted(messages=[{"role": "user", "content": "a" * 5000}])
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message == "prompt is too long: 5008 tokens > 4096 maximum"


async def test_a_full_queue_is_a_429_with_retry_after() -> None:
    def refuse(_request: GenerateRequest) -> str:
        raise Overloaded("256 requests are waiting already")

    response = await posted(refuse, stream=True)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["type"] == "rate_limit_error"


async def test_anthropics_own_models_mean_the_one_that_is_served() -> None:
    assert (await posted(model="claude-haiku-4-5")).json()["model"] == "fake"
    assert (await posted(model="gpt-5")).json()["error"]["type"] == "not_found_error"


async def test_tokens_are_counted_also_beyond_the_context() -> None:
    count = await posted(path=f"{PATH}/count_tokens")
    assert count.json() == {"input_tokens": 13}
    long = [{"role": "user", "content": "a" * 5000}]
    count = await posted(path=f"{PATH}/count_tokens", messages=long)
    assert count.json() == {"input_tokens": 5008}
