"""The `openai` SDK against a running daemon: its typed client must understand all we say."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from private_home import private_environment, short_folder

pytestmark = pytest.mark.clients

KEY = "a-key"
ASK: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You write Python."},
    {"role": "user", "content": "Write a function that adds two numbers."},
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A daemon on the built-in model that demands KEY."""
    home = short_folder()
    environment = private_environment(home) | {"PILLION_HTTP_API_KEY": KEY}
    daemon = subprocess.Popen(
        [Path(sys.executable).parent / "pillion", "serve", "--port", "0", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=home,
    )
    assert daemon.stdout is not None
    try:
        listening = json.loads(daemon.stdout.readline())
        yield listening["url"]
    finally:
        daemon.terminate()
        assert daemon.wait(120) == 0
        daemon.stdout.close()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key=KEY, timeout=120) as sdk:
        # Until the model is loaded each try is a 503, which the SDK repeats as Retry-After says.
        sdk.with_options(max_retries=100).models.list()
        yield sdk


def own(answer: Any) -> dict[str, Any]:
    """The `pillion` object of a completion or chunk."""
    facts: dict[str, Any] = answer.model_extra["pillion"]
    return facts


def test_models(client: OpenAI) -> None:
    [model] = client.models.list().data
    assert model.id == "builtin"
    assert model.owned_by == "pillion"
    assert client.models.retrieve("builtin") == model
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt-5")
    assert missing.value.code == "model_not_found"


def test_the_second_turn_reuses_the_first(client: OpenAI) -> None:
    first = client.chat.completions.create(model="builtin", messages=ASK, max_tokens=24)
    reply = first.choices[0].message
    assert reply.role == "assistant"
    assert first.usage is not None
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert first.choices[0].finish_reason in ("stop", "length")
    second = client.chat.completions.create(
        model="builtin",
        messages=[
            *ASK,
            {"role": "assistant", "content": reply.content},
            {"role": "user", "content": "Now subtract."},
        ],
        max_tokens=8,
    )
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert first.usage.prompt_tokens - 4 <= cached < second.usage.prompt_tokens
    assert second.id != first.id


def test_a_stream_is_the_same_reply(client: OpenAI) -> None:
    whole = client.chat.completions.create(
        model="default", messages=ASK, max_completion_tokens=40, temperature=0.8, seed=5
    )
    chunks = list(
        client.chat.completions.create(
            model="default",
            messages=ASK,
            max_completion_tokens=40,
            temperature=0.8,
            seed=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *body, usage = chunks
    assert body[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in body)
    assert text == whole.choices[0].message.content
    assert body[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert own(body[-1])["token_hash"] == own(whole)["token_hash"]
    assert usage.choices == []
    assert usage.usage is not None
    assert whole.usage is not None
    assert usage.usage.completion_tokens == whole.usage.completion_tokens


def test_drafting_changes_the_speed_not_the_reply(client: OpenAI) -> None:
    code = "def total(items):\n    result = 0\n    for item in items:\n        result += item\n"
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": f"Repeat this file exactly:\n{code}{code}"}
    ]

    def ask(draft: bool) -> Any:
        return client.chat.completions.create(
            model="builtin", messages=messages, max_tokens=64, extra_body={"draft": draft}
        )

    drafted, plain = ask(True), ask(False)
    assert own(drafted)["token_hash"] == own(plain)["token_hash"]
    assert own(drafted)["exact"]
    assert own(plain)["exact"]
    assert own(plain)["accepted"] == own(plain)["rejected"] == 0
    assert own(plain)["rounds"] == plain.usage.completion_tokens - 1
    details = drafted.usage.completion_tokens_details
    # Whether drafts paid is the machine's affair; each that was accepted saved a round.
    assert details.accepted_prediction_tokens == own(drafted)["accepted"]
    assert details.rejected_prediction_tokens == own(drafted)["rejected"]
    assert own(drafted)["rounds"] + own(drafted)["accepted"] >= own(plain)["rounds"]
    assert own(drafted)["rounds"] <= own(plain)["rounds"]


@pytest.mark.parametrize("seed", [0, 7, -3, 2**63])
def test_a_seed_repeats_a_reply(client: OpenAI, seed: int) -> None:
    def ask(number: int) -> Any:
        return client.chat.completions.create(
            model="builtin", messages=ASK, max_tokens=16, temperature=1.5, seed=number
        )

    first = ask(seed)
    assert own(first)["seed"] == seed % 2**64
    assert own(ask(seed))["token_hash"] == own(first)["token_hash"]
    assert own(ask(seed + 1))["token_hash"] != own(first)["token_hash"]


def test_without_a_seed_the_one_that_was_drawn_repeats_it(client: OpenAI) -> None:
    first = client.chat.completions.create(
        model="builtin", messages=ASK, max_tokens=16, temperature=1.5
    )
    again = client.chat.completions.create(
        model="builtin", messages=ASK, max_tokens=16, temperature=1.5, seed=own(first)["seed"]
    )
    assert own(again)["token_hash"] == own(first)["token_hash"]


def test_stop_strings_end_before_the_match(client: OpenAI) -> None:
    free = client.chat.completions.create(model="builtin", messages=ASK, max_tokens=40)
    text = free.choices[0].message.content
    assert text is not None
    stop = text[len(text) // 2 :][:3]
    cut = client.chat.completions.create(model="builtin", messages=ASK, max_tokens=40, stop=stop)
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_an_overlong_prompt(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="builtin",
            messages=[{"role": "user", "content": "word and number 17, " * 4000}],
            stream=stream,
        )
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "messages"
    assert "maximum context length is 4096 tokens" in refused.value.message


PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["function", "class", "déjà vu"]},
        "line": {"type": "integer", "minimum": 1, "maximum": 999},
    },
    "required": ["kind", "line"],
    "additionalProperties": False,
}


def test_structured_output(client: OpenAI) -> None:
    schema: Any = {"name": "place", "schema": PLACE, "strict": True}
    texts = set()
    for draft in (True, False):
        reply = client.chat.completions.create(
            model="builtin",
            messages=ASK,
            response_format={"type": "json_schema", "json_schema": schema},
            extra_body={"draft": draft},
        )
        assert reply.choices[0].finish_reason == "stop"
        texts.add(reply.choices[0].message.content)
    (text,) = texts
    place = json.loads(text or "")
    assert place["kind"] in PLACE["properties"]["kind"]["enum"]
    assert 1 <= place["line"] <= 999


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "go"}}])
def test_tools_that_must_be_called(client: OpenAI, choice: Any) -> None:
    tool: Any = {"type": "function", "function": {"name": "go", "parameters": PLACE}}
    ask: Any = {"model": "builtin", "messages": ASK, "tools": [tool], "tool_choice": choice}
    ask |= {"parallel_tool_calls": False, "seed": 1}
    reply = client.chat.completions.create(**ask).choices[0]
    assert reply.finish_reason == "tool_calls"
    assert reply.message.content is None
    [call] = reply.message.tool_calls or []
    assert call.function.name == "go"
    assert json.loads(call.function.arguments).keys() == {"kind", "line"}
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**ask, stream=True)]
    [streamed] = [one for chunk in chunks for one in chunk.delta.tool_calls or []]
    assert streamed.function.arguments == call.function.arguments
    assert chunks[-1].finish_reason == "tool_calls"


def test_kinds_of_errors(client: OpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="builtin", messages=ASK, n=9)
    assert refused.value.param == "n"
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-5", messages=ASK)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="builtin", input="x")
    with (
        OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as locked,
    ):
        stranger.models.list()
    assert locked.value.code == "invalid_api_key"


async def test_several_clients_and_one_that_leaves(client: OpenAI, url: str) -> None:
    """Three streams at once; the one that is dropped stops using the model."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, timeout=120) as sdk:

        async def stream(**fields: Any) -> Any:
            return await sdk.chat.completions.create(
                model="builtin", messages=ASK, stream=True, **fields
            )

        leaving = await stream(max_tokens=3000, extra_body={"ignore_eos": True})
        async for chunk in leaving:
            if chunk.choices[0].delta.content:
                break

        async def whole(seed: int) -> str:
            chunks = [chunk async for chunk in await stream(max_tokens=12, seed=seed)]
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

        first, second = await asyncio.gather(whole(1), whole(2))
        assert first == second != ""
        await leaving.close()
    with httpx2.Client(base_url=url, headers={"x-api-key": KEY}) as plain:
        deadline = time.monotonic() + 60
        while (health := plain.get("/health").json())["active"] or not cancelled(health):
            assert time.monotonic() < deadline, "a dropped stream still runs"
            await asyncio.sleep(0.05)


def cancelled(health: dict[str, Any]) -> int:
    count: int = health["totals"]["cancelled"]
    return count
