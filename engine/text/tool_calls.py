"""The forms in which models write tool calls: as grammars, and read back.

Which form a model has learnt stands in its chat template.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engine.errors import RequestError
from engine.messages import ToolCall
from engine.text.enforced_forms import enforced_form
from engine.text.json_schema import Types, json_rule, rebased, type_of
from engine.text.lark import Rules, quoted
from engine.text.marks import Marks
from engine.text.parsed_form import PARSERS, ParsedForm
from engine.text.text_values import TextValues, one_by_one

OPEN, CLOSE = "<tool_call>", "</tool_call>"
Tool = Mapping[str, Any]


class Form(Protocol):
    """One way to write a call. A tool is an OpenAI-shaped function with its ``parameters``.

    begin, end: what stands before the first and after the last call of a reply. between: what
    stands between two; None where a reply makes one call at most.
    """

    @property
    def begin(self) -> str: ...

    @property
    def between(self) -> str | None: ...

    @property
    def end(self) -> str: ...

    @property
    def marks(self) -> Marks:
        """Where a stretch of calls begins and ends."""

    def rule(self, rules: Rules, tool: Tool, field: str) -> str:
        """A Lark expression of a call of `tool`. Raises RequestError naming `field`."""

    def read(self, text: str, start: int, tools: Mapping[str, Tool]) -> tuple[ToolCall, int] | None:
        """The call that begins at `start`, and where it ends; None if there is none."""


def form_of(template: str) -> Form | None:
    """The form that a chat template writes; None if it is not one that we know."""
    for sign, parser in PARSERS.items():
        if sign in template:
            return enforced_form(parser)
    if "<function=" in template and "<parameter=" in template:
        return XmlForm()
    if OPEN in template and "arguments" in template:
        return JsonForm()
    if "[TOOL_CALLS]" in template:
        if "[ARGS]" not in template:
            return MISTRAL
        return MISTRAL_ID if "[CALL_ID]" in template else MISTRAL_ARGS
    if "<|channel|>" in template and "<|call|>" in template:
        return HARMONY
    if "ipython" in template and '"parameters": ' in template:
        return LLAMA
    return None


def read_calls(text: str, form: Form, tools: Mapping[str, Tool]) -> tuple[ToolCall, ...]:
    """The calls that a text consists of; none if it is anything else."""
    if isinstance(form, ParsedForm):
        return form.calls(text, tools)
    if form is LLAMA:
        text = text.removeprefix("<|python_tag|>")
    calls, end = list[ToolCall](), 0
    while end < len(text.rstrip()):
        found = form.read(text, end, tools)
        if found is None:
            return ()
        call, end = found
        calls.append(call)
    return tuple(calls)


@dataclass(frozen=True)
class JsonForm:
    """``{"name": ..., "arguments": {...}}`` between the markers (Hermes, Qwen 2.5 and 3).

    key: the arguments'. before, after: the markers of each call.
    """

    key: str = "arguments"
    before: str = f"{OPEN}\n"
    after: str = f"\n{CLOSE}"
    begin: str = ""
    between: str | None = "\n"
    end: str = ""

    @property
    def marks(self) -> Marks:
        """Without markers a call is the whole reply."""
        if self.before:
            return Marks((self.before.strip(),), (self.after.strip(),))
        if self.begin:
            return Marks((self.begin.removesuffix(" ["),))
        return Marks(("<|python_tag|>", "{"), first_only=True)

    def rule(self, rules: Rules, tool: Tool, field: str) -> str:
        arguments = rebased(tool["parameters"], f"#/properties/{self.key}", field=field)
        call = {
            "type": "object",
            "properties": {
                "name": {"const": tool["name"]},
                # Also where the schema does not say so: a call without an object is none.
                self.key: {"type": "object", **arguments},
            },
            "required": ["name", self.key],
            "additionalProperties": False,
        }
        opening, closing = rules.literal(self.before), rules.literal(self.after)
        return f"{opening} {json_rule(call, field=field)} {closing}"

    def read(self, text: str, start: int, tools: Mapping[str, Tool]) -> tuple[ToolCall, int] | None:
        first = self.begin if start == 0 else self.between
        opening = None if first is None else _loosely(first, self.before).match(text, start)
        if opening is None:
            return None
        try:
            call, end = json.JSONDecoder().raw_decode(text, opening.end())
        except ValueError:
            return None
        closing = _loosely(self.after).match(text, end)
        if closing is None or not isinstance(call, dict):
            return None
        name, arguments = str(call.get("name")), call.get(self.key)
        # Without markers any object may look like a call.
        if not isinstance(arguments, dict) or not (self.before or self.begin or name in tools):
            return None
        end = closing.end()
        if self.end and (last := _loosely(self.end).match(text, end)) is not None:
            end = last.end()
        elif self.end and not text[end:].lstrip().startswith(str(self.between).strip()):
            return None
        return ToolCall(name=name, arguments=_json(arguments)), end


MISTRAL = JsonForm(before="", after="", begin="[TOOL_CALLS] [", between=", ", end="]")
"""``[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]``, up to Mistral's third tokenizer."""

LLAMA = JsonForm(key="parameters", before="", after="", between=None)
"""``{"name": ..., "parameters": {...}}``, one in a reply (Llama 3.1, 3.2 and 3.3)."""


@dataclass(frozen=True)
class HeaderForm:
    """The name between `before` and `after`, then the arguments as JSON. identified: an id of
    nine letters and digits stands in between, behind ``[CALL_ID]``."""

    before: str
    after: str
    between: str | None
    identified: bool = False
    begin: str = ""
    end: str = ""

    @property
    def marks(self) -> Marks:
        """The header's first part; the name is behind it."""
        return Marks((self.before.removesuffix("functions."),))

    def rule(self, rules: Rules, tool: Tool, field: str) -> str:
        name = tool["name"]
        if not re.fullmatch(r"[\w-]+", name):
            raise RequestError(f"{field}: {name!r} cannot be written as a name", field=field)
        parts = [rules.literal(self.before), quoted(name)]
        if self.identified:
            parts += [rules.literal("[CALL_ID]"), "/[a-zA-Z0-9]{9}/"]
        arguments = json_rule({"type": "object", **tool["parameters"]}, field=field)
        return " ".join([*parts, rules.literal(self.after), arguments])

    def read(self, text: str, start: int, tools: Mapping[str, Tool]) -> tuple[ToolCall, int] | None:
        if start and self.between is None:
            return None
        called = r"([\w-]+)" + (r"\[CALL_ID\][a-zA-Z0-9]{9}" if self.identified else "")
        header = _loosely(self.before, called=called, after=self.after).match(text, start)
        if header is None:
            return None
        try:
            arguments, end = json.JSONDecoder().raw_decode(text, header.end())
        except ValueError:
            return None
        if not isinstance(arguments, dict):
            return None
        return ToolCall(name=header[1], arguments=_json(arguments)), end


MISTRAL_ARGS = HeaderForm("[TOOL_CALLS]", "[ARGS]", between="")
MISTRAL_ID = HeaderForm("[TOOL_CALLS]", "[ARGS]", between="", identified=True)
"""``[TOOL_CALLS]name[ARGS]{...}``, for each call anew; from Mistral's eleventh tokenizer on."""


class HarmonyForm(HeaderForm):
    """The header of a message to a function, as gpt-oss writes it. The recipient may also stand
    before the channel, which may be any, and the arguments' type may be left out."""

    _HEADER = re.compile(
        r"\s*(?:<\|start\|>)?(?:assistant)?\s*(?:<\|channel\|>)?\s*(?:commentary|analysis)?\s*"
        r"to=functions\.([\w-]+)\s*(?:<\|channel\|>)?\s*(?:commentary|analysis)?\s*"
        r"(?:<\|constrain\|>)?\s*(?:json|code)?\s*(?:<\|message\|>)?\s*"
    )

    @property
    def marks(self) -> Marks:
        """Any header with a recipient."""
        channels = ("<|channel|>commentary to=", "<|channel|>analysis to=")
        return Marks((*channels, "<|start|>assistant to="))

    def read(self, text: str, start: int, tools: Mapping[str, Tool]) -> tuple[ToolCall, int] | None:
        header = self._HEADER.match(text, start) if start == 0 else None
        if header is None:
            return None
        try:
            arguments, end = json.JSONDecoder().raw_decode(text, header.end())
        except ValueError:
            return None
        if not isinstance(arguments, dict):
            return None
        closing = re.compile(r"\s*(?:<\|call\|>|<\|end\|>)?").match(text, end)
        end = closing.end() if closing is not None else end
        return ToolCall(name=header[1], arguments=_json(arguments)), end


HARMONY = HarmonyForm(
    "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", between=None
)
"""What gpt-oss writes behind ``<|start|>assistant``, up to ``<|call|>``, which ends the reply."""

# Control tokens that have no text in a reply where they are marked special.
_SILENT = re.compile(r"(<\|\w+\|>)")


@functools.cache
def _loosely(*parts: str, called: str = "", after: str = "") -> re.Pattern[str]:
    """`parts`, then a name like `called`, then `after`, with any white space in between."""

    def spaced(literal: str) -> str:
        found = r"\s*"
        for index, part in enumerate(_SILENT.split(literal)):
            for word in map(re.escape, part.split()):
                found += (f"(?:{word})?" if index % 2 else word) + r"\s*"
        return found

    return re.compile("".join(map(spaced, parts)) + called + (spaced(after) if after else ""))


class XmlForm:
    """``<function=...>`` with one ``<parameter=...>`` each (Qwen 3 Coder, Qwen 3.5).

    A text argument stands there as it is, every other one as JSON. Arguments are written in the
    order in which the schema has them. A text argument cannot hold ``\\n</parameter>\\n``.
    """

    END = "\n</parameter>\n"
    begin, between, end = "", "\n", ""
    # Some models leave the outer marker out.
    marks = Marks((OPEN, "<function="), (CLOSE, "</function>"))
    _OPENING = re.compile(rf"\s*{OPEN}\s*<function=([^>\n]+)>\n")
    _ARGUMENT = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.DOTALL)
    _CLOSING = re.compile(rf"\s*</function>\s*{CLOSE}")

    def rule(self, rules: Rules, tool: Tool, field: str) -> str:
        arguments, required = one_by_one(tool["parameters"], field)
        values = TextValues(rules, tool["parameters"], field, self.END)
        parts = [rules.literal(f"{OPEN}\n<function="), _tag(tool["name"], field)]
        for name, schema in arguments.items():
            value = values.rule(schema, ("properties", name))
            argument = f"{quoted('<parameter=')} {_tag(name, field)} {value}"
            parts.append(argument if name in required else f"({argument})?")
        parts.append(rules.literal(f"</function>\n{CLOSE}"))
        return " ".join(parts)

    def read(self, text: str, start: int, tools: Mapping[str, Tool]) -> tuple[ToolCall, int] | None:
        opening = self._OPENING.match(text, start)
        if opening is None:
            return None
        parameters = tools.get(opening[1], {}).get("parameters") or {}
        types, declared = Types(parameters), parameters.get("properties") or {}
        arguments, end = {}, opening.end()
        while (argument := self._ARGUMENT.match(text, end)) is not None:
            name, value = argument.groups()
            arguments[name] = _value(value, types.of(declared.get(name, True)))
            end = argument.end()
        closing = self._CLOSING.match(text, end)
        if closing is None:
            return None
        return ToolCall(name=opening[1], arguments=_json(arguments)), closing.end()


def _tag(name: str, field: str) -> str:
    if not name or re.search(r"[>\n]", name):
        raise RequestError(f"{field}: {name!r} cannot be written as a tag", field=field)
    return quoted(f"{name}>\n")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _value(text: str, types: frozenset[str]) -> Any:
    """An argument as written: what its schema lets be text is text."""
    if types == {"string"}:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if type_of(value) in types - {"string"} else text
