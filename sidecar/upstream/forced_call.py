"""A call that has to be made, of a server that takes no notice of ``tool_choice`` but holds replies
to a JSON schema (llama.cpp with a chat template of which it knows no form of calls). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engine import ReplyFormat, ToolCall

_ASKED = (
    "Answer with one call of a function, as a JSON object that has its name and its arguments: "
    '{"name": ..., "arguments": {...}}. The functions are:'
)


def call_by_schema(
    tools: Sequence[dict[str, Any]], reply: ReplyFormat
) -> tuple[str, dict[str, Any]]:
    """What the model is told, and the schema that its reply is held to. tools: OpenAI-shaped."""
    functions = [tool["function"] for tool in tools]
    if reply.tool is not None:
        functions = [one for one in functions if one["name"] == reply.tool]
    lines = [msgspec.json.encode(function).decode() for function in functions]
    if len(functions) == 1:
        schema = _schema_of(functions[0], "#")
    else:
        places = enumerate(functions)
        schema = {"anyOf": [_schema_of(one, f"#/anyOf/{index}") for index, one in places]}
    return "\n".join([_ASKED, *lines]), schema


def _schema_of(function: dict[str, Any], place: str) -> dict[str, Any]:
    parameters = function.get("parameters") or {"type": "object"}
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": _moved(parameters, f"{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """`schema`, which stands at `place` of a document now, with its own references put right."""
    if isinstance(schema, list):
        return [_moved(one, place) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, place) for key, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference.removeprefix("#")
    return moved


def read_call(text: str) -> ToolCall | None:
    """The call that a reply held to such a schema makes; None if it is none."""
    try:
        said = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    name, arguments = (
        (said.get("name"), said.get("arguments")) if isinstance(said, dict) else ("", 0)
    )
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return ToolCall(name=name, arguments=msgspec.json.encode(arguments).decode())
