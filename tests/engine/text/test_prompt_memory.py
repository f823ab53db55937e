"""What a codec remembers of earlier prompts changes no later one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from templates_made import GLUED, REASONING, SMOLLM2
from test_boundaries import TOOL, turns
from tokenizers_made import CodecFactory, byte_level, sentence_piece, unigram, word_piece

from engine.text import prompt_memory
from engine.text.codec import TextCodec

OTHER = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
Codecs = dict[str, tuple[TextCodec, TextCodec]]
NAMES = ("builtin", "reasoning", "glued", "byte_level", "sentence_piece", "unigram", "word_piece")


@pytest.fixture(scope="module")
def codecs(codec: TextCodec, codec_with: CodecFactory) -> Codecs:
    """Pairs of equal codecs: one that remembers, and one that is made to forget."""
    kinds = (byte_level, sentence_piece, unigram, word_piece)
    made: dict[str, dict[str, Any]] = {
        "builtin": {},
        "reasoning": {"template": REASONING},
        "glued": {"template": GLUED},
        **{kind.__name__: {"template": SMOLLM2, "tokenizer": kind()} for kind in kinds},
    }
    return {name: (codec_with(**how), codec_with(**how)) for name, how in made.items()}


def forget(codec: TextCodec) -> None:
    codec._prompts._rendered = ()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10, deadline=None)
@given(messages=turns(), data=st.data())
def test_prompts_are_those_of_a_codec_that_forgets(
    codecs: Codecs, name: str, messages: list[dict[str, Any]], data: st.DataObject
) -> None:
    remembers, forgets = codecs[name]
    forget(remembers)
    first_user = next(i for i, message in enumerate(messages) if message["role"] == "user")
    for _ in range(4):
        count = data.draw(st.integers(first_user + 1, len(messages)))
        tools = data.draw(st.sampled_from([None, [TOOL], [TOOL, OTHER]]))
        template = data.draw(st.sampled_from([None, {"enable_thinking": False}]))
        forget(forgets)
        one = remembers.chat(messages[:count], tools=tools, template=template)
        assert one == forgets.chat(messages[:count], tools=tools, template=template)
        messages = [*messages[:-1], messages[-1] | {"content": data.draw(st.text(max_size=8))}]


def test_a_turn_costs_what_is_new_in_it(codec: TextCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    rendered: list[int] = []
    forget(codec)
    memory = codec._prompts
    encode, stable_start = memory._encode, prompt_memory._stable_start
    monkeypatch.setattr(memory, "_encode", lambda text: encoded.append(text) or encode(text))

    def counted(turns: Any, count: int, *rest: Any) -> int:
        rendered.append(count)
        return stable_start(turns, count, *rest)

    monkeypatch.setattr(prompt_memory, "_stable_start", counted)
    messages = [{"role": "system", "content": "word " * 2000}, {"role": "user", "content": "U"}]
    whole = codec.chat(messages, tools=[TOOL])
    assert len(encoded) == 1
    assert rendered == [1, 2]
    messages += [{"role": "assistant", "content": "A"}, {"role": "user", "content": "V"}]
    further = codec.chat(messages, tools=[TOOL])
    assert len(encoded[1]) < 400
    assert rendered[2:] == [3, 4]
    assert further.tokens[: whole.boundaries[-1]] == whole.tokens[: whole.boundaries[-1]]
    # Another question behind the same system message and tools.
    codec.chat([messages[0], {"role": "user", "content": "W"}], tools=[TOOL])
    assert len(encoded[2]) < 400
    assert rendered[4:] == [2]


def test_what_is_remembered_is_bounded(codec: TextCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_memory, "MOST_CHARACTERS", 5000)
    for number in range(3 * prompt_memory.MOST_PROMPTS):
        codec.chat([{"role": "user", "content": f"{number}"}])
    assert len(codec._prompts._rendered) == prompt_memory.MOST_PROMPTS
    codec.chat([{"role": "user", "content": "word " * 1000}])
    assert len(codec._prompts._rendered) == 1
