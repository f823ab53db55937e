"""The items of a `response`'s conversation as messages, and its tools as functions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from engine import RequestError
from sidecar.http.schema.responses_request import (
    DeclaredTool,
    InputItem,
    InputPart,
    ResponsesRequest,
)

TEXTS = frozenset({"input_text", "output_text", "summary_text", "reasoning_text", "text"})
_SEAL = "pillion."

CUSTOM = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The parameters of a custom tool: any text."""


class Origin(Struct, frozen=True):
    """Where a function's declaration was: in which namespace, and whether as a custom tool."""

    custom: bool = False
    namespace: str | None = None


def functions_of(
    tools: Sequence[DeclaredTool], field: str = "tools", namespace: str | None = None
) -> tuple[list[dict[str, Any]], dict[str, Origin]]:
    """OpenAI-shaped functions, and where each was. Raises RequestError naming what lacks a name."""
    functions: list[dict[str, Any]] = []
    origins: dict[str, Origin] = {}
    for index, tool in enumerate(tools):
        where = f"{field}[{index}]"
        if tool.type == "namespace":
            inner, theirs = functions_of(tool.tools or (), f"{where}.tools", tool.name)
            functions += [one for one in inner if one["function"]["name"] not in origins]
            origins = theirs | origins
        if tool.type not in ("function", "custom"):
            continue
        if not tool.name:
            raise RequestError(f"{where}.name is missing", field=f"{where}.name")
        custom = tool.type == "custom"
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": CUSTOM if custom else tool.parameters,
        }
        named = {key: value for key, value in function.items() if value is not None}
        functions.append({"type": "function", "function": named})
        origins[tool.name] = Origin(custom, namespace)
    return functions, origins


def messages_of(wire: ResponsesRequest) -> list[dict[str, Any]]:
    """The request's own input as messages, without its instructions. Raises RequestError naming
    the item."""
    if isinstance(wire.input, str):
        return [{"role": "user", "content": wire.input}]
    conversation = _Conversation()
    for index, item in enumerate(wire.input):
        conversation.add(item, f"input[{index}]")
    return conversation.messages


def sealed_reasoning(text: str) -> str:
    """Reasoning in the form in which clients hand it back without looking at it. It is not
    encrypted: it never leaves this machine."""
    return _SEAL + base64.b64encode(text.encode()).decode()


class _Conversation:
    """Items that one reply consisted of become one message again."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def add(self, item: InputItem, where: str) -> None:
        match item.type:
            case "message":
                self._message(item, where)
            case "reasoning":
                reasoning = _reasoning(item)
                if reasoning:
                    message = self._assistant()
                    before = message.get("reasoning_content")
                    message["reasoning_content"] = f"{before}\n{reasoning}" if before else reasoning
            case "function_call":
                self._call(item, where, item.arguments or "{}")
            case "custom_tool_call":
                self._call(item, where, {"input": item.input or ""})
            case "function_call_output" | "custom_tool_call_output":
                if not item.call_id:
                    raise RequestError(f"{where}.call_id is missing", field=f"{where}.call_id")
                content = _text(item.output, f"{where}.output")
                self.messages.append(
                    {"role": "tool", "tool_call_id": item.call_id, "content": content}
                )

    def _message(self, item: InputItem, where: str) -> None:
        role = item.role or "user"
        content = _text(item.content, f"{where}.content")
        if role != "assistant":
            self.messages.append({"role": role, "content": content})
            return
        message = self._assistant()
        message["content"] = message["content"] + content

    def _call(self, item: InputItem, where: str, arguments: str | Mapping[str, str]) -> None:
        if not item.name:
            raise RequestError(f"{where}.name is missing", field=f"{where}.name")
        call = {
            "id": item.call_id,
            "type": "function",
            "function": {"name": item.name, "arguments": arguments},
        }
        self._assistant().setdefault("tool_calls", []).append(call)

    def _assistant(self) -> dict[str, Any]:
        """The message that the items of a reply are gathered in."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def _reasoning(item: InputItem) -> str:
    sealed = item.encrypted_content or ""
    if sealed.startswith(_SEAL):
        try:
            return base64.b64decode(sealed.removeprefix(_SEAL), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
    parts = item.content if isinstance(item.content, list) else item.summary or []
    return "\n".join(part.text or "" for part in parts)


def _text(content: str | Sequence[InputPart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type != "refusal" and part.type not in TEXTS:
            raise RequestError(
                f'{where}[{index}] is of type "{part.type}"; this model reads text only',
                field=f"{where}[{index}].type",
                code="unsupported_value",
            )
        if text is None:
            raise RequestError(f"{where}[{index}] lacks its text", field=f"{where}[{index}].text")
        texts.append(text)
    return "\n".join(texts)
