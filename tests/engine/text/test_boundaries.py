"""Boundaries of a chat prompt: lengths that a longer conversation's prompt shares."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from templates_made import ALTERNATING, REASONING, SMOLLM2
from tokenizers_made import CodecFactory, sentence_piece

from engine.text.codec import TextCodec
from engine.text.prompt_memory import MAX_BOUNDARIES

TEXT = st.sampled_from(
    ["a", " b\n", "\n", ".", "user\n", "<|im_end|>", "é😀", "x = 1\n\n", "</think>c"]
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OPENS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
CALLS = [{"type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}]


@st.composite
def turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": draw(TEXT)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 4))):
        messages.append({"role": "user", "content": draw(TEXT)})
        reply: dict[str, Any] = {"role": "assistant", "content": draw(TEXT)}
        if draw(st.booleans()):
            reply["reasoning_content"] = draw(TEXT)
        if draw(st.booleans()):
            messages += [reply | {"tool_calls": CALLS}, {"role": "tool", "content": draw(TEXT)}]
        messages.append(reply)
    return messages


@pytest.fixture(scope="module")
def codecs(codec: TextCodec, codec_with: CodecFactory) -> dict[str, TextCodec]:
    return {
        "builtin": codec,
        "smollm2": codec_with(SMOLLM2),
        "reasoning": codec_with(REASONING),
        "opens": codec_with(OPENS),
        "sentence_piece": codec_with(SMOLLM2, tokenizer=sentence_piece()),
    }


@pytest.mark.parametrize("name", ["builtin", "smollm2", "reasoning", "sentence_piece"])
@settings(max_examples=25)
@given(messages=turns(), data=st.data())
def test_a_longer_conversation_shares_every_boundary(
    codecs: dict[str, TextCodec], name: str, messages: list[dict[str, Any]], data: st.DataObject
) -> None:
    first_user = next(i for i, message in enumerate(messages) if message["role"] == "user")
    count = data.draw(st.integers(first_user + 1, len(messages)))
    tools = data.draw(st.sampled_from([None, [TOOL]]))
    short = codecs[name].chat(messages[:count], tools=tools)
    long = codecs[name].chat(messages, tools=tools)
    assert short.boundaries
    assert list(short.boundaries) == sorted(set(short.boundaries))
    assert short.boundaries[-1] <= len(short.tokens)
    for boundary in short.boundaries:
        if boundary == len(short.tokens):
            # That holds for replies like those below.
            continue
        assert long.tokens[:boundary] == short.tokens[:boundary]


@pytest.mark.parametrize("name", ["builtin", "smollm2", "opens", "sentence_piece"])
def test_the_whole_prompt_is_a_segment_where_the_next_turn_begins_with_it(
    codecs: dict[str, TextCodec], name: str
) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    for reply in ("A.", "B"):
        short = codecs[name].chat(messages)
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "V"}]
        long = codecs[name].chat(messages)
        shared = long.tokens[: len(short.tokens)] == short.tokens
        assert (short.boundaries[-1] == len(short.tokens)) == shared
    # Opened reasoning is dropped from the next prompt.
    assert shared == (name != "opens")
    # Behind a reply there is no saying what comes.
    half = codecs[name].chat(messages[:-1])
    assert half.boundaries[-1] < len(half.tokens)


def ends(codec: TextCodec, prompt: Any) -> list[str]:
    decode = codec.vocabulary.tokenizer.decode
    return [decode(prompt.tokens[:end], skip_special_tokens=False) for end in prompt.boundaries]


def test_they_lie_at_the_end_of_system_and_tools_and_of_each_message(codec: TextCodec) -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "V"},
    ]
    shown = ends(codec, codec.chat(messages, tools=[TOOL]))
    assert [text.rstrip().splitlines()[-1] for text in shown] == [
        "S Tools: f().<|im_end|>",
        "U<|im_end|>",
        "A<|im_end|>",
        # The next turn's prompt begins with all of it.
        "</think>",
    ]


def test_tools_without_a_system_message_are_a_segment_too(codec: TextCodec) -> None:
    prompt = codec.chat([{"role": "user", "content": "U"}], tools=[TOOL])
    first = ends(codec, prompt)[0]
    assert first.startswith("<|im_start|>system\nYou are a coding agent. Tools: f().<|im_end|>")
    assert "U" not in first.split("system")[1]


def test_reasoning_that_the_next_question_drops_is_in_no_segment(
    codecs: dict[str, TextCodec],
) -> None:
    messages = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A", "reasoning_content": "R"},
    ]
    shown = ends(codecs["reasoning"], codecs["reasoning"].chat(messages))
    assert shown
    assert not any("R" in text for text in shown)


def test_a_template_that_wants_turns_to_alternate(codec_with: CodecFactory) -> None:
    codec = codec_with(ALTERNATING, bos_token="<|endoftext|>")
    messages = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    shown = ends(codec, codec.chat(messages))
    assert [text.count("<|im_end|>") for text in shown if "user" in text] == [1, 2, 3]


def test_a_long_conversation_marks_its_beginning_and_its_end(codec: TextCodec) -> None:
    messages = [{"role": "system", "content": "S"}]
    for index in range(2 * MAX_BOUNDARIES):
        messages.append({"role": ("user", "assistant")[index % 2], "content": str(index)})
    prompt = codec.chat(messages)
    assert len(prompt.boundaries) == MAX_BOUNDARIES + 1
    assert ends(codec, prompt)[0] == "<|im_start|>system\nS<|im_end|>"
    assert ends(codec, prompt)[-1].endswith(f"{2 * MAX_BOUNDARIES - 1}<|im_end|>")
