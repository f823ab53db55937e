"""Incremental decoding: whole characters, never taken back, equal to decoding all at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers_made import CodecFactory, byte_level, sentence_piece, unigram, word_piece

from engine.builtin import TARGET
from engine.text.codec import TextCodec

TRICKY = [
    "naïve café",
    "你好，世界",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽",
    "e\u0301 n\u0303",
    "\ufffd stays",
    "tab\tand\r\nlines\n",
    "\ue000 private \uf8ff",
    "a\u0000b",
]


def pieces(codec: TextCodec, ids: list[int]) -> list[str]:
    detokenizer = codec.detokenizer()
    return [*map(detokenizer.add, ids), detokenizer.finish()]


@pytest.mark.parametrize("text", TRICKY)
def test_round_trip(codec: TextCodec, text: str) -> None:
    assert codec.decode(codec.encode(text)) == text


@given(text=st.text(max_size=40))
def test_any_text_comes_back_a_whole_character_at_a_time(codec: TextCodec, text: str) -> None:
    shown = pieces(codec, codec.encode(text))
    assert "".join(shown) == text
    assert shown[-1] == ""
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in shown)


@given(ids=st.lists(st.integers(0, 4095), max_size=30))
def test_any_ids_equal_the_tokenizer_librarys_text(codec: TextCodec, ids: list[int]) -> None:
    """Also malformed UTF-8, where both replace by the same rule (Unicode 3.9, maximal subparts)."""
    ordinary = [token for token in ids if token not in codec.control_ids]
    expected = codec.vocabulary.tokenizer.decode(ordinary, skip_special_tokens=False)
    assert "".join(pieces(codec, ordinary)) == codec.decode(ordinary) == expected


def test_an_incomplete_character_waits_and_becomes_a_replacement_at_the_end(
    codec: TextCodec,
) -> None:
    ids = codec.encode("世")
    assert len(ids) == 3
    detokenizer = codec.detokenizer()
    assert [detokenizer.add(token) for token in ids[:2]] == ["", ""]
    assert detokenizer.finish() == "\ufffd"


def test_turns_vanish_and_structure_shows(codec: TextCodec) -> None:
    text = "<|im_start|><think>a</think><tool_call>b</tool_call><|im_end|><|fim_pad|><|endoftext|>"
    ids = codec.encode(text, control=True)
    assert len([token for token in ids if token in codec.control_ids]) == 8
    assert codec.decode(ids) == "<think>a</think><tool_call>b</tool_call>"


def test_an_id_beyond_the_vocabulary_has_no_text(codec: TextCodec) -> None:
    """A model's logits are often padded beyond the tokenizer."""
    assert codec.decode([codec.vocab_size + 5, *codec.encode("a"), -1]) == "a"


@pytest.mark.parametrize("make", [byte_level, sentence_piece, unigram, word_piece])
@settings(max_examples=25)
@given(data=st.data())
def test_other_tokenizers_decode_as_their_library_does(
    codec_with: CodecFactory, make: object, data: st.DataObject
) -> None:
    codec = _cached(codec_with, make)
    ordinary = [token for token in range(codec.vocab_size) if token not in codec.control_ids]
    ids = data.draw(st.lists(st.sampled_from(ordinary), max_size=12))
    expected = codec.vocabulary.tokenizer.decode(ids, skip_special_tokens=False)
    shown = "".join(pieces(codec, ids))
    assert shown == codec.decode(ids)
    # The library gives up on a whole run of byte tokens when one is malformed; a stream cannot.
    if "\ufffd" not in expected:
        assert shown == expected


_codecs: dict[object, TextCodec] = {}


def _cached(codec_with: CodecFactory, make: object) -> TextCodec:
    if make not in _codecs:
        assert callable(make)
        _codecs[make] = codec_with(tokenizer=make())
    return _codecs[make]


@pytest.mark.parametrize("text", [*TRICKY, "def add(a, b):\n    return a"])
def test_byte_fallback_streams_whole_characters(codec_with: CodecFactory, text: str) -> None:
    codec = _cached(codec_with, sentence_piece)
    shown = pieces(codec, codec.encode(text))
    assert "".join(shown) == text
    assert all("\ufffd" not in piece for piece in shown) or "\ufffd" in text


def test_token_bytes_spell_every_ordinary_token(codec: TextCodec) -> None:
    table = codec.token_bytes()
    assert len(table) == codec.vocab_size == 4096
    assert all(table[token] == b"" for token in codec.control_ids)
    assert codec.token_bytes() is table
    ids = codec.encode("def naïve():\n    return '😀'")
    assert b"".join(table[token] for token in ids).decode() == "def naïve():\n    return '😀'"


def test_decoding_equals_mlx_lms_streaming_detokenizer(codec: TextCodec) -> None:
    from mlx_lm.tokenizer_utils import load

    theirs = load(TARGET)
    ids = Tokenizer.from_file(str(TARGET / "tokenizer.json")).encode("x = '世界 😀'\n\treturn").ids
    stream = theirs.detokenizer
    stream.reset()
    for token in ids:
        stream.add_token(token)
    stream.finalize()
    assert codec.decode(ids) == stream.text
    assert codec.eos_token_ids >= set(theirs.eos_token_ids)
