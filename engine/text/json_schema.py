"""JSON schemas on their way into a grammar (JSON Schema 2020-12 and draft 7)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from llguidance import regex_to_lark

from engine.errors import RequestError

# Of a JSON text's layout everything is decided here, so that the model cannot lose itself in white
# space and the commas, colons and known keys are forced: what `json.dumps` writes.
LAYOUT = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
# Formats that are enforced. Others are annotations, as the standard has it.
FORMATS = frozenset(
    {
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
        "unknown",
    }
)
TYPES = frozenset({"string", "number", "boolean", "object", "array", "null"})
ONE = frozenset(
    {
        "additionalProperties",
        "additionalItems",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
MANY = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
IGNORED = frozenset({"$comment", "$id", "default", "description", "examples", "title"})
# llguidance follows 128 levels of JSON; a level of schema is at least one of them.
MAX_DEPTH = 100


def json_rule(schema: Any, path: tuple[str, ...] = (), *, field: str) -> str:
    """What satisfies `schema`, or the part of it at `path`, as a Lark expression.

    Raises RequestError naming `field`.
    """
    part = at(schema, path)
    if path and "$ref" in json.dumps(part):
        # References point into the whole.
        where = "#/$defs/whole"
        pointer = "/".join(quote(step.replace("~", "~0").replace("/", "~1")) for step in path)
        whole = rebased(schema, where, field=field)
        part = {"$ref": f"{where}/{pointer}", "$defs": {"whole": whole}}
    else:
        part = rebased(part, "#", field=field)
    if part is False:
        raise RequestError(f"{field}: no reply can satisfy the schema false", field=field)
    rooted = {} if part is True else part
    return "%json " + json.dumps(rooted | {"x-guidance": LAYOUT}, ensure_ascii=False)


def rebased(schema: Any, where: str, *, field: str) -> Any:
    """A copy of `schema` to be put at `where` inside another one, without what nobody enforces.

    Raises RequestError naming `field` for what is no schema at all.
    """
    return _copy(schema, where, field, 0)


def _copy(schema: Any, where: str, field: str, depth: int) -> Any:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping):
        raise RequestError(f"{field}: {schema!r:.60} stands where a schema should", field=field)
    if depth == MAX_DEPTH:
        raise RequestError(f"{field} is nested more than {MAX_DEPTH} schemas deep", field=field)

    def inner(part: Any) -> Any:
        return _copy(part, where, field, depth + 1)

    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            copy[key] = where + value[1:] if value.startswith("#") else value
        elif key in MANY and isinstance(value, list):
            copy[key] = [inner(part) for part in value]
        elif key in NAMED and isinstance(value, Mapping):
            copy[key] = {name: inner(part) for name, part in value.items()}
        elif key in ONE:
            copy[key] = inner(value)
        elif key not in IGNORED and (key != "format" or value in FORMATS):
            copy[key] = value
    return copy


def regex(pattern: str) -> str:
    """A `pattern`, which may match anywhere in a text, as one in Lark that matches all of it."""
    core = pattern.removeprefix("^")
    before = "" if core != pattern else "(?s:.*)"
    ended = re.search(r"(?<!\\)(?:\\\\)*\$$", core) is not None
    core, behind = (core[:-1], "") if ended else (core, "(?s:.*)")
    return f"{before}(?:{regex_to_lark(core, 'dw')}){behind}"


class Types:
    """The JSON types that values of a schema may have; a superset where that is hard to say.

    whole: the schema that references point into.
    """

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        # By identity: a schema that is referred to often must not be looked through as often.
        self._known: dict[int, frozenset[str]] = {}

    def of(self, schema: Any) -> frozenset[str]:
        if not isinstance(schema, Mapping):
            return TYPES
        if id(schema) not in self._known:
            # While it is looked through, a reference back to it says nothing.
            self._known[id(schema)] = TYPES
            self._known[id(schema)] = self._look_through(schema)
        return self._known[id(schema)]

    def alternatives(self, schema: Mapping[str, Any], key: str) -> list[Any] | None:
        """The schemas under ``allOf``, ``anyOf`` or ``oneOf`` where a value of any of them is
        right; None where that is not all that `key` says."""
        parts = schema[key] if isinstance(schema[key], list) else []
        types = [self.of(part) for part in parts]
        apart = sum(map(len, types)) == len(frozenset().union(*types))
        right = len(parts) == 1 or key == "anyOf" or (key == "oneOf" and apart)
        return parts if right else None

    def _look_through(self, schema: Mapping[str, Any]) -> frozenset[str]:
        found = TYPES
        named = schema.get("type")
        if isinstance(named, str | list):
            names = [named] if isinstance(named, str) else named
            found = frozenset("number" if name == "integer" else str(name) for name in names)
        if "const" in schema:
            found &= {type_of(schema["const"])}
        if isinstance(schema.get("enum"), list):
            found &= {type_of(value) for value in schema["enum"]}
        if isinstance(schema.get("$ref"), str):
            found &= self.of(at(self._whole, steps_of(schema["$ref"])))
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                found &= frozenset().union(*map(self.of, schema[key]))
        if isinstance(schema.get("allOf"), list):
            found = found.intersection(*map(self.of, schema["allOf"]))
        return found


def steps_of(ref: str) -> tuple[str, ...]:
    """The steps of a local reference (RFC 6901, as a URI fragment)."""
    steps = unquote(ref).removeprefix("#").split("/")[1:]
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def at(whole: Any, path: tuple[str, ...]) -> Any:
    """What stands at `path`; True (any value is right) if nothing does."""
    for step in path:
        if isinstance(whole, list) and step.isdecimal() and int(step) < len(whole):
            whole = whole[int(step)]
        elif isinstance(whole, Mapping) and step in whole:
            whole = whole[step]
        else:
            return True
    return whole


def type_of(value: Any) -> str:
    """The JSON type of a value; integers are numbers."""
    match value:
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case None:
            return "null"
        case list():
            return "array"
    return "object"
