"""Arguments that stand in a call one by one: which there are, and expressions for their values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import RequestError
from engine.text.json_schema import Types, at, json_rule, regex, steps_of, type_of
from engine.text.lark import Rules, quoted

# They say something about the arguments together, which are written one by one.
_TOGETHER = frozenset(
    {
        "$ref",
        "allOf",
        "anyOf",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxProperties",
        "minProperties",
        "not",
        "oneOf",
        "patternProperties",
        "propertyNames",
        "then",
    }
)
# What XML-like forms read as nothing, whatever the schema says.
NULL = r"(?i:\s*null\s*)"


def one_by_one(parameters: Mapping[str, Any], field: str) -> tuple[Mapping[str, Any], list[str]]:
    """The schemas of the arguments by name, and the names of those that are required.

    Raises RequestError naming `field` where they cannot be told one by one.
    """
    declared = parameters.get("properties") or {}
    required = parameters.get("required") or []
    if not isinstance(declared, Mapping) or not isinstance(required, list):
        raise RequestError(f"{field} is no JSON schema", field=field)
    undeclared = [f"the undeclared {name!r}" for name in required if name not in declared]
    for beyond in [*sorted(_TOGETHER & set(parameters)), *undeclared]:
        raise RequestError(
            f"{field}: {beyond} cannot be enforced in this model's form of tool calls, which "
            "has the arguments one by one",
            field=field,
        )
    return declared, required


def limits(schema: Mapping[str, Any]) -> list[str]:
    """Regular expressions that a text of `schema` must match as a whole, all of them.

    Raises ValueError saying what is no limit.
    """
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    found = [f"/{regex(str(schema['pattern']))}/"] if "pattern" in schema else []
    if least or most != "":
        if not re.fullmatch("[0-9]{1,9},([0-9]{1,9})?", f"{least},{most}"):
            raise ValueError(f"a length from {least!r} to {most!r}")
        found.append(f"/(?s:.{{{least},{most}}})/")
    return found


class TextValues:
    """Lark expressions for single arguments of `whole`, each with `end`, which ends it.

    A text stands there as it is, everything else as JSON. stripped: white space around a text is
    not read. never: a regular expression of texts that are not read as texts.
    """

    MAX_DEPTH = 16
    _LIMITS = frozenset({"maxLength", "minLength", "pattern"})
    _COMBINED = frozenset({"$ref", "allOf", "anyOf", "if", "not", "oneOf"})

    def __init__(
        self,
        rules: Rules,
        whole: Mapping[str, Any],
        field: str,
        end: str,
        *,
        stripped: bool = False,
        never: str = "",
    ) -> None:
        self._rules = rules
        self._whole = whole
        self._field = field
        self._types = Types(whole)
        self._end = end
        self._until = rules.literal(end)
        self._stripped = stripped
        self._never = never

    def rule(self, schema: Any, path: tuple[str, ...], depth: int = 0) -> str:
        """An expression for a value of `schema`, which stands at `path` in the parameters."""
        types = self._types.of(schema)
        if "string" not in types:
            return f"{json_rule(self._whole, path, field=self._field)} {self._until}"
        if not isinstance(schema, Mapping):
            return self._text({}, types)
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return self._one_of([value for value in values if type_of(value) in types])
        if combined := self._COMBINED & set(schema):
            return self._combined(schema, combined, path, depth)
        if types == {"string"} or not self._LIMITS & set(schema):
            # Where any text will do, it also stands for a number or null.
            return self._text(schema, types)
        raise self._beyond("a limited text beside other types")

    def _combined(
        self, schema: Mapping[str, Any], combined: frozenset[str], path: tuple[str, ...], depth: int
    ) -> str:
        key = min(combined)
        beside = (self._LIMITS | combined | {"type"}) & set(schema) - {key}
        if beside or key in ("if", "not") or depth > self.MAX_DEPTH:
            raise self._beyond(f"{key} beside {min(beside)}" if beside else key)
        if key == "$ref":
            steps = steps_of(str(schema["$ref"]))
            return self.rule(at(self._whole, steps), steps, depth + 1)
        parts = self._types.alternatives(schema, key)
        if parts is None:
            raise self._beyond(key)
        found = [
            self.rule(part, (*path, key, str(index)), depth + 1) for index, part in enumerate(parts)
        ]
        free = self._text({}, self._types.of(schema))
        return free if free in found else f"({' | '.join(found)})"

    def _one_of(self, values: Sequence[Any]) -> str:
        texts = [
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for value in values
        ]
        read = [self._readable(value) for value in values if isinstance(value, str)]
        if not texts or not all(read):
            raise self._beyond("an enum of these values")
        return f"({' | '.join(map(quoted, texts))}) {self._until}"

    def _readable(self, text: str) -> bool:
        """Whether `text`, written as a value, is what is read."""
        if (text + self._end).index(self._end) < len(text):
            return False
        if self._stripped and text != text.strip():
            return False
        return not self._never or re.fullmatch(self._never, text) is None

    def _text(self, schema: Mapping[str, Any], types: frozenset[str]) -> str:
        try:
            limited = limits(schema)
        except ValueError as error:
            raise self._beyond(str(error)) from None
        text = " & ".join(limited) or "/(?s:.*)/"
        if self._stripped and limited:
            text = rf"/\s*/ ({text} & /(?s:(\S(.*\S)?)?)/) /\s*/"
        if self._never and "null" not in types:
            text = f"({text}) & ~/{self._never}/"
        return self._rules.until(text, self._end)

    def _beyond(self, what: str) -> RequestError:
        return RequestError(
            f"{self._field}: {what} cannot be enforced in this model's form of tool calls, which "
            "has text arguments as they are",
            field=self._field,
        )
