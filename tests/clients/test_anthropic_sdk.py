"""The `anthropic` SDK's typed client on all that a reply can be made of, whole and streamed.

A scripted model, through the real door: it reasons, answers and calls two tools.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock
from http_door import socket_door

from engine.testing import FakeEngine

pytestmark = pytest.mark.clients

CALL = "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>"
REPLY = f"<think>\nHm.\n</think>\n\nYes.\n\n{CALL}\n{CALL}"
TOOL: Any = {
    "name": "read",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}
ASK: Any = {
    "model": "default",
    "max_tokens": 600,
    "messages": [{"role": "user", "content": "hello"}],
    "tools": [TOOL],
    "extra_body": {"seed": 1},
}


@pytest_asyncio.fixture
async def sdk() -> AsyncIterator[AsyncAnthropic]:
    async with (
        socket_door(FakeEngine(REPLY)) as door,
        AsyncAnthropic(base_url=door.url, api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_a_message(sdk: AsyncAnthropic) -> None:
    message = await sdk.messages.create(**ASK)
    assert [type(block) for block in message.content] == [
        ThinkingBlock,
        TextBlock,
        ToolUseBlock,
        ToolUseBlock,
    ]
    first, second = message.content[2:]
    assert isinstance(first, ToolUseBlock)
    assert isinstance(second, ToolUseBlock)
    assert first.input == {"path": "a"}
    assert first.id != second.id
    assert message.stop_reason == "tool_use"
    assert (await sdk.messages.create(**ASK)).id != message.id


async def test_a_stream_adds_up_to_the_same(sdk: AsyncAnthropic) -> None:
    whole = await sdk.messages.create(**ASK)
    async with sdk.messages.stream(**ASK) as stream:
        events = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert [block.to_dict() for block in final.content] == [
        block.to_dict() for block in whole.content
    ]
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == "tool_use"
    assert events[0] == "message_start"
    assert events[-1] == "message_stop"


async def test_a_tool_loop_with_thinking_handed_back(sdk: AsyncAnthropic) -> None:
    message = await sdk.messages.create(**ASK)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "text"}
        for block in message.content
        if isinstance(block, ToolUseBlock)
    ]
    turns = [
        *ASK["messages"],
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    again = await sdk.messages.create(**ASK | {"messages": turns})
    assert again.usage.input_tokens > message.usage.input_tokens
    count = await sdk.messages.count_tokens(model="default", messages=turns, tools=[TOOL])
    assert count.input_tokens == again.usage.input_tokens


async def test_errors_are_the_sdks(sdk: AsyncAnthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 5008 tokens > 4096"):
        await sdk.messages.create(**ASK | {"messages": [{"role": "user", "content": "a" * 5000}]})
    with pytest.raises(anthropic.NotFoundError):
        await sdk.messages.create(**ASK | {"model": "claude"})
