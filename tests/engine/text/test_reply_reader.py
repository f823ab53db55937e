"""Replies taken apart while they are written, however they are cut into pieces."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import ToolCall
from engine.reply_pieces import Piece, Reasoned, Said, Unread
from engine.text.parsed_form import PARSERS, ParsedForm
from engine.text.reply_reader import Layout, ReplyReader, layout_of
from engine.text.tool_calls import HARMONY, LLAMA, MISTRAL, MISTRAL_ARGS, JsonForm, XmlForm, form_of

READ = {
    "name": "read",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
    },
}
TOOLS = {"read": READ}
THINK = {"<think>": "</think>"}
XML = Layout(THINK, XmlForm())
JSON = Layout(THINK, JsonForm())
CALL = (
    "<tool_call>\n<function=read>\n<parameter=path>\na.py\n</parameter>\n"
    "<parameter=line>\n3\n</parameter>\n</function>\n</tool_call>"
)
MADE = ToolCall(name="read", arguments='{"path": "a.py", "line": 3}')


def pieces(
    text: str,
    layout: Layout = XML,
    *,
    tools: Any = TOOLS,
    opened: str = "",
    complete: bool = True,
    step: int = 1,
) -> list[Piece]:
    """What a reply is made of, neighbours of one kind joined."""
    reader = ReplyReader(layout, tools, opened)
    found: list[Piece] = []
    for start in range(0, len(text), step):
        found += reader.feed(text[start : start + step])
    found += reader.finish(complete=complete)
    joined: list[Piece] = []
    for piece in found:
        last = joined[-1] if joined else None
        if isinstance(piece, Said | Reasoned) and type(last) is type(piece):
            assert isinstance(last, Said | Reasoned)
            joined[-1] = type(piece)(last.text + piece.text)
        else:
            joined.append(piece)
    return joined


@settings(max_examples=25)
@given(st.integers(1, 40))
def test_reasoning_text_and_parallel_calls_at_any_cut(step: int) -> None:
    reply = f"<think>\nHm.\n</think>\n\nLet me look.\n\n{CALL}\n{CALL}\n"
    assert pieces(reply, step=step) == [Reasoned("Hm."), Said("Let me look."), MADE, MADE]


@settings(max_examples=40)
@given(st.text(alphabet="<>/think tool_call{}\n`a", max_size=60), st.integers(1, 9))
def test_without_tools_and_reasoning_a_text_stays_as_it_is(text: str, step: int) -> None:
    layout = Layout({}, XmlForm())
    assert pieces(text, layout, tools={}, step=step) == ([Said(text)] if text else [])


def test_reasoning_that_the_prompt_opened_and_a_call_inside_of_it() -> None:
    assert pieces("Hm.\n</think>\n\nYes.", opened="<think>") == [Reasoned("Hm."), Said("Yes.")]
    assert pieces(f"Hm.\n{CALL}", opened="<think>") == [Reasoned("Hm."), MADE]
    closed = f"Hm.\n{CALL}\n</think>\n"
    assert pieces(closed, opened="<think>") == [Reasoned("Hm."), MADE]
    assert pieces(f"{closed}\nYes.", opened="<think>")[1:] == [MADE, Said("Yes.")]
    assert pieces("Hm, <thin air> ", opened="<think>") == [Reasoned("Hm, <thin air>")]


def test_markers_that_are_only_written_about() -> None:
    fenced = f"Like this:\n```xml\n{CALL}\n```\n"
    assert pieces(fenced) == [Said(fenced)]
    later = "The tag <think> opens it."
    assert pieces(later) == [Said(later)]


def test_a_call_of_no_declared_tool_is_visible_and_told() -> None:
    unknown = CALL.replace("=read>", "=write>")
    assert pieces(f"{unknown}\n{CALL}") == [
        Said(unknown),
        Unread("no tool is named 'write'"),
        MADE,
    ]


@pytest.mark.parametrize("cut", [20, 60, len(CALL) - 14])
def test_a_call_that_is_cut_short_is_text(cut: int) -> None:
    said, unread = pieces(CALL[:cut], complete=False)
    assert said == Said(CALL[:cut])
    assert unread == Unread("it is cut short")


@pytest.mark.parametrize(
    ("layout", "written"),
    [
        (XML, CALL.removeprefix("<tool_call>\n")),
        (XML, CALL.removesuffix("\n</tool_call>")),
        (XML, CALL.replace("\n</parameter>", "</parameter>")),
        (JSON, '<tool_call>{"name": "read", "arguments": {"path": "a.py", "line": 3}</tool_call>'),
        (
            JSON,
            '<tool_call>{"name": "read", "arguments": {"path": "a.py", "line": 3}}}</tool_call>',
        ),
        (
            JSON,
            '<tool_call>{"name": "read", "arguments": {"path": "a.py", "line": 3,}}</tool_call>',
        ),
        (JSON, "<tool_call>{'name': 'read', 'arguments': {'path': 'a.py', 'line': 3}}</tool_call>"),
        (
            JSON,
            '<tool_call>{"name": "read", "parameters": {"path": "a.py", "line": 3}}</tool_call>',
        ),
        (
            JSON,
            '<tool_call>{"name": "read", "arguments": "{\\"path\\": \\"a.py\\", \\"line\\": 3}"}',
        ),
    ],
)
def test_what_can_only_mean_one_call_is_repaired(layout: Layout, written: str) -> None:
    (call,) = pieces(written, layout)
    assert isinstance(call, ToolCall)
    assert (call.name, json.loads(call.arguments)) == ("read", {"path": "a.py", "line": 3})
    assert call.repaired


@pytest.mark.parametrize(
    "written",
    [
        '<tool_call>{"name": "read", "arguments": {"path": "a.p',
        '<tool_call>{"name": "read", "parameters": {"path": "a"}, "input": {}}</tool_call>',
        '<tool_call>{"name": "read", "arguments": [1]}</tool_call>',
        "<tool_call>read a.py</tool_call>",
        "<tool_call>{'name': '\\d'}]</tool_call>",
        f"<tool_call>{'[' * 20000}</tool_call>",
        f'<tool_call>{{"name": "read", "arguments": {"[" * 20000}{"]" * 20000}}}</tool_call>',
    ],
)
def test_what_is_not_clear_is_text(written: str) -> None:
    said, unread = pieces(written, JSON, step=1000)
    assert said == Said(written)
    assert isinstance(unread, Unread)


def test_a_closing_marker_inside_an_argument_does_not_close() -> None:
    text = "<tool_call> </tool_call> </function>"
    written = json.dumps({"name": "read", "arguments": {"path": text}})
    (call,) = pieces(f"<tool_call>\n{written}\n</tool_call>", JSON)
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {"path": text}
    (call,) = pieces(CALL.replace("a.py", text))
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments)["path"] == text


@pytest.mark.parametrize(
    ("form", "written"),
    [
        (LLAMA, '{"name": "read", "parameters": {"path": "a"}}'),
        (LLAMA, '<|python_tag|>{"name": "read", "parameters": {"path": "a"}}'),
        (MISTRAL, '[TOOL_CALLS] [{"name": "read", "arguments": {"path": "a"}}]'),
        (MISTRAL_ARGS, '[TOOL_CALLS]read[ARGS]{"path": "a"}'),
    ],
)
def test_forms_that_go_to_the_end_of_the_reply(form: Any, written: str) -> None:
    assert pieces(written, Layout({}, form)) == [ToolCall(name="read", arguments='{"path": "a"}')]


def test_the_channels_of_gpt_oss() -> None:
    layout = layout_of("<|channel|>", HARMONY, {})
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert pieces(f"{thought}<|channel|>final<|message|>Yes.", layout) == [
        Reasoned("Hm."),
        Said("Yes."),
    ]
    for header in (
        "<|channel|>commentary to=functions.read <|constrain|>json<|message|>",
        "<|channel|>analysis to=functions.read code<|message|>",
        " to=functions.read<|channel|>commentary json<|message|>",
    ):
        assert pieces(f'{thought}{header}{{"path": "a"}}', layout) == [
            Reasoned("Hm."),
            ToolCall(name="read", arguments='{"path": "a"}'),
        ]


WRITTEN = {
    "minimax_m2": '<minimax:tool_call>\n<invoke name="read">\n<parameter name="path">a'
    "</parameter>\n</invoke>\n</minimax:tool_call>",
    "gemma4": '<|tool_call>call:read{path:<|"|>a<|"|>}<tool_call|>',
    "function_gemma": "<start_function_call>call:read{path:<escape>a<escape>}<end_function_call>",
    "longcat": "<longcat_tool_call>read\n<longcat_arg_key>path</longcat_arg_key>\n"
    "<longcat_arg_value>a</longcat_arg_value>\n</longcat_tool_call>",
    "glm47": "<tool_call>read<arg_key>path</arg_key><arg_value>a</arg_value></tool_call>",
    "pythonic": '<|tool_call_start|>[read(path="a")]<|tool_call_end|>',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.read:0"
    '<|tool_call_argument_begin|>{"path": "a"}<|tool_call_end|><|tool_calls_section_end|>',
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_families_that_mlx_lm_has_parsers_for(name: str) -> None:
    """What the parser itself makes of it, through our reader, from a template that has the sign."""
    sign = next(sign for sign, parser in PARSERS.items() if parser == name)
    form = form_of(f"{{{{ tools }}}} {sign}")
    assert form == ParsedForm(name)
    assert hasattr(importlib.import_module(f"mlx_lm.tool_parsers.{name}"), "parse_tool_call")
    said, call = pieces(f"Well. {WRITTEN[name]}", Layout({}, form), step=7)
    assert said == Said("Well.")
    assert call == ToolCall(name="read", arguments='{"path": "a"}')


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", r'"\ud83d"'])
def test_what_python_takes_for_json_and_nobody_else_stays_text(value: str) -> None:
    call = f'<tool_call>\n{{"name": "read", "arguments": {{"path": {value}}}}}\n</tool_call>'
    said, unread = pieces(call, JSON)
    assert said == Said(call)
    assert isinstance(unread, Unread)
