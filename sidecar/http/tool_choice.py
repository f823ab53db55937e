"""What a chat completion says about the form of its reply."""

from __future__ import annotations

import msgspec

from engine import ReplyFormat, RequestError
from sidecar.http.schema.chat_request import ChatRequest, NamedTool

ANY_OBJECT = '{"type": "object"}'


def reply_format_of(wire: ChatRequest) -> ReplyFormat | None:
    """What a reply is held to, by `response_format` and `tool_choice`; None if it is free.

    Raises RequestError naming the field.
    """
    choice, schema = wire.tool_choice, _schema(wire)
    if isinstance(choice, NamedTool):
        return ReplyFormat(calls=True, tool=choice.function.name, several=False)
    several = wire.parallel_tool_calls is not False
    if choice == "required":
        return ReplyFormat(calls=True, several=several)
    if schema is None:
        return None
    # A model that is to answer in JSON may still look something up first.
    may_call = bool(wire.tools) and choice != "none"
    return ReplyFormat(schema=schema, calls=may_call, several=several)


def _schema(wire: ChatRequest) -> str | None:
    wanted = wire.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return ANY_OBJECT
    if wanted.json_schema is None or wanted.json_schema.schema is None:
        raise RequestError("response_format.json_schema.schema is missing", field="response_format")
    return msgspec.json.encode(wanted.json_schema.schema).decode()
