"""Calls that a model wrote almost right, read where they can only mean one thing.

What is put right: control characters inside JSON text, commas before a closing bracket, Python's
quotes and names of constants, closing brackets that are missing or too many, arguments that are
JSON text of an object, a closing marker that the reply's end cut off. A text that ends inside a
string is never completed: nobody knows how it goes on.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

import msgspec

from engine.messages import ToolCall
from engine.text.tool_calls import Form, JsonForm, XmlForm, read_calls

_CLOSING = {"{": "}", "[": "]"}
_NAMES = ("name", "function", "tool")
_ARGUMENTS = ("arguments", "parameters", "args", "input")


def repaired_calls(
    text: str, form: Form, tools: Mapping[str, Mapping[str, Any]]
) -> tuple[ToolCall, ...]:
    """The calls that `text` can only mean; none if it is not clear. Each says what was wrong."""
    if isinstance(form, XmlForm):
        return _xml(text, form, tools)
    if isinstance(form, JsonForm):
        return _json_calls(text, form)
    return ()


def certainly_over(text: str, form: Form) -> bool:
    """Whether a stretch that ends with a closing marker ends there, even though it cannot be read:
    the marker may also be part of an argument."""
    if isinstance(form, XmlForm):
        return re.search(r"</(?:parameter|function)>\s*</tool_call>$", text) is not None
    return isinstance(form, JsonForm) and not _ends_in_string(text)


def _ends_in_string(text: str) -> bool:
    return len(re.findall(r'"', re.sub(r"\\.", "", text, flags=re.S))) % 2 == 1


def _xml(text: str, form: XmlForm, tools: Mapping[str, Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    opening = re.search(r"<function=([^>\n]+)>", text)
    if opening is None:
        return _json_calls(text, JsonForm()) if "<parameter=" not in text else ()
    body = text[opening.end() :]
    closed = re.search(r"\s*(</parameter>)?\s*(</function>)?\s*(</tool_call>)?\s*$", body)
    assert closed is not None
    body = body[: closed.start()] + (closed[1] or "")
    arguments, rest = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>", re.S), body
    found: list[tuple[str, str]] = []
    while (argument := arguments.match(rest)) is not None:
        value = argument[2].removeprefix("\n").removesuffix("\n")
        # A second opening inside means that a closing was forgotten somewhere.
        if "<parameter=" in value:
            return ()
        found.append((argument[1], value))
        rest = rest[argument.end() :]
    if rest.strip():
        return ()
    written = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in found)
    whole = f"<tool_call>\n<function={opening[1]}>\n{written}</function>\n</tool_call>"
    return _marked(read_calls(whole, form, tools), "its markers were incomplete")


def _json_calls(text: str, form: JsonForm) -> tuple[ToolCall, ...]:
    begin, before, after = form.begin.strip(), form.before.strip(), form.after.strip()
    inner = text.strip().removeprefix(begin.removesuffix("[").strip()).strip()
    inner = inner.removeprefix(before).removesuffix(after).strip() if before else inner
    if not inner.startswith(("{", "[")):
        return ()
    value, note = _value(inner)
    values = value if isinstance(value, list) else [value]
    calls = [_call(one) for one in values]
    if not calls or any(call is None for call in calls):
        return ()
    found = tuple(call for call in calls if call is not None)
    return _marked(found, note or "its form was not quite the model's")


def _call(value: Any) -> ToolCall | None:
    if not isinstance(value, Mapping):
        return None
    function = value.get("function")
    if isinstance(function, Mapping):
        value = function
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), None)
    given = [value[key] for key in _ARGUMENTS if key in value]
    if name is None or len(given) > 1:
        return None
    arguments = given[0] if given else {}
    if isinstance(arguments, str):
        arguments, _ = _value(arguments) if arguments.strip() else ({}, "")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None
    return ToolCall(name=name, arguments=json.dumps(arguments, ensure_ascii=False))


def _value(text: str) -> tuple[Any, str]:
    """What a JSON text means, and what is wrong with it; None when that is not clear."""
    text = text.strip()
    balanced = _balanced(text)
    tries = [(text, ""), (balanced, "its brackets did not match")]
    for candidate, note in tries:
        if candidate is None:
            continue
        for strict in (True, False):
            try:
                return json.loads(candidate, strict=strict), note or (
                    "" if strict else "its JSON text had control characters"
                )
            except ValueError:
                continue
        try:
            return json.loads(_without_trailing_commas(candidate), strict=False), (
                "it had a comma before a closing bracket"
            )
        except ValueError:
            pass
        value = _python(candidate)
        if value is not None:
            return value, "it was written as Python has it"
    return None, ""


def _python(text: str) -> Any:
    """What a literal of Python means, if JSON has such a value; else None."""
    with warnings.catch_warnings():
        # Python warns of backslashes that mean nothing to it.
        warnings.simplefilter("ignore")
        try:
            value = ast.literal_eval(text)
            json.dumps(value)
        except (ValueError, SyntaxError, TypeError, MemoryError):
            return None
    return value


def _balanced(text: str) -> str | None:
    """`text` with the brackets closed that are open at its end, or without those that close
    nothing there; None when it ends inside a string or its brackets cross."""
    unclosed: list[str] = []
    inside = escaped = False
    for index, sign in enumerate(text):
        if inside:
            inside = escaped or sign != '"'
            escaped = sign == "\\" and not escaped
        elif sign == '"':
            inside = True
        elif sign in _CLOSING:
            unclosed.append(_CLOSING[sign])
        elif sign in "}]":
            if not unclosed or unclosed.pop() != sign:
                return None
            if not unclosed:
                return None if text[index + 1 :].strip("}] \n\t") else text[: index + 1]
    if inside:
        return None
    return text.rstrip().rstrip(",") + "".join(reversed(unclosed))


def _without_trailing_commas(text: str) -> str:
    """Outside strings only."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text, flags=re.S)
    parts[::2] = [re.sub(r",\s*([}\]])", r"\1", part) for part in parts[::2]]
    return "".join(parts)


def _marked(calls: tuple[ToolCall, ...], note: str) -> tuple[ToolCall, ...]:
    return tuple(msgspec.structs.replace(call, repaired=note) for call in calls)
