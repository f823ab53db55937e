"""What the published document says beyond the types of fields: which go together, and what a field
of a wide type is refused for. The refusals themselves stand beside the types, with their words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.http.response_input import TEXTS
from sidecar.http.schema.bounds import MAX_CHOICES

Schema = dict[str, Any]

NULL: Schema = {"type": "null"}
TEXT: Schema = {"type": "string"}
SOMETHING: Schema = {"type": "string", "minLength": 1}
TOKEN: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
TOKEN_ID = "^[0-9]{1,10}$"


def _when(name: str, values: Schema, then: Schema) -> Schema:
    """Where the field `name` is one of `values`, `then` holds."""
    return {"anyOf": [{"properties": {name: {"not": values}}}, then]}


def _with(**fields: Schema) -> Schema:
    """An object that has these fields so."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def _one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


SOME_TOOLS = _with(tools={"type": "array", "minItems": 1})
BIASES: Schema = _or_null(
    {
        "type": "object",
        "propertyNames": {"pattern": TOKEN_ID},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    }
)
BLOCK: Schema = {"$ref": "#/components/schemas/Block"}


_IDS: Schema = {"type": "array", "minItems": 1, "items": TOKEN}
_PROMPTS: Schema = {"type": "array", "minItems": 1, "maxItems": MAX_CHOICES}
_PROMPT: Schema = {"anyOf": [SOMETHING, _IDS, _PROMPTS | {"items": {"anyOf": [SOMETHING, _IDS]}}]}


def _blocks(*kinds: Schema) -> Schema:
    texts = [_with(type={"const": "text"}, text=TEXT), _with(type={"const": "tool_reference"})]
    items = {"allOf": [BLOCK, {"anyOf": [*texts, *kinds]}]}
    return {"anyOf": [TEXT, {"type": "array", "items": items}]}


def _turns() -> list[Schema]:
    results = {"anyOf": [_blocks(), NULL]}
    result = _with(type={"const": "tool_result"}, tool_use_id=SOMETHING)
    result["properties"]["content"] = results
    replied = [
        _with(type=_one_of("thinking", "redacted_thinking")),
        _with(type={"const": "tool_use"}, name=SOMETHING),
    ]
    told = _with(role=_one_of("user", "system"), content=_blocks(result))
    return [{"anyOf": [told, _with(role={"const": "assistant"}, content=_blocks(*replied))]}]


def _parts(*, fields: Mapping[str, Sequence[str]]) -> Schema:
    """A part whose text is in the field that its type says."""
    return {
        "anyOf": [_with(type=_one_of(*types), **{field: TEXT}) for field, types in fields.items()]
    }


_SAID: Schema = {
    "anyOf": [
        TEXT,
        NULL,
        {
            "type": "array",
            "items": _parts(fields={"text": sorted(TEXTS), "refusal": ["refusal"]}),
        },
    ]
}
_CALL_TYPES = ("function_call", "custom_tool_call")
_OUTPUT_TYPES = ("function_call_output", "custom_tool_call_output")
_OUTPUT = _with(type=_one_of(*_OUTPUT_TYPES), call_id=SOMETHING)
_OUTPUT["properties"]["output"] = _SAID
# What has no type is a message.
_TURN_ITEMS: list[Schema] = [
    {"properties": {"type": {"const": "message"}, "content": _SAID}},
    _with(type=_one_of(*_CALL_TYPES), name=SOMETHING),
    _OUTPUT,
]
# Items of other types are OpenAI's own affair, and ignored.
_OTHER = _with(type={"not": _one_of("message", *_CALL_TYPES, *_OUTPUT_TYPES)})
_INPUT: Schema = {
    "anyOf": [
        TEXT,
        {
            "type": "array",
            "items": {"$ref": "#/components/schemas/InputItem"},
            "contains": {"type": "object", "anyOf": _TURN_ITEMS},
        },
    ]
}
_NAMED_TOOL = _when("type", _one_of("function", "custom"), _with(name=SOMETHING))
_NAMESPACE: Schema = {"properties": {"tools": _or_null({"type": "array", "items": _NAMED_TOOL})}}
_TOOL: Schema = {
    "allOf": [
        {"$ref": "#/components/schemas/DeclaredTool"},
        _NAMED_TOOL,
        _when("type", {"const": "namespace"}, _NAMESPACE),
    ]
}
_TOOL_CHOICE = [
    _when("tool_choice", {"const": "required"}, SOME_TOOLS),
    _when("tool_choice", {"type": "object"}, SOME_TOOLS),
]
_ANTHROPIC = [
    _when("tool_choice", _with(type=_one_of("any", "tool")), SOME_TOOLS),
]

CONDITIONS: dict[str, list[Schema]] = {
    "ContentPart": [_parts(fields={"text": ["text"], "refusal": ["refusal"]})],
    "ResponseFormat": [
        _when("type", {"const": "json_schema"}, _with(json_schema=_with(schema={"type": "object"})))
    ],
    "TextFormat": [_when("type", {"const": "json_schema"}, _with(schema={"type": "object"}))],
    "ToolChoice": [_when("type", {"const": "tool"}, _with(name=SOMETHING))],
    "Turn": _turns(),
    "InputItem": [{"anyOf": [*_TURN_ITEMS, _OTHER]}],
    "ChatRequest": [
        _when("top_logprobs", {"type": "integer"}, _with(logprobs={"const": True})),
        *_TOOL_CHOICE,
    ],
    "CompletionsRequest": [
        _when("echo", {"const": True}, {"properties": {"logprobs": NULL}}),
        _when("suffix", TEXT, {"properties": {"prompt": TEXT}}),
    ],
    "ResponsesRequest": _TOOL_CHOICE,
    "MessagesRequest": _ANTHROPIC,
    "CountTokensRequest": _ANTHROPIC,
    "TokenizeRequest": [{"anyOf": [_with(content=TEXT), _with(prompt=TEXT)]}],
}
"""By type: what its objects fulfil besides."""

FIELDS: dict[str, dict[str, Schema]] = {
    "ChatRequest": {
        "modalities": _or_null({"type": "array", "items": {"const": "text"}, "maxItems": 1}),
        "audio": _or_null({"type": "object", "maxProperties": 0}),
        "functions": _or_null({"type": "array", "maxItems": 0}),
        "function_call": _one_of("none", "auto", None),
        "logit_bias": BIASES,
    },
    "CompletionsRequest": {"logit_bias": BIASES, "prompt": _PROMPT},
    "ResponsesRequest": {
        "input": _INPUT,
        "tools": _or_null({"type": "array", "items": _TOOL}),
        "background": _one_of(False, None),
    },
    "InfillRequest": {"stream": _one_of(False, None)},
    "MessagesRequest": {"system": _or_null(_blocks())},
    "CountTokensRequest": {"system": _or_null(_blocks())},
    "DetokenizeRequest": {"tokens": {"type": "array", "items": TOKEN}},
}
"""By type and field: what takes the place of the schema of the field's type."""


def tightened(schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """The components of the document, with all of that."""
    made: dict[str, Schema] = dict(schemas)
    for name, fields in FIELDS.items():
        made[name] = made[name] | {"properties": made[name]["properties"] | fields}
    for name, conditions in CONDITIONS.items():
        made[name] = made[name] | {"allOf": conditions}
    return made
