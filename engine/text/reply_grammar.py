"""What a caller wants a reply to be, as a grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.errors import RequestError
from engine.messages import Grammar, ReplyFormat
from engine.text.grammar_check import problem
from engine.text.json_schema import json_rule
from engine.text.lark import Rules, quoted
from engine.text.tool_calls import Form

SCHEMA_FIELD = "response_format"


def reply_grammar(
    reply: ReplyFormat,
    tools: Sequence[Mapping[str, Any]],
    form: Form | None,
    controls: Mapping[str, int],
    *,
    reasoning: Mapping[str, str] | None = None,
    opened: bool = False,
) -> Grammar:
    """The grammar of `reply`, known to compile.

    tools: OpenAI-shaped definitions. form: how the model writes calls, if that is known.
    controls: spelling of each control token to its id. reasoning: the model's markers for it,
    where it may come first; opened: the prompt has done so. Raises RequestError naming the field.
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
    start = " | ".join(alternatives)
    if reply.reasons and reasoning:
        named["answer"] = start
        start = f"{_reasoning(reasoning, opened, rules)} answer"
    text = rules.text(start, **named)
    field = blamed[0][0] if len(blamed) == 1 else "tools"
    if reason := problem(text):
        for part, rule in blamed if len(blamed) > 1 else ():
            if its_own := problem(rules.text(rule)):
                field, reason = part, its_own
                break
        raise RequestError(f"{field}: {reason}", field=field)
    return Grammar(text=text, field=field)


def _reasoning(markers: Mapping[str, str], opened: bool, rules: Rules) -> str:
    """What may stand before an answer: any text, up to the marker that closes it."""
    ways = []
    for opener, closer in markers.items():
        text = f"/(?s:.*)/ {quoted(closer)}"
        until = rules.literal(closer)
        # A control token ends a text by itself; one that is spelled must be looked for.
        body = f"/(?s:.*)/ {until}" if until.startswith("<[") else rules.lazy(f"({text})")
        ways.append(body if opened else f"{rules.literal(opener)} {body}")
    whole = f"({' | '.join(ways)}) /[\\n ]{{0,2}}/"
    return f"({whole})" if opened else f"({whole})?"


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
