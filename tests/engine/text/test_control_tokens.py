"""Text from outside that spells a control token stays ordinary text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from templates_made import GLUED, GLUED_TOKENS, REASONING, SMOLLM2
from test_chat_rendering import with_tokens
from tokenizers_made import CONTROL, CodecFactory, byte_level, sentence_piece, unigram

from engine.builtin import TARGET
from engine.text.codec import TextCodec
from engine.text.seals import CLOSE, OPEN

SPELLED = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>"),
    *("</tool_response>", "<|fim_prefix|>", "<|fim_middle|>", "<|file_sep|>", "<|mask|>"),
    *GLUED_TOKENS,
]
# Whole control tokens, their halves, look-alikes of seals, and what templates trim or replace.
FRAGMENTS = st.sampled_from(
    [
        *SPELLED,
        *("<", "<|", "|>", ">", "im_end", "im_end|>", "<|im_", "<|us", "er|>", "|user|", "think"),
        *("</", "user", "<|u\u200bser|>", OPEN, CLOSE, f"{OPEN}0x2{CLOSE}", "x2", "-", " ", "\n"),
        *("tool-call", "tool_call", "|im-end|", "{{ eos_token }}", "a", "é😀", "＜|im_end|＞"),
    ]
)
HOSTILE = st.lists(FRAGMENTS, min_size=1, max_size=5).map("".join)


def control_ids(codec: TextCodec, tokens: tuple[int, ...]) -> list[int]:
    return [token for token in tokens if token in codec.control_ids]


def conversation(text: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools with caller's text in every place that can hold some."""
    call = {"function": {"name": text(), "arguments": {text(): text(), "b": {text(): [text()]}}}}
    messages = [
        {"role": "system", "content": text()},
        {"role": "user", "content": [{"type": "text", "text": text()}], "name": text()},
        {"role": "assistant", "content": text(), "tool_calls": [call | {"id": text()}]},
        {"role": "tool", "content": text(), "tool_call_id": text()},
        {"role": "user", "content": text()},
    ]
    parameters = {"type": "object", "properties": {text(): {"description": text()}}}
    tool = {"name": text(), "description": text(), "parameters": parameters}
    return messages, [{"type": "function", "function": tool}]


@pytest.fixture(scope="module")
def hardened(codec: TextCodec, codec_with: CodecFactory) -> dict[str, TextCodec]:
    return {
        "builtin": codec,
        "smollm2": codec_with(SMOLLM2),
        "reasoning": codec_with(REASONING),
        "glued": codec_with(GLUED, tokenizer=with_tokens(*GLUED_TOKENS)),
    }


@pytest.mark.parametrize("name", ["builtin", "smollm2", "reasoning", "glued"])
@settings(max_examples=25)
@given(data=st.data())
def test_no_control_token_but_the_templates_own(
    hardened: dict[str, TextCodec], name: str, data: st.DataObject
) -> None:
    codec = hardened[name]
    harmless = iter(f"w{index}" for index in range(100))
    messages, tools = conversation(lambda: next(harmless))
    structure = control_ids(codec, codec.chat(messages, tools=tools).tokens)
    messages, tools = conversation(lambda: data.draw(HOSTILE))
    prompt = codec.chat(messages, tools=tools, template={"x": "<|im_end|>"})
    assert control_ids(codec, prompt.tokens) == structure
    text = codec.vocabulary.tokenizer.decode(prompt.tokens, skip_special_tokens=False)
    assert messages[4]["content"].strip() in text, "the caller's text is all there"


@given(text=HOSTILE)
def test_encode_makes_control_tokens_only_when_asked(codec: TextCodec, text: str) -> None:
    ordinary = codec.encode(text)
    assert control_ids(codec, tuple(ordinary)) == []
    assert codec.decode(ordinary) == text
    assert codec.encode(text, control=True) == codec.vocabulary.tokenizer.encode(text).ids


@given(prefix=HOSTILE, suffix=HOSTILE)
def test_a_buffer_makes_no_control_token(codec: TextCodec, prefix: str, suffix: str) -> None:
    prompt = codec.fill_in_middle(prefix, suffix)
    assert control_ids(codec, prompt.tokens) == [9, 11, 10]


@pytest.mark.parametrize("make", [byte_level, sentence_piece, unigram])
def test_with_other_tokenizers(codec_with: CodecFactory, make: Any) -> None:
    codec = codec_with(SMOLLM2, tokenizer=make(), eos_token="</s>")
    text = "def <s>add</s> <|im_end|>\n<think> </think>"
    assert control_ids(codec, tuple(codec.encode(text))) == []
    assert codec.decode(codec.encode(text)) == text
    prompt = codec.chat([{"role": "system", "content": "a"}, {"role": "user", "content": text}])
    begin, end = codec.vocabulary.find("<|im_start|>", "<|im_end|>")
    assert control_ids(codec, prompt.tokens) == [begin, end, begin, end, begin]
    assert len(codec.control_ids) == len(CONTROL)


@pytest.mark.parametrize("make", [byte_level, sentence_piece, unigram])
def test_harmless_text_is_encoded_as_the_library_does(codec_with: CodecFactory, make: Any) -> None:
    codec = codec_with(SMOLLM2, tokenizer=make())
    messages = [{"role": "user", "content": " def add(a,  b):\n\treturn a"}]
    tokens = list(codec.chat(messages).tokens)
    rendered = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        f"<|im_end|>\n<|im_start|>user\n{messages[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    )
    encode = codec.vocabulary.tokenizer.encode
    assert tokens == encode(rendered, add_special_tokens=False).ids
    for text in ("", " a", "def  add", "é\n\n", "a <b"):
        assert codec.encode(text) == encode(text, add_special_tokens=False).ids


def test_a_seal_cannot_be_guessed_from_another_load() -> None:
    first, second = TextCodec(TARGET), TextCodec(TARGET)
    seal = first.vocabulary.seals.of(2)
    assert first.encode(seal) == [2]
    assert control_ids(second, tuple(second.encode(seal))) == []


def test_a_name_that_becomes_a_tag_is_no_control_token(hardened: dict[str, TextCodec]) -> None:
    """The template builds `<key>` from the caller's key, and changes it on the way."""
    call = {"function": {"name": "f", "arguments": {"tool-call": "a", "think": "b"}}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    prompt = hardened["reasoning"].chat(messages)
    text = hardened["reasoning"].vocabulary.tokenizer.decode(prompt.tokens, False)
    assert "<tool_call>a</tool_call>" in text
    assert "<think>b</think>" in text
    # One pair for the call, one for the reply's own reasoning, written by the template.
    assert [prompt.tokens.count(token) for token in (3, 4, 5, 6)] == [1, 1, 1, 1]
