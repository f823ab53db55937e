"""Forms that mlx-lm's parsers read and that a reply can be held to, by family.

A call is written so that the family's parser reads what the schema asks for; where that cannot be
promised it is refused by name.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import RequestError
from engine.messages import ToolCall
from engine.text.json_schema import Types, at, json_rule, rebased, steps_of, type_of
from engine.text.lark import Rules, quoted
from engine.text.parsed_form import ParsedForm
from engine.text.text_values import NULL, TextValues, limits, one_by_one

Tool = Mapping[str, Any]
# One of Python that is no word of its own.
_IDENTIFIER = rf"(?!(?:{'|'.join(keyword.kwlist)})\b)[A-Za-z_]\w*"


def enforced_form(parser: str) -> ParsedForm:
    """How a module of `mlx_lm.tool_parsers` has calls written."""
    return _FORMS[parser]() if parser in _FORMS else ParsedForm(parser)


class NumberedForm(ParsedForm):
    """A section of calls whose arguments are JSON (Kimi). call: what stands around a name, around
    the call's number, and behind the arguments."""

    between = ""

    def __init__(self, parser: str, call: tuple[str, str, str, str], begin: str, end: str) -> None:
        super().__init__(parser)
        self.begin, self.end = begin, end
        self._call = call

    def rule(self, rules: Rules, tool: Tool, field: str) -> str:
        before, named, numbered, after = map(rules.literal, self._call)
        name = quoted(_named(r"[\w.-]+", tool["name"], field))
        arguments = json_rule({"type": "object", **tool["parameters"]}, field=field)
        return f"{before} {name} {named} /[0-9]{{1,2}}/ {numbered} {arguments} {after}"


class LongcatForm(ParsedForm):
    """A call as one JSON object. Its other form, of keys and values, has no call without any."""

    between = "\n"

    def __init__(self) -> None:
        super().__init__("longcat")

    def rule(self, rules: Rules, tool: Tool, field: str) -> str:
        arguments = rebased(tool["parameters"], "#/properties/arguments", field=field)
        call = {
            "type": "object",
            "properties": {
                "name": {"const": tool["name"]},
                "arguments": {"type": "object", **arguments},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        opening = rules.literal("<longcat_tool_call>\n")
        closing = rules.literal("\n</longcat_tool_call>")
        return f"{opening} {json_rule(call, field=field)} {closing}"


class TaggedForm(ParsedForm):
    """A tag for each argument, texts as they are, everything else as JSON.

    call, argument: what stands before the arguments and before a value, in two parts around the
    name. value_end, call_end: what stands behind them. null: texts that say null are read as none.
    """

    def __init__(
        self,
        parser: str,
        call: tuple[str, str],
        argument: tuple[str, str],
        value_end: str,
        call_end: str,
        *,
        null: bool,
        stretch: tuple[str, str, str],
    ) -> None:
        super().__init__(parser)
        self.begin, self.between, self.end = stretch
        self._call, self._argument = call, argument
        self._value_end, self._call_end = value_end, call_end
        self._never = NULL if null else ""

    def rule(self, rules: Rules, tool: Tool, field: str) -> str:
        declared, required = one_by_one(tool["parameters"], field)
        values = TextValues(
            rules, tool["parameters"], field, self._value_end, stripped=True, never=self._never
        )
        space = r"/\n?/"
        parts = [rules.literal(self._call[0]), _tag(tool["name"], field)]
        parts += [rules.literal(self._call[1]), space]
        # Newer models of a family write no line breaks between two tags.
        named = f" {space} ".join(map(rules.literal, self._argument[1].split("\n")))
        for name, schema in declared.items():
            opening = f"{rules.literal(self._argument[0])} {_tag(name, field)} {named}"
            argument = f"{opening} {values.rule(schema, ('properties', name))} {space}"
            parts.append(argument if name in required else f"({argument})?")
        return " ".join(filter(None, [*parts, rules.literal(self._call_end)]))

    def calls(self, text: str, tools: Mapping[str, Tool]) -> tuple[ToolCall, ...]:
        """None while a value is open: the closing mark may be part of a text."""
        opening, closing = self._argument[0].strip(), self._value_end.strip()
        if text.rfind(opening) > text.rfind(closing):
            return ()
        return super().calls(text, tools)


class PythonicForm(ParsedForm):
    """A list of Python's calls with JSON as values."""

    begin, between, end = "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"

    def __init__(self) -> None:
        super().__init__("pythonic")

    def rule(self, rules: Rules, tool: Tool, field: str) -> str:
        declared, required = one_by_one(tool["parameters"], field)
        name = _named(rf"{_IDENTIFIER}(\.{_IDENTIFIER})*", tool["name"], field)
        arguments = []
        for key in declared:
            value = json_rule(tool["parameters"], ("properties", key), field=field)
            spelled = quoted(_named(_IDENTIFIER, key, field) + "=")
            arguments.append((f"{spelled} {value}", key in required))
        return f"{quoted(name + '(')} {listed(arguments, ', ')} {quoted(')')}"


class GemmaForm(ParsedForm):
    """Gemma 4's: keys without quotes, texts as they are between marks of their own, also in
    arrays and objects. Of an object what is declared is written, of any value no array and no
    object: what follows is never outside its schema."""

    MAX_DEPTH = 16
    MARK = '<|"|>'
    between = ""

    def __init__(self) -> None:
        super().__init__("gemma4")

    def rule(self, rules: Rules, tool: Tool, field: str) -> str:
        name = _named(r"[\w-]+", tool["name"], field)
        arguments = _GemmaValues(rules, tool["parameters"], field).members(
            tool["parameters"], ("properties",), 0
        )
        opening, closing = rules.literal("<|tool_call>"), rules.literal("<tool_call|>")
        return f"{opening} {quoted(f'call:{name}{{')} {arguments} {quoted('}')} {closing}"


class _GemmaValues:
    """Lark expressions for values in Gemma's form; `whole` is what references point into."""

    _COMBINED = frozenset({"$ref", "allOf", "anyOf", "if", "not", "oneOf"})
    _BESIDE = frozenset(
        {"contains", "dependentRequired", "enum", "items", "maxLength", "maxProperties"}
        | {"minLength", "minProperties", "pattern", "patternProperties", "prefixItems"}
        | {"properties", "propertyNames", "required", "uniqueItems", "maximum", "minimum"}
    )

    def __init__(self, rules: Rules, whole: Tool, field: str) -> None:
        self._rules = rules
        self._whole = whole
        self._field = field
        self._types = Types(whole)

    def members(self, schema: Tool, path: tuple[str, ...], depth: int) -> str:
        """What stands between the braces of an object; `path` is where its properties are."""
        declared, required = one_by_one(schema, self._field)
        arguments = []
        for name, part in declared.items():
            spelled = quoted(_named(r"\w+", name, self._field) + ":")
            value = self.rule(part, (*path, name), depth + 1)
            arguments.append((f"{spelled} {value}", name in required))
        return listed(arguments, ",")

    def rule(self, schema: Any, path: tuple[str, ...], depth: int) -> str:
        if depth > GemmaForm.MAX_DEPTH:
            raise self._beyond("a value that is nested so deep")
        types = self._types.of(schema)
        schema = schema if isinstance(schema, Mapping) else {}
        if not types & {"array", "object", "string"}:
            return json_rule(self._whole, path, field=self._field)
        if "enum" in schema or "const" in schema:
            return self._one_of(schema.get("enum", [schema.get("const")]), types)
        if combined := self._COMBINED & set(schema):
            return self._combined(schema, min(combined), path, depth)
        return self._of_types(schema, types, path, depth)

    def _of_types(
        self, schema: Tool, types: frozenset[str], path: tuple[str, ...], depth: int
    ) -> str:
        ways = []
        if "string" in types:
            ways.append(self._text(schema))
        plain = sorted(types & {"number", "boolean", "null"})
        if plain:
            alone = {**schema, "type": plain}
            integral = schema.get("type") in ("integer", ["integer"]) or (
                isinstance(schema.get("type"), list)
                and "integer" in schema["type"]
                and "number" not in schema["type"]
            )
            if integral:
                alone["type"] = ["integer" if one == "number" else one for one in plain]
            ways.append(json_rule(alone, field=self._field))
        if "array" in types and ("items" in schema or not ways):
            ways.append(self._array(schema, path, depth))
        if "object" in types and ("properties" in schema or not ways):
            inside = self.members(schema, (*path, "properties"), depth)
            ways.append(f"{quoted('{')} {inside} {quoted('}')}")
        return f"({' | '.join(ways)})"

    def _combined(self, schema: Tool, key: str, path: tuple[str, ...], depth: int) -> str:
        if beside := ((self._BESIDE | self._COMBINED) & set(schema)) - {key}:
            raise self._beyond(f"{key} beside {min(beside)}")
        if key == "$ref":
            steps = steps_of(str(schema["$ref"]))
            return self.rule(at(self._whole, steps), steps, depth + 1)
        parts = self._types.alternatives(schema, key)
        if parts is None:
            raise self._beyond(key)
        ways = [self.rule(part, (*path, key, str(i)), depth + 1) for i, part in enumerate(parts)]
        return f"({' | '.join(ways)})"

    def _one_of(self, values: Any, types: frozenset[str]) -> str:
        values = values if isinstance(values, list) else []
        ways = []
        for value in values:
            if type_of(value) not in types or isinstance(value, dict | list):
                continue
            if not isinstance(value, str):
                ways.append(json_rule({"const": value}, field=self._field))
            elif GemmaForm.MARK not in value:
                ways.append(f"{self._mark} {quoted(value)} {self._mark}".replace('"" ', ""))
        if not ways:
            raise self._beyond("an enum of these values")
        return f"({' | '.join(ways)})"

    def _text(self, schema: Tool) -> str:
        try:
            text = " & ".join(limits(schema)) or "/(?s:.*)/"
        except ValueError as error:
            raise self._beyond(str(error)) from None
        return f"{self._mark} {self._rules.until(text, GemmaForm.MARK)}"

    def _array(self, schema: Tool, path: tuple[str, ...], depth: int) -> str:
        for beyond in ("contains", "prefixItems", "uniqueItems"):
            if schema.get(beyond):
                raise self._beyond(beyond)
        least, most = schema.get("minItems", 0), schema.get("maxItems", "")
        if not re.fullmatch("[0-9]{1,4},([0-9]{1,4})?", f"{least},{most}"):
            raise self._beyond(f"a length from {least!r} to {most!r}")
        if most == 0:
            return quoted("[]")
        item = self.rule(schema.get("items", True), (*path, "items"), depth + 1)
        more = f"{{{max(least - 1, 0)},{most - 1 if most != '' else ''}}}"
        whole = f"{item} ({quoted(',')} {item}){more}"
        return f"{quoted('[')} {whole if least else f'({whole})?'} {quoted(']')}"

    @property
    def _mark(self) -> str:
        return self._rules.literal(GemmaForm.MARK)

    def _beyond(self, what: str) -> RequestError:
        return RequestError(
            f"{self._field}: {what} cannot be enforced in this model's form of tool calls",
            field=self._field,
        )


def listed(arguments: Sequence[tuple[str, bool]], separator: str) -> str:
    """Arguments with `separator` between them, each an expression and whether it is required.
    Those that are required come first."""
    between = quoted(separator)
    optional = [expression for expression, required in arguments if not required]
    first = f" {between} ".join(expression for expression, required in arguments if required)
    if first:
        return " ".join([first, *(f"({between} {expression})?" for expression in optional)])
    ways = []
    for index, expression in enumerate(optional):
        rest = (f"({between} {later})?" for later in optional[index + 1 :])
        ways.append(" ".join([expression, *rest]))
    return f"({' | '.join(ways)})?" if ways else ""


def _named(pattern: str, name: str, field: str) -> str:
    if not re.fullmatch(pattern, name, re.ASCII):
        raise RequestError(f"{field}: {name!r} cannot be written as a name", field=field)
    return name


def _tag(name: str, field: str) -> str:
    if not name or name != name.strip() or re.search(r"[<>&\"'\n]", name):
        raise RequestError(f"{field}: {name!r} cannot be written as a tag", field=field)
    return quoted(name)


_FORMS: Mapping[str, Any] = {
    "gemma4": GemmaForm,
    "glm47": lambda: TaggedForm(
        "glm47",
        ("<tool_call>", ""),
        ("<arg_key>", "</arg_key>\n<arg_value>"),
        "</arg_value>",
        "</tool_call>",
        null=False,
        stretch=("", "\n", ""),
    ),
    "kimi_k2": lambda: NumberedForm(
        "kimi_k2",
        (
            "<|tool_call_begin|>functions.",
            ":",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ),
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "kimi_k3": lambda: NumberedForm(
        "kimi_k3",
        (
            '<|open|>call tool="',
            '" index="',
            '"<|sep|><|open|>json type="object"<|sep|>',
            "<|close|>json<|sep|><|close|>call<|sep|>",
        ),
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
    ),
    "longcat": LongcatForm,
    "minicpm5": lambda: TaggedForm(
        "minicpm5",
        ('<function name="', '">'),
        ('<param name="', '">'),
        "</param>",
        "</function>",
        null=True,
        stretch=("", "\n", ""),
    ),
    "minimax_m2": lambda: TaggedForm(
        "minimax_m2",
        ('<invoke name="', '">'),
        ('<parameter name="', '">'),
        "</parameter>",
        # A line break that may go on as the end's would not be told from it.
        "</invoke>\n",
        null=True,
        stretch=("<minimax:tool_call>\n", "", "</minimax:tool_call>"),
    ),
    "pythonic": PythonicForm,
}
