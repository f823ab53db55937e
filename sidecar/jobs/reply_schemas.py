"""JSON schemas that replies are held to when the engine is measured.

The first are written after what clients ask for, the others are put together from the same parts
at random. Texts, lists, keys and digits are bounded, so that a small model comes to an end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]


def _object(required: list[str] | None = None, **properties: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def _text(most: int = 12, **more: Any) -> Schema:
    return {"type": "string", "maxLength": most, **more}


def _whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _list(items: Any, least: int = 0, most: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _map(values: Schema, most: int) -> Schema:
    return {
        "type": "object",
        "patternProperties": {"^[a-z_]{1,8}$": values},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": most,
    }


def _format(name: str) -> Schema:
    # Fractions of a second and durations may have any number of digits.
    return {"type": "string", "format": name, "maxLength": 36}


WRITTEN: tuple[Schema, ...] = (
    _object(["name"], name=_text(16), age=_whole(0, 150)),
    _object(path=_text(24, pattern=r"^[a-z_/]+\.py$"), line=_whole(1, 9999)),
    _object(answer={"enum": ["yes", "no", "unknown"]}, confidence={"enum": [0.1, 0.5, 0.9]}),
    _object(edits=_list(_object(find=_text(), replace=_text()), 1, 3)),
    _object(command=_list(_text(8), 1, 4), cwd={"type": ["string", "null"], "maxLength": 10}),
    _object(value=_whole(0, 9), children=_list({"$ref": "#/$defs/leaf"}, 0, 2))
    | {
        "$defs": {"leaf": _object(value=_whole(0, 9), tag={"$ref": "#/$defs/tag"}), "tag": _text(4)}
    },
    {"anyOf": [_object(error=_text(20)), _object(result=_whole(-99, 99))]},
    {"oneOf": [_whole(-3, 3), {"type": "boolean"}]},
    _map({"type": "boolean"}, 2),
    {
        "type": "array",
        "prefixItems": [{"const": "point"}, _whole(-99, 99), _whole(-99, 99)],
        "items": False,
        "minItems": 3,
    },
    _object(when=_format("date-time"), day=_format("date"), id=_format("uuid")),
    _object(host=_format("ipv4"), time=_format("time")),
    {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.125},
    {"type": "integer", "exclusiveMinimum": 10, "multipleOf": 5, "maximum": 95},
    {"type": "string", "pattern": r"^(feat|fix|docs)(\([a-z]{2,8}\))?: [a-z ]{3,20}$"},
    {"type": "string", "pattern": "^[\u3040-\u30ff]{1,6}$"},
    {"enum": ["ünïcödé", "日本", "😀", 'say "hi"', "back\\slash", "tab\there", "", None, 7]},
    {"const": {"nested": ["exactly", 1, None, {"ünï": "日本"}]}},
    {"allOf": [{"type": "string", "maxLength": 8}, {"minLength": 2}]},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "description": "D"}
    | _object(a=_whole(0, 9) | {"format": "int32", "default": 3, "examples": [4]}),
    _object(matrix=_list(_list(_whole(-9, 9), 2, 2), 2, 2)),
    _object([], a=_whole(0, 9), b=_text(3), c={"type": "boolean"}),
    _object(deep=_object(deeper=_object(deepest=_object(bottom={"const": "reached"})))),
    {"type": "string", "minLength": 3, "maxLength": 9},
)

NAMES = [
    *("name", "path", "line", "count", "price", "tags", "owner", "kind", "note", "user.id"),
    *("größe", "名前", "emoji 😀", "first-name", "x", "$ref-like", 'quo"ted', "rather_a_long_name"),
]
VALUES = [
    "red",
    "dark green",
    "ünïcödé",
    "日本",
    "😀",
    'say "hi"',
    "back\\slash",
    1,
    2.5,
    None,
    True,
]
PATTERNS = [
    r"^[a-z]{1,8}$",
    r"^[A-Z][a-z]+( [A-Z][a-z]+)?$",
    r"^\d{3}-\d{4}$",
    r"^v\d+\.\d+(\.\d+)?$",
    "^(GET|POST) /[a-z]{1,6}$",
    "^[äöüß]{2,5}$",
    r"^#[0-9a-fA-F]{6}$",
    '^[^"\\\\/]{1,6}$',
]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "duration"]


def made(seed: int) -> Schema:
    """A schema, always the same for one seed."""
    rng = random.Random(seed)
    schema = _made_object(rng, depth=0)
    if rng.random() < 0.3:
        schema["$defs"] = {"shared": _made(rng, 2)}
        schema["properties"]["shared"] = _list({"$ref": "#/$defs/shared"}, 1, 2)
        schema["required"].append("shared")
    return schema


def _made(rng: random.Random, depth: int) -> Schema:
    leaves: list[Callable[[], Schema]] = [
        lambda: _text(rng.randint(1, 16)),
        lambda: {"type": "string", "maxLength": 24, "pattern": rng.choice(PATTERNS)},
        lambda: _format(rng.choice(FORMATS)),
        lambda: {"enum": rng.sample(VALUES, rng.randint(1, 5))},
        lambda: {"const": rng.choice(VALUES)},
        lambda: _whole(low := rng.randint(-1000, 1000), low + rng.randint(0, 1000)),
        lambda: {"type": "number", "minimum": 0, "maximum": rng.randint(1, 99), "multipleOf": 0.25},
        lambda: _whole(0, 999) | {"multipleOf": rng.choice([2, 3, 5])},
        lambda: {"type": rng.choice(["boolean", "null"])},
        lambda: {"type": ["string", "null"], "maxLength": 6},
    ]
    nests: list[Callable[[], Schema]] = [
        lambda: _made_object(rng, depth),
        lambda: _list(_made(rng, depth + 1), rng.randint(0, 2), rng.randint(2, 3)),
        lambda: {"anyOf": [_made(rng, depth + 1) for _ in range(rng.randint(2, 3))]},
        lambda: {"oneOf": [_made_object(rng, depth + 1), _whole(0, 9), {"type": "null"}]},
        lambda: {"allOf": [_text(9), {"minLength": rng.randint(0, 4)}]},
        lambda: _map(_made(rng, depth + 1), rng.randint(1, 2)),
    ]
    return rng.choice(leaves + nests if depth < 3 else leaves)()


def _made_object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.randint(1, 4))
    properties = {name: _made(rng, depth + 1) for name in names}
    return _object([name for name in names if rng.random() < 0.8], **properties)


# How many a benchmark takes.
COUNT = 200


def schemas(count: int = COUNT) -> list[Schema]:
    """The first `count` schemas; the same ones everywhere and always."""
    return [*WRITTEN, *(made(seed) for seed in range(count - len(WRITTEN)))][:count]
