"""Replies held to the forms that mlx-lm's parsers read: what is allowed is read and is valid."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers_made import CodecFactory

from engine import RequestError
from engine.builtin import TARGET
from engine.messages import Grammar, ReplyFormat, ToolCall
from engine.testing import EOS, ByteCodec
from engine.text.constraints import Grammars
from engine.text.conversation import tool_definitions
from engine.text.parsed_form import PARSERS
from engine.text.reply_grammar import reply_grammar
from engine.text.tool_calls import Form, form_of, read_calls

BYTES = ByteCodec()
GRAMMARS = Grammars(BYTES.token_bytes(), [EOS], BYTES.encode)
SIGNS = {parser: sign for sign, parser in PARSERS.items()}
REFUSED = {"function_gemma", "muse_spark"}
ENFORCED = sorted(set(SIGNS) - REFUSED)

EDIT = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1, "maxLength": 6},
        "mode": {"enum": ["append", "über-schreiben"]},
        "id": {"type": "string", "pattern": "^[a-z]{2}-\\d{2}$"},
        "line": {"$ref": "#/$defs/Line"},
        "dry": {"type": "boolean"},
        "range": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        "share": {"enum": [0.25, 1, None]},
    },
    "required": ["path", "mode"],
    "additionalProperties": False,
    "$defs": {"Line": {"type": "integer", "minimum": 1, "maximum": 999}},
}
TOOLS = [
    {"type": "function", "function": {"name": "edit", "parameters": EDIT}},
    {"type": "function", "function": {"name": "now"}},
]
DEFINED = {tool["function"]["name"]: tool["function"] for tool in tool_definitions(TOOLS) or []}

# Two calls as each family's template writes them: `edit` of "a b", then `now`.
WRITTEN = {
    "gemma4": '<|tool_call>call:edit{path:<|"|>a b<|"|>,mode:<|"|>append<|"|>,line:3}<tool_call|>'
    "<|tool_call>call:now{}<tool_call|>",
    "glm47": "<tool_call>edit\n<arg_key>path</arg_key>\n<arg_value>a b</arg_value>\n"
    "<arg_key>mode</arg_key>\n<arg_value>append</arg_value>\n"
    "<arg_key>line</arg_key><arg_value>3</arg_value></tool_call>\n<tool_call>now</tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.edit:0"
    '<|tool_call_argument_begin|>{"path": "a b", "mode": "append", "line": 3}<|tool_call_end|>'
    "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>",
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="edit" index="1"<|sep|><|open|>json '
    'type="object"<|sep|>{"path": "a b", "mode": "append", "line": 3}<|close|>json<|sep|>'
    '<|close|>call<|sep|><|open|>call tool="now" index="2"<|sep|><|open|>json type="object"'
    "<|sep|>{}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    "longcat": '<longcat_tool_call>\n{"name": "edit", "arguments": {"path": "a b", "mode": '
    '"append", "line": 3}}\n</longcat_tool_call>\n<longcat_tool_call>\n{"name": "now", '
    '"arguments": {}}\n</longcat_tool_call>',
    "minicpm5": '<function name="edit"><param name="path">a b</param><param name="mode">append'
    '</param><param name="line">3</param></function>\n<function name="now"></function>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="edit">\n<parameter name="path">a b'
    '</parameter>\n<parameter name="mode">append</parameter>\n<parameter name="line">3'
    '</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    "pythonic": '<|tool_call_start|>[edit(path="a b", mode="append", line=3), now()]'
    "<|tool_call_end|>",
}


def form(parser: str) -> Form:
    found = form_of(f"{{{{ tools }}}} {SIGNS[parser]}")
    assert found is not None
    return found


def required(parser: str, tools: Any = TOOLS, **fields: Any) -> Grammar:
    reply = ReplyFormat(calls=True, **fields)
    return reply_grammar(reply, tool_definitions(tools) or [], form(parser), {})


def accepts(grammar: Grammar, text: str) -> bool:
    constraint = GRAMMARS.begin(grammar)
    for token in text.encode():
        if constraint.finished or not constraint.rows([], 261)[1][0, token]:
            return False
        constraint.commit(token)
    return constraint.finished or bool(constraint.rows([], 261)[1][0, EOS])


def read(text: str, parser: str, tools: Any = None) -> list[tuple[str, Any]]:
    """What the reader makes of a reply, stretch by stretch as it closes."""
    shape, found, rest = form(parser), list[tuple[str, Any]](), text
    (closing,) = shape.marks.closes
    end = 0
    while (end := rest.find(closing, end)) >= 0:
        end += len(closing)
        if calls := read_calls(rest[:end], shape, tools or DEFINED):
            found += [(call.name, json.loads(call.arguments)) for call in calls]
            rest, end = rest[end:], 0
    return found if not rest.strip() else []


def anything(grammar: Grammar, seed: int) -> str:
    """A reply that the grammar allows, byte by byte at random."""
    dice, constraint, reply = random.Random(seed), GRAMMARS.begin(grammar), bytearray()
    while not constraint.finished:
        mask = constraint.rows([], 261)[1][0]
        # Of what may be said ASCII will do; the end as soon as there may be one.
        allowed = [int(token) for token in np.flatnonzero(mask) if token < 127 or token == EOS]
        token = EOS if EOS in allowed else dice.choice(allowed or [int(np.flatnonzero(mask)[0])])
        constraint.commit(token)
        if token != EOS:
            reply.append(token)
    return reply.decode()


@pytest.mark.parametrize("parser", ENFORCED)
def test_calls_as_the_family_writes_them(parser: str) -> None:
    written = WRITTEN[parser]
    assert accepts(required(parser), written)
    assert read(written, parser) == [
        ("edit", {"path": "a b", "mode": "append", "line": 3}),
        ("now", {}),
    ]
    assert not accepts(required(parser), f"Well: {written}")
    assert not accepts(required(parser, tool="now"), written)
    assert not accepts(required(parser, several=False), written)


@pytest.mark.parametrize("parser", ENFORCED)
def test_calls_that_break_the_schema_are_not(parser: str) -> None:
    grammar = required(parser)
    for right, wrong in {"a b": "abcdefg", "append": "upend", "3": "1000", "line": "lime"}.items():
        assert not accepts(grammar, WRITTEN[parser].replace(right, wrong)), wrong


@pytest.mark.parametrize("parser", ENFORCED)
def test_whatever_is_allowed_is_read_and_valid(parser: str) -> None:
    valid(parser, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("parser", ENFORCED)
def test_very_many_of_what_is_allowed(parser: str) -> None:
    for seed in range(1, 60):
        valid(parser, seed)


def valid(parser: str, seed: int) -> None:
    reply = anything(required(parser, tool="edit", several=False), seed)
    ((name, arguments),) = read(reply, parser)
    assert name == "edit"
    jsonschema.validate(arguments, EDIT)


def tool(parameters: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


def test_gemma_writes_texts_anywhere_and_values_of_any_type() -> None:
    tools = tool(
        {
            "type": "object",
            "properties": {
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {"old": {"type": "string"}, "all": {"type": "boolean"}},
                        "required": ["old"],
                    },
                },
                "note": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
                "free": {},
            },
            "required": ["edits"],
        }
    )
    grammar = required("gemma4", tools)
    defined = {"f": tools[0]["function"]}
    old = 'x: {"y": [1,2]}, \\"z\\"\n</tool_call>'
    edits = f'[{{old:<|"|>{old}<|"|>,all:true}},{{old:<|"|><|"|>}}]'
    call = f'<|tool_call>call:f{{edits:{edits},note:null,free:<|"|>é<|"|>}}<tool_call|>'
    assert accepts(grammar, call)
    assert read(call, "gemma4", defined) == [
        ("f", {"edits": [{"old": old, "all": True}, {"old": ""}], "note": None, "free": "é"})
    ]
    assert not accepts(grammar, call.replace(edits, "[]"))
    assert not accepts(grammar, call.replace("note:null", 'note:<|"|>four<|"|>'))
    assert not accepts(grammar, call.replace("old:", "new:"))


@pytest.mark.parametrize("parser", ["gemma4", "pythonic"])
def test_arguments_that_are_all_optional_are_listed_without_a_stray_comma(parser: str) -> None:
    kinds = {name: {"type": "integer"} for name in "abc"}
    grammar = required(parser, tool({"type": "object", "properties": kinds}))
    begin, end, is_, and_ = {
        "gemma4": ("<|tool_call>call:f{", "}<tool_call|>", ":", ","),
        "pythonic": ("<|tool_call_start|>[f(", ")]<|tool_call_end|>", "=", ", "),
    }[parser]
    for given in ("", "a", "b", "c", "ab", "ac", "bc", "abc"):
        assert accepts(grammar, begin + and_.join(f"{name}{is_}1" for name in given) + end)
    for given in ("aa", "ba"):
        assert not accepts(grammar, begin + and_.join(f"{name}{is_}1" for name in given) + end)


def test_an_integer_by_reference_and_a_text_that_looks_like_one() -> None:
    """The parsers look at `type` alone."""
    properties = {"n": {"$ref": "#/$defs/N"}, "s": {"enum": ["1", "2"]}}
    tools = tool({"type": "object", "properties": properties, "$defs": {"N": {"type": "integer"}}})
    defined = {"f": tools[0]["function"]}
    for parser, written in {
        "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="n">1</parameter>\n'
        '<parameter name="s">2</parameter>\n</invoke>\n</minimax:tool_call>',
        "glm47": "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value><arg_key>s</arg_key>"
        "<arg_value>2</arg_value></tool_call>",
    }.items():
        assert accepts(required(parser, tools), written)
        assert read(written, parser, defined) == [("f", {"n": 1, "s": "2"})]


def test_a_closing_mark_in_a_text_does_not_end_the_call() -> None:
    text = "a </tool_call> b"
    call = "<tool_call>f<arg_key>s</arg_key><arg_value>"
    defined = {"f": tool({"properties": {"s": {"type": "string"}}})[0]["function"]}
    assert read(f"{call}{text}</arg_value></tool_call>", "glm47", defined) == [("f", {"s": text})]


@pytest.mark.parametrize("parser", ["minicpm5", "minimax_m2"])
def test_a_text_that_would_be_read_as_null_is_not_allowed(parser: str) -> None:
    loose = {**EDIT, "properties": {**EDIT["properties"], "path": {"type": "string"}}}
    for text, allowed in (("nul", True), ("null", False), (" Null\n", False), ("null.", True)):
        written = WRITTEN[parser].replace("a b", text)
        tools = [{"type": "function", "function": {"name": "edit", "parameters": loose}}, TOOLS[1]]
        assert accepts(required(parser, tools), written) is allowed


@pytest.mark.parametrize(
    ("parser", "parameters", "reason"),
    [
        ("glm47", {"properties": {"a<b": {}}}, "cannot be written as a tag"),
        ("glm47", {"properties": {"a": {"enum": [" x"]}}}, "an enum of these values"),
        ("minimax_m2", {"properties": {"a": {"enum": ["null"]}}}, "an enum of these values"),
        ("minimax_m2", {"anyOf": [{"required": ["a"]}]}, "anyOf cannot be enforced"),
        ("pythonic", {"properties": {"class": {}}}, "'class' cannot be written as a name"),
        ("gemma4", {"properties": {"a-b": {}}}, "'a-b' cannot be written as a name"),
        ("gemma4", {"properties": {"a": {"not": {}}}}, "not cannot be enforced"),
        ("gemma4", {"properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ("gemma4", {"properties": {"a": {"enum": [[1]]}}}, "an enum of these values"),
        ("gemma4", {"properties": {"a": {"$ref": "#/properties/a"}}}, "nested so deep"),
    ],
)
def test_what_a_form_cannot_express_is_refused(parser: str, parameters: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        required(parser, tool({"type": "object", **parameters}))
    assert caught.value.field == "tools[0].function.parameters"


@pytest.mark.parametrize("parser", sorted(REFUSED))
def test_forms_whose_parser_cannot_tell_texts_apart_are_refused_by_name(parser: str) -> None:
    with pytest.raises(RequestError, match='use tool_choice "auto"') as caught:
        required(parser)
    assert caught.value.field == "tool_choice"


CONTROLS = {
    "gemma4": ["<|tool_call>", "<tool_call|>", '<|"|>'],
    "glm47": ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "kimi_k2": [f"<|tool_call{part}|>" for part in ("_begin", "_argument_begin", "_end")]
    + [f"<|tool_calls_section_{part}|>" for part in ("begin", "end")],
    "longcat": ["<longcat_tool_call>", "</longcat_tool_call>"],
    "minimax_m2": ["<minimax:tool_call>", "</minimax:tool_call>"],
    "pythonic": ["<|tool_call_start|>", "<|tool_call_end|>"],
}


@pytest.mark.parametrize("parser", sorted(CONTROLS))
def test_marks_that_are_control_tokens(parser: str, codec_with: CodecFactory) -> None:
    """They are allowed where they belong, have a text in the reply, and end a text argument."""
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    added = [AddedToken(text, special=True, normalized=False) for text in CONTROLS[parser]]
    tokenizer.add_special_tokens(added)
    codec = codec_with(tokenizer=tokenizer.to_str(), template=f"{{{{ '{SIGNS[parser]}' }}}}")
    text = codec.token_bytes()
    grammars = Grammars(text, codec.eos_token_ids, codec.encode)
    grammar = codec.grammar(ReplyFormat(calls=True), TOOLS)
    reply = codec.encode(WRITTEN[parser], control=True)
    assert set(codec.vocabulary.find(*CONTROLS[parser])) <= set(reply)
    constraint = grammars.begin(grammar)
    for token in reply:
        assert constraint.rows([], len(text))[1][0, token], codec.decode([token])
        constraint.commit(token)
    reader = codec.reader(TOOLS)
    calls = [*reader.feed(codec.decode(reply)), *reader.finish(complete=True)]
    assert [call.name for call in calls if isinstance(call, ToolCall)] == ["edit", "now"]
    assert len(calls) == 2


def test_a_mark_that_is_only_spelled_is_not_written_into_a_text(codec_with: CodecFactory) -> None:
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    added = [AddedToken(text, special=True, normalized=False) for text in CONTROLS["glm47"]]
    tokenizer.add_special_tokens(added)
    codec = codec_with(tokenizer=tokenizer.to_str(), template="{{ '<arg_key>' }}")
    grammar = codec.grammar(
        ReplyFormat(calls=True), tool({"properties": {"s": {"type": "string"}}})
    )
    text = codec.token_bytes()
    constraint = Grammars(text, codec.eos_token_ids, codec.encode).begin(grammar)
    call = "<tool_call>f<arg_key>s</arg_key><arg_value>"
    for token in codec.encode(call, control=True):
        constraint.commit(token)
    # The last character would make it one.
    *spelled, last = codec.encode("a </arg_value") + codec.encode(">")
    for token in spelled:
        assert constraint.rows([], len(text))[1][0, token]
        constraint.commit(token)
    assert not constraint.rows([], len(text))[1][0, last]
