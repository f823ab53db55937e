"""What a caller wants a reply to be, as a grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.errors import RequestError
from engine.messages import Grammar, ReplyFormat
from engine.text.grammar_check import problem
from engine.text.json_schema import json_rule
from engine.text.lark import Rules
from engine.text.tool_calls import Form

SCHEMA_FIELD = "response_format"


def reply_grammar(
    reply: ReplyFormat,
    tools: Sequence[Mapping[str, Any]],
    form: Form | None,
    controls: Mapping[str, int],
) -> Grammar:
    """The grammar of `reply`, known to compile.

    tools: OpenAI-shaped definitions. form: how the model writes calls, if that is known.
    controls: spelling of each control token to its id. Raises RequestError naming the field.
    """
    rules = Rules(controls)
    alternatives, blamed, named = [], [], {}
    if reply.schema is not None:
        rule = json_rule(_decoded(reply.schema), field=SCHEMA_FIELD)
        alternatives.append(rule)
        blamed.append((SCHEMA_FIELD, rule))
    if reply.calls and (form is not None or reply.schema is None):
        calls = _calls(reply, tools, form, rules)
        blamed += calls
        named["call"] = " | ".join(rule for _, rule in calls)
        assert form is not None
        again = ""
        if reply.several and form.between is not None:
            again = f" ({rules.literal(form.between)} call)*"
        begin, end = rules.literal(form.begin), rules.literal(form.end)
        alternatives.append(f"{begin} call{again} {end}".strip())
    text = rules.text(" | ".join(alternatives), **named)
    field = blamed[0][0] if len(blamed) == 1 else "tools"
    if reason := problem(text):
        for part, rule in blamed if len(blamed) > 1 else ():
            if its_own := problem(rules.text(rule)):
                field, reason = part, its_own
                break
        raise RequestError(f"{field}: {reason}", field=field)
    return Grammar(text=text, field=field)


def _decoded(schema: str) -> Any:
    try:
        return msgspec.json.decode(schema)
    except msgspec.DecodeError as error:
        raise RequestError(f"{SCHEMA_FIELD}: {error}", field=SCHEMA_FIELD) from None


def _calls(
    reply: ReplyFormat, tools: Sequence[Mapping[str, Any]], form: Form | None, rules: Rules
) -> list[tuple[str, str]]:
    """Each tool that may be called: the field to blame, and a call of it."""
    if form is None:
        raise RequestError(
            "tool_choice: this model's chat template has no form of tool calls that can be "
            'enforced; use "auto"',
            field="tool_choice",
        )
    calls = []
    for index, tool in enumerate(tools):
        function = tool.get("function", tool)
        if reply.tool in (None, function["name"]):
            field = f"tools[{index}].function.parameters"
            calls.append((field, form.rule(rules, function, field)))
    if not calls:
        named = f"no tool is named {reply.tool!r}" if reply.tool else "there are no tools"
        raise RequestError(f"tool_choice: {named}", field="tool_choice")
    return calls
