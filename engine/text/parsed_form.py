"""Forms of tool calls that mlx-lm has a parser for. Those of `enforced_forms` can be enforced."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Mapping
from typing import Any

from engine.errors import RequestError
from engine.messages import ToolCall
from engine.text.json_schema import TYPES, Types
from engine.text.lark import Rules
from engine.text.marks import Marks

PARSERS = {
    "<minimax:tool_call>": "minimax_m2",
    "<tool_call|>": "gemma4",
    "<start_function_call>": "function_gemma",
    "<longcat_tool_call>": "longcat",
    "<arg_key>": "glm47",
    "<|tool_list_start|>": "pythonic",
    "<|tool_call_start|>": "pythonic",
    "<|tool_calls_section_begin|>": "kimi_k2",
    "<|open|>tools<|sep|>": "kimi_k3",
    '<function name="': "minicpm5",
    "<atem:function_calls>": "muse_spark",
}
"""What gives a form away in a chat template, and the module of `mlx_lm.tool_parsers` for it."""


class ParsedForm:
    """name: of a module of `mlx_lm.tool_parsers`."""

    begin: str = ""
    between: str | None = None
    end: str = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self._parser = _parser(name)
        self.marks = Marks((self._parser.tool_call_start,), (self._parser.tool_call_end,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ParsedForm) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def rule(self, rules: Rules, tool: Mapping[str, Any], field: str) -> str:
        raise RequestError(
            f'{field}: calls in this model\'s form cannot be enforced; use tool_choice "auto"',
            field="tool_choice",
        )

    def read(
        self, text: str, start: int, tools: Mapping[str, Mapping[str, Any]]
    ) -> tuple[ToolCall, int] | None:
        calls = self.calls(text[start:], tools)
        return (calls[0], len(text)) if len(calls) == 1 else None

    def calls(self, text: str, tools: Mapping[str, Mapping[str, Any]]) -> tuple[ToolCall, ...]:
        """All calls of a stretch with its marks; none if the parser cannot read it."""
        (opening,), (closing,) = self.marks.opens, self.marks.closes
        text = text.strip()
        if not text.startswith(opening) or not text.endswith(closing):
            return ()
        # Two of the parsers want the marks, and they find no call without them.
        inner = text[len(opening) : len(text) - len(closing)]
        known = [{"type": "function", "function": _typed(tool)} for tool in tools.values()]
        for part in (inner, text):
            try:
                parsed = self._parser.parse_tool_call(part, known)
            except Exception:
                # They raise whatever goes wrong inside them.
                continue
            found = parsed if isinstance(parsed, list) else [parsed]
            calls = tuple(_call(one) for one in found)
            if calls and None not in calls:
                return tuple(filter(None, calls))
        return ()


@functools.cache
def _parser(name: str) -> Any:
    return importlib.import_module(f"mlx_lm.tool_parsers.{name}")


def _typed(tool: Mapping[str, Any]) -> dict[str, Any]:
    """`tool` with the types that its arguments have by reference, enum or const: the parsers look
    at `type` alone."""
    parameters = tool.get("parameters") or {}
    declared, types = parameters.get("properties"), Types(parameters)
    if not isinstance(declared, Mapping):
        return dict(tool)
    typed = {}
    for name, schema in declared.items():
        found = types.of(schema)
        typed[name] = schema
        if isinstance(schema, Mapping) and len(found) == 1:
            typed[name] = {**schema, "type": min(found)}
        elif isinstance(schema, Mapping) and "type" not in schema and found != TYPES:
            typed[name] = {**schema, "type": sorted(found)}
    return {**tool, "parameters": {**parameters, "properties": typed}}


def _call(parsed: Any) -> ToolCall | None:
    if not isinstance(parsed, Mapping) or not isinstance(parsed.get("name"), str):
        return None
    arguments = parsed.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if not isinstance(arguments, Mapping):
        return None
    return ToolCall(name=parsed["name"], arguments=json.dumps(arguments, ensure_ascii=False))
