"""Prompts as ids that stand for text, replies with their parts marked, events read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from engine import (
    GenerateRequest,
    Piece,
    Reasoned,
    ReplyFormat,
    RequestError,
    Said,
    ToolCall,
    Unread,
)
from sidecar.upstream.codec import MarkedReader, UpstreamCodec, marked
from sidecar.upstream.dialect import asked
from sidecar.upstream.fallback import reasons_after
from sidecar.upstream.forced_call import call_by_schema
from sidecar.upstream.listener import Listener
from sidecar.upstream.prompt import (
    VOCABULARY,
    ChatPrompt,
    GapPrompt,
    RawPrompt,
    marks_of,
    pack_text,
    text_of,
    trimmed,
    unpack,
)
from sidecar.upstream.ways import Ways

CODEC = UpstreamCodec()


@settings(max_examples=25)
@given(st.text())
def test_text_comes_back_whole(text: str) -> None:
    tokens = pack_text(text)
    assert text_of(tokens) == text
    assert all(0 <= token < VOCABULARY for token in tokens)
    assert len(tokens) == -(-len(text.encode()) // 5)
    reader = CODEC.detokenizer()
    assert "".join([*map(reader.add, tokens), reader.finish()]) == text


@settings(max_examples=25)
@given(st.text(min_size=1))
def test_a_chat_comes_back_whole(text: str) -> None:
    messages = [{"role": "user", "content": text}]
    rendered = CODEC.chat(messages, tools=[{"a": 1}], template={"x": [True]}, reasoning=False)
    assert unpack(rendered.tokens) == ChatPrompt(
        messages=messages, tools=[{"a": 1}], template={"x": [True]}, reasoning=False
    )


def test_what_a_prompt_is_told_by() -> None:
    gap = CODEC.fill_in_middle("a", "b", path="c.py", limit=9)
    assert unpack(gap.tokens) == GapPrompt(prefix="a", suffix="b", path="c.py", limit=9)
    assert unpack(CODEC.encode("plain")) == RawPrompt(text="plain")
    assert unpack((5, 150_000)) == RawPrompt(tokens=(5, 150_000))
    with pytest.raises(RequestError, match="mixed"):
        unpack((5, *CODEC.encode("plain")))


def test_a_gap_is_cut_around_the_cursor() -> None:
    cut = trimmed(GapPrompt(prefix="p" * 1000, suffix="s" * 1000, limit=40))
    assert (len(cut.prefix), len(cut.suffix)) == (90, 30)
    short = trimmed(GapPrompt(prefix="p" * 10, suffix="s" * 1000, limit=40))
    assert (len(short.prefix), len(short.suffix)) == (10, 110)


def test_marks_by_name() -> None:
    assert marks_of("Qwen/Qwen3-Coder-30B") == (
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
    )
    assert marks_of("meta-llama/Llama-3") is None


PIECES = st.one_of(
    st.text(min_size=1).map(Said),
    st.text(min_size=1).map(Reasoned),
    st.text().map(Unread),
    st.tuples(st.text(), st.text()).map(lambda two: ToolCall(name=two[0], arguments=two[1])),
)


def plain(text: str) -> str:
    return text.translate(dict.fromkeys(range(0xFDD0, 0xFDD4)))


@settings(max_examples=25)
@given(st.lists(PIECES))
def test_marked_pieces_are_read_again(pieces: list[Piece]) -> None:
    reader, reasoning, read = MarkedReader(), False, []
    for piece in pieces:
        read += reader.feed(marked(piece, reasoning=reasoning))
        reasoning = reasons_after(piece, reasoning)
    wanted = []
    for piece in pieces:
        if isinstance(piece, ToolCall):
            named = ToolCall(name=plain(piece.name), arguments=plain(piece.arguments))
            wanted.append(named)
        elif isinstance(piece, Unread):
            wanted.append(Unread(plain(piece.reason)))
        elif text := plain(piece.text):
            wanted.append(type(piece)(text))
    assert read == wanted


def test_a_gap_with_other_files() -> None:
    from engine import ContextFile

    file = ContextFile(path="b.py", text="x = 1\n", content=b"\x01")
    tokens = CODEC.fill_in_middle("a", "z", context=[file], context_limit=50).tokens
    request = GenerateRequest(id="a", prompt=tokens, max_tokens=4, stop=("q",))
    prompt = unpack(tokens)
    infill = asked(request, prompt, "m", Ways(gaps="infill"))
    assert infill.below_root
    assert infill.body["input_extra"] == [{"filename": "b.py", "text": "x = 1\n"}]
    assert (infill.body["n_predict"], infill.body["stop"]) == (4, ["q"])
    suffix = asked(request, prompt, "m", Ways(gaps="suffix"))
    assert (suffix.path, suffix.body["suffix"]) == ("/completions", "z")
    assert suffix.body["prompt"] == "# b.py\nx = 1\n\na"
    assert "suffix" not in asked(request, prompt, "m", Ways(gaps="prefix")).body


@pytest.mark.parametrize("event", ["text", [1], {"choices": [1]}, {"choices": {"a": 1}}])
def test_what_is_no_event_is_an_error(event: object) -> None:
    with pytest.raises((TypeError, KeyError, AttributeError, ValueError)):
        Listener().hear(event)


def test_counts_of_an_upstream() -> None:
    listener = Listener()
    details = {"cached_tokens": 3}
    drafts = {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": None}
    listener.hear({"choices": [], "usage": {"prompt_tokens": 5, "prompt_tokens_details": details}})
    listener.hear({"usage": {"completion_tokens": 7, "completion_tokens_details": drafts}})
    ending = listener.ending
    assert (ending.prompt_tokens, ending.completion_tokens, ending.cached_tokens) == (5, 7, 3)
    assert (ending.accepted, ending.rejected) == (2, 0)


def called(index: int | None, id: str, name: str, arguments: str) -> dict[str, Any]:
    """An event with a part of a call."""
    part: dict[str, Any] = {"function": {"name": name, "arguments": arguments}}
    part |= {} if index is None else {"index": index}
    return {"choices": [{"delta": {"tool_calls": [part | ({"id": id} if id else {})]}}]}


TWO = [ToolCall(name="a", arguments='{"x":1}'), ToolCall(name="b", arguments="{}")]
PARTS = {
    "an index each": [
        called(0, "1", "a", '{"x"'),
        called(0, "", "", ":1}"),
        called(1, "2", "b", "{}"),
    ],
    "one index": [called(0, "1", "a", '{"x":1}'), called(0, "2", "b", "{}")],
    "no index": [
        called(None, "1", "a", '{"x"'),
        called(None, "", "", ":1}"),
        called(None, "2", "b", ""),
    ],
    "no ids": [called(0, "", "a", '{"x":1}'), called(0, "", "b", "{}")],
    "all repeated": [
        called(0, "1", "a", ""),
        called(0, "1", "a", '{"x":1}'),
        called(0, "2", "b", ""),
    ],
    "an id for each part": [
        called(0, "1", "a", '{"x"'),
        called(0, "2", "a", ":1}"),
        called(1, "3", "b", ""),
    ],
    "by turns": [
        called(0, "1", "a", '{"x"'),
        called(1, "2", "b", "{"),
        called(0, "", "", ":1}"),
        called(1, "", "", "}"),
    ],
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_two_calls_are_told_apart(parts: list[dict[str, Any]]) -> None:
    listener = Listener(frozenset("ab"))
    end = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    assert [piece for event in (*parts, end) for piece in listener.hear(event)] == TWO


def test_a_call_by_schema_keeps_references_within_a_tools_parameters() -> None:
    one = {"$defs": {"p": {"type": "string"}}, "properties": {"path": {"$ref": "#/$defs/p"}}}
    tools = [{"function": {"name": name, "parameters": one}} for name in ("a", "b")]
    told, schema = call_by_schema(tools, ReplyFormat(calls=True))
    assert [json.loads(line)["name"] for line in told.splitlines()[1:]] == ["a", "b"]
    validator = Draft202012Validator(schema)
    assert validator.is_valid({"name": "b", "arguments": {"path": "x"}})
    assert not validator.is_valid({"name": "b", "arguments": {"path": 1}})
    assert not validator.is_valid({"name": "c", "arguments": {"path": "x"}})
    _, only = call_by_schema(tools, ReplyFormat(calls=True, tool="a"))
    assert not Draft202012Validator(only).is_valid({"name": "b", "arguments": {"path": "x"}})
    assert Draft202012Validator(only).is_valid({"name": "a", "arguments": {"path": "x"}})
