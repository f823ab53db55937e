"""Every field of a chat request: it reaches the engine, or it is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from http_door import HELLO, asgi_door, chat, error_of

from engine import EngineStatus, GenerateRequest, Priority, Sampling
from engine.testing import ByteCodec, FakeEngine
from sidecar.config import ChatConfig, Config
from sidecar.http.schema.chat_request import ChatRequest


async def requested(**fields: Any) -> GenerateRequest:
    """What the engine is asked for when a client sends `fields`."""
    engine = FakeEngine()
    async with asgi_door(engine) as client:
        response = await chat(client, **fields)
        assert response.status_code == 200, response.text
    [request] = engine.seen
    return request


async def refused(**fields: Any) -> dict[str, Any]:
    engine = FakeEngine()
    async with asgi_door(engine) as client:
        response = await chat(client, **fields)
    assert response.status_code == 400, response.text
    assert engine.seen == []
    return error_of(response)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.7),
        ("top_p", 0.9),
        ("top_k", 20),
        ("min_p", 0.05),
        ("repetition_penalty", 1.1),
        ("presence_penalty", -0.5),
        ("frequency_penalty", 0.25),
    ],
)
async def test_sampling_fields_reach_the_engine(name: str, value: float) -> None:
    assert getattr((await requested(**{name: value})).sampling, name) == value


async def test_what_is_left_out_comes_from_the_settings_then_from_the_model() -> None:
    class Opinionated(FakeEngine):
        def status(self) -> EngineStatus:
            status = super().status()
            assert status.model is not None
            model = msgspec.structs.replace(
                status.model, default_sampling=Sampling(temperature=0.6, top_p=0.95, top_k=20)
            )
            return msgspec.structs.replace(status, model=model)

    engine = Opinionated()
    config = Config(chat=ChatConfig(max_tokens=7, top_p=0.5))
    async with asgi_door(engine, config=config) as client:
        await chat(client)
        await chat(client, temperature=0, top_k=3, max_tokens=9)
    default, chosen = engine.seen
    assert default.sampling == Sampling(temperature=0.6, top_p=0.5, top_k=20)
    assert default.max_tokens == 7
    assert chosen.sampling == Sampling(temperature=0.0, top_p=0.5, top_k=3)
    assert chosen.max_tokens == 9


@pytest.mark.parametrize(
    ("reasoning", "variables"),
    [
        (None, {}),
        ("off", {"enable_thinking": False}),
        ("on", {"enable_thinking": True}),
        (
            "low",
            {"enable_thinking": True, "reasoning_effort": "low", "reasoning_strength": "low"},
        ),
    ],
)
async def test_reasoning_and_seed_of_the_settings_reach_a_chat(
    reasoning: str | None, variables: dict[str, Any]
) -> None:
    engine, codec = FakeEngine(), RecordingCodec()
    config = Config(chat=ChatConfig(seed=-1, reasoning=reasoning))
    async with asgi_door(engine, config=config) as client:
        engine.codec = codec
        await chat(client)
        await chat(client, seed=5, chat_template_kwargs={"enable_thinking": True})
    assert [request.seed for request in engine.seen] == [2**64 - 1, 5]
    assert [template for _, _, template in codec.asked] == [
        variables,
        {**variables, "enable_thinking": True},
    ]


async def test_plain_fields_reach_the_engine() -> None:
    request = await requested(
        max_tokens=5,
        ignore_eos=True,
        draft=False,
        explain=True,
        stop=["a", "b"],
        logit_bias={"3": 2, "1": -100},
    )
    assert request.max_tokens == 5
    assert request.ignore_eos
    assert not request.draft
    assert request.explain
    assert request.stop == ("a", "b")
    assert request.sampling.logit_bias == ((1, -100.0), (3, 2.0))
    assert request.priority is Priority.AGENT


async def test_defaults_of_plain_fields() -> None:
    request = await requested()
    assert request.max_tokens is None
    assert request.seed is not None
    assert request.draft
    assert not request.ignore_eos
    assert request.stop == ()
    assert request.session is None


async def test_null_is_the_same_as_left_out() -> None:
    names = {field.encode_name for field in msgspec.structs.fields(ChatRequest)} - {"messages"}
    request = await requested(**dict.fromkeys(names))
    assert msgspec.structs.replace(request, id="", seed=0) == msgspec.structs.replace(
        await requested(), id="", seed=0
    )


async def test_a_single_stop_string() -> None:
    assert (await requested(stop="END")).stop == ("END",)


async def test_max_completion_tokens_is_the_newer_name_and_wins() -> None:
    assert (await requested(max_completion_tokens=3)).max_tokens == 3
    assert (await requested(max_completion_tokens=3, max_tokens=9)).max_tokens == 3


@pytest.mark.parametrize(
    ("seed", "mapped"),
    [(0, 0), (7, 7), (2**64 - 1, 2**64 - 1), (2**64, 0), (-1, 2**64 - 1), (10**40, 10**40 % 2**64)],
)
async def test_any_integer_is_a_seed(seed: int, mapped: int) -> None:
    assert (await requested(seed=seed)).seed == mapped


async def test_hints_and_unknown_fields_are_tolerated() -> None:
    request = await requested(
        user="me",
        metadata={"a": "b"},
        store=False,
        parallel_tool_calls=True,
        service_tier="auto",
        response_format={"type": "text"},
        logprobs=False,
        modalities=["text"],
        n=1,
        stream_options={"include_usage": True},
        something_new=[{"deep": None}],
    )
    assert request.prompt


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"x-session-id": "s1"}, {}),
        ({"x-session-affinity": "s1"}, {}),
        ({}, {"prompt_cache_key": "s1"}),
        ({}, {"promptCacheKey": "s1"}),
    ],
)
async def test_an_agents_session_reaches_the_engine(
    headers: dict[str, str], fields: dict[str, str]
) -> None:
    engine = FakeEngine()
    async with asgi_door(engine) as client:
        body = {"messages": HELLO, **fields}
        await client.post("/v1/chat/completions", json=body, headers=headers)
    assert engine.seen[0].session == "s1"


class RecordingCodec(ByteCodec):
    """Keeps what it was asked to render."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Any, Any]] = []

    def chat(self, messages: Any, **variables: Any) -> Any:
        self.asked.append((messages, variables["tools"], variables["template"]))
        return super().chat(messages, **variables)


async def rendered(**fields: Any) -> tuple[Any, Any, Any]:
    engine, codec = FakeEngine(), RecordingCodec()
    async with asgi_door(engine) as client:
        engine.codec = codec
        response = await chat(client, **fields)
        assert response.status_code == 200, response.text
    return codec.asked[0]


async def test_messages_of_every_role_reach_the_template() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    messages, tools, template = await rendered(
        messages=[
            {"role": "developer", "content": "rules"},
            {"role": "system", "content": [{"type": "text", "text": "more "}]},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "user", "content": "go on", "name": "ann", "unknown": 1},
        ]
    )
    assert messages == (
        {"role": "developer", "content": "rules"},
        {"role": "system", "content": [{"type": "text", "text": "more "}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
        {"role": "assistant", "content": [{"type": "text", "text": "no"}]},
        {"role": "user", "content": "go on", "name": "ann"},
    )
    assert tools is None
    assert template == {}


FUNCTION = {
    "name": "read",
    "description": "Read a file",
    "parameters": {"type": "object", "properties": {"z": {}, "a": {}}, "required": []},
}
TOOL = {"type": "function", "function": FUNCTION}


@pytest.mark.parametrize("choice", [None, "auto"])
async def test_tools_reach_the_template_in_one_order(choice: str | None) -> None:
    function = dict(reversed(FUNCTION.items())) | {"strict": True}
    shuffled = {"function": function, "type": "function"}
    _, tools, _ = await rendered(tools=[shuffled], tool_choice=choice)
    assert msgspec.json.encode(tools) == msgspec.json.encode([TOOL])


async def test_tool_choice_none_hides_the_tools() -> None:
    assert (await rendered(tools=[TOOL], tool_choice="none"))[1] is None


async def test_template_variables() -> None:
    _, _, template = await rendered(
        chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low"
    )
    assert template == {
        "enable_thinking": False,
        "reasoning_effort": "low",
        "reasoning_strength": "low",
    }


async def test_the_boundaries_of_the_prompt_reach_the_engine() -> None:
    request = await requested()
    assert request.boundaries
    assert request.boundaries[-1] < len(request.prompt)


@pytest.mark.parametrize("model", ["fake", "default", "builtin"])
async def test_names_of_the_model(model: str) -> None:
    assert (await requested(model=model)).prompt


async def test_an_unknown_model_is_404_with_the_names_that_are_served() -> None:
    async with asgi_door(FakeEngine()) as client:
        response = await chat(client, model="gpt-5")
    assert response.status_code == 404
    error = error_of(response)
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"
    assert "'gpt-5'" in error["message"]
    assert "fake" in error["message"]
    assert "default" in error["message"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [1]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages[1].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
        "messages[0].tool_calls[0].function",
    ),
    ({"model": 5}, "model"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5.5}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"261": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"1": "x"}}, "logit_bias[...]"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"seed": 1.5}, "seed"),
    ({"seed": "1"}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop": list("abcdefghijklmnopq")}, "stop"),
    ({"n": 9}, "n"),
    ({"n": 0}, "n"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"draft": 1}, "draft"),
    ({"ignore_eos": "no"}, "ignore_eos"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "never"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
        "response_format",
    ),
    ({"response_format": "text"}, "response_format"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"prediction": {"type": "tokens", "content": ""}}, "prediction.type"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"functions": [{}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"reasoning_effort": 3}, "reasoning_effort"),
    ({"prompt_cache_key": 3}, "prompt_cache_key"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[str(fields)[:60] for fields, _ in WRONG])
async def test_a_wrong_field_is_a_400_that_names_it(fields: dict[str, Any], param: str) -> None:
    error = await refused(**fields)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param.split("[")[0].split(".")[0] in error["message"]


async def test_what_the_template_refuses_names_its_field() -> None:
    error = await refused(messages=[{"role": "user", "content": "x", "name": ["a"]}])
    assert error["param"] == "messages[0].name"
