"""Prompts as ids that stand for text, replies with their parts marked, events read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import GenerateRequest, Reasoned, RequestError, Said, ToolCall
from sidecar.upstream.codec import MarkedReader, UpstreamCodec, marked
from sidecar.upstream.dialect import Listener, asked
from sidecar.upstream.fallback import reasons_after
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
    st.tuples(st.text(), st.text()).map(lambda two: ToolCall(name=two[0], arguments=two[1])),
)


def plain(text: str) -> str:
    return text.translate(dict.fromkeys(range(0xFDD0, 0xFDD3)))


@settings(max_examples=25)
@given(st.lists(PIECES))
def test_marked_pieces_are_read_again(pieces: list[Said | Reasoned | ToolCall]) -> None:
    reader, reasoning, read = MarkedReader(), False, []
    for piece in pieces:
        read += reader.feed(marked(piece, reasoning=reasoning))
        reasoning = reasons_after(piece, reasoning)
    wanted = []
    for piece in pieces:
        if isinstance(piece, ToolCall):
            named = ToolCall(name=plain(piece.name), arguments=plain(piece.arguments))
            wanted.append(named)
        elif text := plain(piece.text):
            wanted.append(type(piece)(text))
    assert read == wanted


def test_a_gap_with_other_files() -> None:
    from engine import ContextFile

    file = ContextFile(path="b.py", text="x = 1\n", content=b"\x01")
    tokens = CODEC.fill_in_middle("a", "z", context=[file], context_limit=50).tokens
    request = GenerateRequest(id="a", prompt=tokens, max_tokens=4, stop=("q",))
    prompt = unpack(tokens)
    infill = asked(request, prompt, "m", "infill")
    assert infill.below_root
    assert infill.body["input_extra"] == [{"filename": "b.py", "text": "x = 1\n"}]
    assert (infill.body["n_predict"], infill.body["stop"]) == (4, ["q"])
    suffix = asked(request, prompt, "m", "suffix")
    assert (suffix.path, suffix.body["suffix"]) == ("/completions", "z")
    assert suffix.body["prompt"] == "# b.py\nx = 1\n\na"
    assert "suffix" not in asked(request, prompt, "m", "prefix").body


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
