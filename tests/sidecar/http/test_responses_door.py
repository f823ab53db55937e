"""`/v1/responses`: its items, its events, and the conversations that it keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest
import pytest_asyncio
from http_door import asgi_door, error_of, services_of
from test_chat_request_fields import RecordingCodec
from test_messages_door import REPLY, named_events

from engine.testing import FakeEngine
from sidecar.config import Config
from sidecar.http.app import create_app
from sidecar.http.response_store import ResponseStore

PATH = "/v1/responses"
READ = {"type": "function", "name": "read", "parameters": {"type": "object"}}


@pytest.fixture
def codec() -> RecordingCodec:
    return RecordingCodec()


@pytest_asyncio.fixture
async def client(codec: RecordingCodec) -> AsyncIterator[httpx2.AsyncClient]:
    engine = FakeEngine(REPLY)
    async with asgi_door(engine) as client:
        engine.codec = codec
        yield client


async def test_a_whole_response(client: httpx2.AsyncClient) -> None:
    body = {"input": "hello", "tools": [READ], "instructions": "Be brief."}
    response = (await client.post(PATH, json=body)).json()
    assert response["id"].startswith("resp_")
    assert (response["status"], response["error"]) == ("completed", None)
    thought, message, call = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert [part["text"] for part in message["content"]] == ["Yes."]
    assert (call["type"], call["name"], call["arguments"]) == (
        "function_call",
        "read",
        '{"path": "a"}',
    )
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert response["usage"]["total_tokens"] == response["usage"]["input_tokens"] + len(REPLY) + 1


ITEM = ["output_item.added", "content_part.added"]
DONE = ["content_part.done", "output_item.done"]
ORDER = [
    *["created", "in_progress"],
    *[*ITEM, "reasoning_text.delta", "reasoning_text.done", *DONE],
    *[*ITEM, "output_text.delta", "output_text.done", *DONE],
    "output_item.added",
    *["function_call_arguments.delta", "function_call_arguments.done", "output_item.done"],
    "completed",
]


async def test_a_streamed_response_is_in_the_documented_order(client: httpx2.AsyncClient) -> None:
    answer = await client.post(PATH, json={"input": "hello", "tools": [READ], "stream": True})
    events = named_events(answer.text)
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    kinds = [kind.removeprefix("response.") for kind, _ in events]
    # Deltas come as the model writes them.
    once = [kind for index, kind in enumerate(kinds) if kinds[index - 1 : index] != [kind]]
    assert once == ORDER
    assert [e["output_index"] for k, e in events if k.endswith("item.added")] == [0, 1, 2]
    assert events[-1][1]["response"]["output"] == [
        event["item"] for kind, event in events if kind.endswith("output_item.done")
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_cut_off_says_so(client: httpx2.AsyncClient, stream: bool) -> None:
    cut = REPLY.index("es.")
    asked = {"input": "hello", "max_output_tokens": cut, "stream": stream}
    answer = await client.post(PATH, json=asked)
    response = named_events(answer.text)[-1][1]["response"] if stream else answer.json()
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [(item["type"], item["status"]) for item in response["output"]] == [
        ("reasoning", "completed"),
        ("message", "incomplete"),
    ]


@pytest.mark.parametrize("asked", [{"include": ["message.output_text.logprobs"]}, {}])
async def test_log_probabilities_of_what_is_said(
    client: httpx2.AsyncClient, asked: dict[str, Any]
) -> None:
    body = {"input": "hello", "tools": [READ], "seed": 1, "top_logprobs": 2} | asked
    whole = (await client.post(PATH, json=body)).json()
    streamed = named_events((await client.post(PATH, json=body | {"stream": True})).text)
    _, message, _ = whole["output"]
    (part,) = message["content"]
    # White space between the parts of a reply is said by tokens, too.
    assert "".join(one["token"] for one in part["logprobs"]).strip() == part["text"]
    for one in part["logprobs"]:
        assert one["logprob"] <= 0
        assert bytes(one["bytes"]).decode() == one["token"]
        assert len(one["top_logprobs"]) == 2
    deltas = [event["logprobs"] for kind, event in streamed if kind.endswith("output_text.delta")]
    assert [one for some in deltas for one in some] == part["logprobs"]
    (done,) = (event for kind, event in streamed if kind.endswith("output_text.done"))
    assert done["logprobs"] == part["logprobs"]
    bare = (await client.post(PATH, json={"input": "hello"})).json()
    assert bare["output"][1]["content"][0]["logprobs"] == []


async def test_what_codex_sends(client: httpx2.AsyncClient, codec: RecordingCodec) -> None:
    first = {"input": "hello", "tools": [READ], "include": ["reasoning.encrypted_content"]}
    output = (await client.post(PATH, json=first)).json()["output"]
    # Codex hands reasoning back by what is sealed alone.
    output[0] |= {"content": None}
    told = {"type": "function_call_output", "call_id": output[2]["call_id"], "output": "text"}
    namespace = {"type": "namespace", "name": "agents", "tools": [READ | {"name": "ask"}]}
    body = {
        "input": [
            {"type": "message", "role": "developer", "content": [_part("input_text", "Be brief.")]},
            {"role": "user", "content": "hello"},
            *output,
            told,
        ],
        "tools": [READ, namespace, {"type": "custom", "name": "patch"}, {"type": "web_search"}],
        "store": False,
        "prompt_cache_key": "session",
        "client_metadata": {"a": "b"},
    }
    assert (await client.post(PATH, json=body)).status_code == 200
    messages, tools, _ = codec.asked[1]
    function = {"name": "read", "arguments": '{"path": "a"}'}
    call_id = output[2]["call_id"]
    assert list(messages) == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "Yes.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": "text"},
    ]
    assert [tool["function"]["name"] for tool in tools] == ["read", "ask", "patch"]


def _part(kind: str, text: str) -> dict[str, str]:
    return {"type": kind, "text": text}


async def test_a_response_is_continued_by_its_id(
    client: httpx2.AsyncClient, codec: RecordingCodec
) -> None:
    first = (await client.post(PATH, json={"input": "one", "instructions": "Be brief."})).json()
    body = {"input": "two", "previous_response_id": first["id"]}
    assert (await client.post(PATH, json=body)).status_code == 200
    messages = codec.asked[1][0]
    assert [(m["role"], m["content"]) for m in messages][::2] == [("user", "one"), ("user", "two")]
    assert messages[1]["reasoning_content"] == "Hm."
    unknown = await client.post(PATH, json=body | {"previous_response_id": "resp_x"})
    assert error_of(unknown)["code"] == "previous_response_not_found"


async def test_a_response_is_kept_before_its_client_knows_of_it() -> None:
    asked = {"input": "one", "stream": True}
    sent: list[bytes] = [msgspec.json.encode(asked)]
    read = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if sent:
            return {"type": "http.request", "body": sent.pop()}
        await read.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if b"response.completed" in message.get("body", b""):
            answer.append(json.loads(message["body"].split(b"data: ")[1]))
            read.set()
            # The rest does not go out: it has gone.
            await asyncio.Event().wait()

    answer: list[Any] = []
    scope = {"type": "http", "method": "POST", "path": PATH, "query_string": b""}
    scope["headers"] = [(b"host", b"localhost")]
    async with services_of(FakeEngine("ok"), Config()) as services:
        app = create_app(services)
        await app(scope, receive, send)
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"input": "two", "previous_response_id": answer[0]["response"]["id"]}
            assert (await client.post(PATH, json=body)).status_code == 200


def test_the_store_is_bounded() -> None:
    store = ResponseStore(most=2, most_bytes=200)
    for name in "abc":
        store.keep(name, [{"role": "user", "content": name}])
    store.messages("b")
    store.keep("large", [{"content": "x" * 150}])
    kept = []
    for name in ("a", "b", "c", "large"):
        try:
            store.messages(name)
        except Exception:
            continue
        kept.append(name)
    assert kept == ["b", "large"]


async def test_too_long_a_prompt_fails_in_the_stream(client: httpx2.AsyncClient) -> None:
    body = {"input": "a" * 5000}
    assert error_of(await client.post(PATH, json=body))["code"] == "context_length_exceeded"
    events = named_events((await client.post(PATH, json=body | {"stream": True})).text)
    assert [kind for kind, _ in events] == ["response.created", "response.failed"]
    assert events[-1][1]["response"]["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "input[0].call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ],
)
async def test_a_wrong_field_is_named(
    client: httpx2.AsyncClient, fields: dict[str, Any], field: str
) -> None:
    response = await client.post(PATH, json={"input": "hello"} | fields)
    assert response.status_code == 400
    assert str(error_of(response)["param"]).startswith(field)
