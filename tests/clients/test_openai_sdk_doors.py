"""The `openai` SDK's typed client on all that a reply can be made of, whole and streamed.

A scripted model, through the real door: it reasons, answers and calls two tools.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from http_door import socket_door
from openai import AsyncOpenAI
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)

from engine.testing import FakeEngine

pytestmark = pytest.mark.clients

CALL = "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>"
REPLY = f"<think>\nHm.\n</think>\n\nYes.\n\n{CALL}\n{CALL}"
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOL: Any = {"type": "function", "function": {"name": "read", "parameters": PARAMETERS}}
FLAT: Any = {"type": "function", "name": "read", "parameters": PARAMETERS, "strict": False}
ASK: Any = [{"role": "user", "content": "hello"}]


@pytest_asyncio.fixture
async def sdk() -> AsyncIterator[AsyncOpenAI]:
    async with (
        socket_door(FakeEngine(REPLY)) as door,
        AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_chat_with_reasoning_and_calls(sdk: AsyncOpenAI) -> None:
    reply = await sdk.chat.completions.create(
        model="default", messages=ASK, tools=[TOOL], n=2, logprobs=True, top_logprobs=3, seed=1
    )
    assert [choice.index for choice in reply.choices] == [0, 1]
    message = reply.choices[0].message
    assert message.content == "Yes."
    assert message.model_dump()["reasoning_content"] == "Hm."
    assert [call.id for call in message.tool_calls or []] != [
        call.id for call in reply.choices[1].message.tool_calls or []
    ]
    assert reply.choices[0].logprobs is not None
    assert all(len(token.top_logprobs) == 3 for token in reply.choices[0].logprobs.content or [])
    assert reply.usage is not None
    details = reply.usage.completion_tokens_details
    assert details is not None
    assert (details.reasoning_tokens or 0) > 0


async def test_the_chat_stream_adds_up_to_the_same(sdk: AsyncOpenAI) -> None:
    ask: Any = {"model": "default", "messages": ASK, "tools": [TOOL], "seed": 1}
    whole = (await sdk.chat.completions.create(**ask)).choices[0].message
    async with sdk.chat.completions.stream(**ask, stream_options={"include_usage": True}) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    message = final.choices[0].message
    assert message.content == whole.content
    assert [call.id for call in message.tool_calls or []] == [
        call.id for call in whole.tool_calls or []
    ]
    arguments = [call.function.arguments for call in message.tool_calls or []]
    assert [json.loads(text) for text in arguments] == [{"path": "a"}] * 2
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage is not None
    assert kinds.index("content.delta") < kinds.index("content.done")
    assert "tool_calls.function.arguments.done" in kinds


async def test_responses_whole_streamed_and_continued(sdk: AsyncOpenAI) -> None:
    whole = await sdk.responses.create(model="default", input="hello", tools=[FLAT])
    kinds = [ResponseReasoningItem, ResponseOutputMessage, *[ResponseFunctionToolCall] * 2]
    assert [type(item) for item in whole.output] == kinds
    assert whole.output_text == "Yes."
    async with sdk.responses.stream(model="default", input="hello", tools=[FLAT]) as stream:
        events = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert events[0] == "response.created"
    assert events[-1] == "response.completed"
    assert final.output_text == "Yes."
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    call = final.output[2]
    assert isinstance(call, ResponseFunctionToolCall)
    result: Any = {"type": "function_call_output", "call_id": call.call_id}
    again = await sdk.responses.create(
        model="default", previous_response_id=final.id, input=[result | {"output": "text"}]
    )
    assert again.previous_response_id == final.id
    likely = await sdk.responses.create(
        model="default", input="hello", include=["message.output_text.logprobs"], top_logprobs=2
    )
    said = next(item for item in likely.output if isinstance(item, ResponseOutputMessage))
    assert isinstance(said.content[0], ResponseOutputText)
    tokens = said.content[0].logprobs or []
    # White space between the parts of a reply is said by tokens, too.
    assert "".join(one.token for one in tokens).strip() == said.content[0].text
    assert all(len(one.top_logprobs) == 2 for one in tokens)
    assert again.usage is not None
    assert again.usage.input_tokens > (whole.usage.input_tokens if whole.usage else 0)


async def test_completions(sdk: AsyncOpenAI) -> None:
    ask: Any = {"model": "default", "prompt": "def f(", "suffix": "\n", "max_tokens": 400}
    whole = await sdk.completions.create(**ask, logprobs=2)
    text = whole.choices[0].text
    assert text == REPLY
    assert whole.choices[0].logprobs is not None
    assert "".join(whole.choices[0].logprobs.tokens or []) == REPLY
    pieces = [
        chunk.choices[0].text async for chunk in await sdk.completions.create(**ask, stream=True)
    ]
    assert "".join(pieces) == text


async def test_errors_are_the_sdks(sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.responses.create(model="default", input="a" * 5000)
    assert refused.value.code == "context_length_exceeded"
    events = [
        event
        async for event in await sdk.responses.create(
            model="default", input="a" * 5000, stream=True
        )
    ]
    assert events[-1].type == "response.failed"
    with pytest.raises(openai.BadRequestError):
        await sdk.completions.create(model="default", prompt="")
