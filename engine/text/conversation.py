"""OpenAI-shaped messages and tools, checked and put into the shape that chat templates read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.client import Message
from engine.errors import RequestError

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
# Clients name a message's reasoning in several ways; templates read the first (gpt-oss the second).
REASONING = ("reasoning_content", "thinking", "reasoning")
TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


def plain(value: Any, where: str) -> Any:
    """A copy of JSON-like `value` out of plain dicts, lists and strings.

    Raises RequestError naming the place of anything else, lone surrogates included: they are no
    text and no tokenizer takes them.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"{where} holds a lone surrogate (\\u{ord(value[error.start]):04x}), which is not "
                "valid Unicode text",
                field=where,
            ) from None
        return str(value)
    if isinstance(value, Mapping):
        return {
            plain(str(key), f"{where} (a key)"): plain(item, f"{where}.{_label(key)}")
            for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise RequestError(
        f"{where} is a {type(value).__name__}, which JSON does not have", field=where
    )


def _label(key: object) -> str:
    return str(key).encode(errors="backslashreplace").decode()


def conversation(messages: Sequence[Message], *, developer: bool) -> list[dict[str, Any]]:
    """Messages as a template expects them: text content, tool arguments as objects, no nulls.

    developer: whether the template knows that role; otherwise it becomes ``system``.
    Raises RequestError naming ``messages[i]...``.
    """
    if not messages:
        raise RequestError("messages must hold at least one message", field="messages")
    shaped = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise RequestError(f"{where} is not an object", field=where)
        shaped.append(_message(message, where, developer))
    return shaped


def _message(message: Message, where: str, developer: bool) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(
            f"{where}.role must be one of {', '.join(sorted(ROLES))}, got {role!r}",
            field=f"{where}.role",
        )
    shaped = {
        key: plain(value, f"{where}.{key}")
        for key, value in message.items()
        if value is not None and key not in ("role", "content", "tool_calls")
    }
    shaped["role"] = "system" if role == "developer" and not developer else role
    shaped["content"] = _text(message.get("content"), f"{where}.content")
    reasoning = next((shaped[key] for key in REASONING if shaped.get(key)), None)
    if reasoning is not None:
        shaped = {"thinking": reasoning, **shaped, "reasoning_content": reasoning}
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise RequestError(f"{where}.tool_calls is not a list", field=f"{where}.tool_calls")
        shaped["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)
        ]
    return shaped


def _text(content: Any, where: str) -> str:
    """Text of a message's content; text parts are joined by newlines."""
    if content is None:
        return ""
    if isinstance(content, str):
        return str(plain(content, where))
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise RequestError(f"{where} must be a string, null or a list of parts", field=where)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(part, Mapping) and kind not in TEXT_PARTS:
            raise RequestError(
                f"{where}[{index}] is a part of type {kind!r}; this model reads only text",
                field=where,
            )
        if not isinstance(text, str):
            raise RequestError(f"{where}[{index}].text must be a string", field=where)
        texts.append(plain(text, f"{where}[{index}].text"))
    return "\n".join(texts)


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    shaped: dict[str, Any] = plain(call, where) if isinstance(call, Mapping) else {}
    function = shaped.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function must have a name", field=f"{where}.function")
    # OpenAI sends the arguments as JSON text, templates iterate over them.
    arguments = function.get("arguments")
    field = f"{where}.function.arguments"
    if isinstance(arguments, str):
        arguments = _read_arguments(arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise RequestError(f"{field} must be a JSON object", field=field)
    return shaped | {"function": function | {"arguments": plain(arguments, field)}}


def _read_arguments(text: str) -> dict[str, Any]:
    """The arguments of a call that some model made once. They may be broken: the agent has told it
    so already, and goes on with the conversation."""
    try:
        arguments = json.loads(text) if text.strip() else {}
    except ValueError:
        return {"arguments": text}
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def without_late_system(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For templates that show one system message, and only at the beginning: the leading ones
    become one, later ones are the user's."""
    lead = next((index for index, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    first = [turn["content"] for turn in turns[:lead]]
    system = [{"role": "system", "content": "\n\n".join(first)}] if first else []
    return system + [
        {**turn, "role": "user"} if turn["role"] == "system" else turn for turn in turns[lead:]
    ]


def with_short_ids(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For Mistral's templates, which want a call's id to be nine letters and digits."""
    short = []
    for turn in turns:
        turn = dict(turn)
        if isinstance(turn.get("tool_call_id"), str):
            turn["tool_call_id"] = _short(turn["tool_call_id"])
        if turn.get("tool_calls"):
            turn["tool_calls"] = [
                {**call, "id": _short(str(call.get("id")))} for call in turn["tool_calls"]
            ]
        short.append(turn)
    return short


def _short(id: str) -> str:
    if len(id) == 9 and id.isalnum():
        return id
    return hashlib.blake2b(id.encode(), digest_size=5).hexdigest()[:9]


def alternating(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For templates that want user and assistant by turns: neighbours of the user become one."""
    joined: list[dict[str, Any]] = []
    for turn in turns:
        if joined and turn["role"] == joined[-1]["role"] == "user":
            content = f"{joined[-1]['content']}\n\n{turn['content']}"
            joined[-1] = {**joined[-1], "content": content}
        else:
            joined.append(turn)
    return joined


def tool_definitions(tools: Sequence[Message] | None) -> list[dict[str, Any]] | None:
    """Tools as a template expects them, or None when there are none."""
    if not tools:
        return None
    shaped = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        copy = plain(tool, where)
        function = copy.get("function", copy) if isinstance(copy, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"{where}.function must have a name", field=f"{where}.function.name")
        # To leave the parameters out means that there are none; templates read them unasked.
        if function.get("parameters") is None:
            function["parameters"] = {"type": "object", "properties": {}}
        if not isinstance(function["parameters"], dict):
            raise RequestError(
                f"{where}.function.parameters must be a JSON schema object",
                field=f"{where}.function.parameters",
            )
        shaped.append(copy)
    return shaped
