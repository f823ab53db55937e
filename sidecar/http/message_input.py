"""Anthropic's messages, tools and choices in the words of a chat turn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from engine import ReplyFormat, RequestError
from sidecar.http.schema.messages_request import Block, CountTokensRequest
from sidecar.jobs.chat import reasoning_variables

# Claude Code says there which build it is; for a model it is noise at the front of every prompt.
_BILLING = "x-anthropic-billing-header"


def messages_of(wire: CountTokensRequest) -> list[dict[str, Any]]:
    """OpenAI-shaped messages. Raises RequestError naming the block."""
    messages: list[dict[str, Any]] = []
    if system := _system(wire.system):
        messages.append({"role": "system", "content": system})
    for index, turn in enumerate(wire.messages):
        where = f"messages[{index}]"
        if isinstance(turn.content, str):
            messages.append({"role": turn.role, "content": turn.content})
        elif turn.role == "assistant":
            messages.append(_reply(turn.content, where))
        else:
            messages += _told(turn.role, turn.content, where)
    return messages


def conversation_of(wire: CountTokensRequest) -> str | None:
    """A name for the conversation whose turns carry cache marks: all of them begin alike. None
    without marks."""
    blocks = [*(wire.system if isinstance(wire.system, list) else ())]
    for turn in wire.messages:
        blocks += turn.content if isinstance(turn.content, list) else ()
    if not any(block.cache_control for block in blocks):
        return None
    first = wire.messages[0].content
    texts = first if isinstance(first, str) else [block.text for block in first]
    return hashlib.sha256(msgspec.json.encode((_system(wire.system), texts))).hexdigest()


def _system(system: str | Sequence[Block] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    texts = [_text(block, f"system[{index}]") for index, block in enumerate(system)]
    return "\n\n".join(text for text in texts if not text.startswith(_BILLING))


def _reply(blocks: Sequence[Block], where: str) -> dict[str, Any]:
    """What the model said earlier, as one message."""
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for index, block in enumerate(blocks):
        here = f"{where}.content[{index}]"
        match block.type:
            case "thinking":
                thoughts.append(block.thinking or "")
            case "redacted_thinking":
                continue
            case "tool_use":
                if not block.name:
                    raise RequestError(f"{here}.name is missing", field=f"{here}.name")
                function = {"name": block.name, "arguments": block.input or {}}
                calls.append({"id": block.id, "type": "function", "function": function})
            case _:
                texts.append(_text(block, here))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _told(role: str, blocks: Sequence[Block], where: str) -> list[dict[str, Any]]:
    """What the model was told: results of tools, then text."""
    results, texts = list[dict[str, Any]](), list[str]()
    for index, block in enumerate(blocks):
        here = f"{where}.content[{index}]"
        if block.type == "tool_result":
            if not block.tool_use_id:
                raise RequestError(f"{here}.tool_use_id is missing", field=f"{here}.tool_use_id")
            content = _result(block.content, f"{here}.content")
            if block.is_error:
                # Templates have no place for it, so the model reads it.
                content = f"Error: {content}"
            results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
        else:
            texts.append(_text(block, here))
    if texts or not results:
        results.append({"role": role, "content": "\n\n".join(texts)})
    return results


def _result(content: str | Sequence[Block] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_text(block, f"{where}[{index}]") for index, block in enumerate(content))


def _text(block: Block, where: str) -> str:
    if block.type == "tool_reference":
        return block.name or ""
    if block.type != "text":
        raise RequestError(
            f'{where} is of type "{block.type}"; this model reads text only',
            field=f"{where}.type",
            code="unsupported_value",
        )
    if block.text is None:
        raise RequestError(f"{where} lacks its text", field=f"{where}.text")
    return block.text


def functions_of(wire: CountTokensRequest) -> tuple[dict[str, Any], ...]:
    """OpenAI-shaped functions; a model that may call none sees none."""
    if wire.tool_choice is not None and wire.tool_choice.type == "none":
        return ()
    functions = []
    for tool in wire.tools or ():
        if tool.type not in (None, "custom"):
            continue
        function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema or {}}
        if tool.description is not None:
            function["description"] = tool.description
        functions.append({"type": "function", "function": function})
    return tuple(functions)


def reply_format_of(wire: CountTokensRequest, may_call: bool) -> ReplyFormat | None:
    """What the reply is held to; None if it is free."""
    choice = wire.tool_choice
    several = choice is None or not choice.disable_parallel_tool_use
    if choice is not None and choice.type == "tool":
        return ReplyFormat(calls=True, tool=choice.name, several=False)
    if choice is not None and choice.type == "any":
        return ReplyFormat(calls=True, several=several)
    wanted = wire.output_config.format if wire.output_config is not None else None
    if wanted is None:
        return None
    schema = msgspec.json.encode(wanted.schema).decode()
    return ReplyFormat(schema=schema, calls=may_call, several=several)


def template_of(wire: CountTokensRequest) -> dict[str, Any]:
    """Variables of the chat template for how much to think."""
    effort = wire.output_config.effort if wire.output_config is not None else None
    thinking = wire.thinking.type if wire.thinking is not None else "adaptive"
    if thinking == "adaptive":
        # An effort alone does not ask for thinking.
        variables = reasoning_variables(effort)
        return {key: value for key, value in variables.items() if key != "enable_thinking"}
    return reasoning_variables(effort) | {"enable_thinking": thinking == "enabled"}
