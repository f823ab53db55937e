"""Completion prompts: what stands where, what heals, and what is cut when it is too long."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_chat_rendering import with_tokens
from tokenizers_made import CodecFactory, byte_level

import engine
from engine import RenderedPrompt, RequestError
from engine.text.codec import TextCodec
from engine.text.fill_in_middle import KEPT, MAX_HEALED_TOKENS, FillInMiddle

PRE, SUF, MID = 9, 11, 10
CODE = st.text(alphabet='ab_1 .("\n\té世😀', max_size=60)


def parts(codec: TextCodec, prompt: RenderedPrompt) -> tuple[str, str, str]:
    """The three texts of a prompt."""
    tokens = list(prompt.tokens)
    assert tokens[0] == PRE
    suf, mid = tokens.index(SUF), tokens.index(MID)
    return (
        codec.decode(tokens[1:suf]),
        codec.decode(tokens[suf + 1 : mid]),
        codec.decode(tokens[mid + 1 :]),
    )


@given(prefix=CODE, suffix=CODE)
def test_nothing_is_lost(codec: TextCodec, prefix: str, suffix: str) -> None:
    prompt = codec.fill_in_middle(prefix, suffix)
    before, after, typed = parts(codec, prompt)
    assert before + typed + prompt.must_start_with == prefix
    assert after == suffix
    assert "\n" not in typed + prompt.must_start_with
    for boundary in prompt.boundaries:
        assert 0 < boundary < len(prompt.tokens)


@pytest.mark.parametrize(
    ("prefix", "before", "typed", "healed"),
    [
        ("import os\nos.pa", "import os\n", "os", ".pa"),
        ("def f(x):\n    retu", "def f(x):\n", "   ", " retu"),
        ("def f(x):\n    ", "def f(x):\n", "   ", " "),
        ("def f(x):\n\t", "def f(x):\n", "", "\t"),
        ("x = 1\n", "x = 1\n", "", ""),
        ("x = 1\r\n", "x = 1\r\n", "", ""),
        ("x = 1\r\ny", "x = 1\r\n", "", "y"),
        ("a = foo(", "", "a = foo", "("),
        ("x == ", "", "x ==", " "),
        ("self._na", "", "self._", "na"),
        ("x = snake_ca", "", "x = snake", "_ca"),
        ("return 12", "", "return", " 12"),
        ("", "", "", ""),
    ],
)
def test_the_cursors_line_goes_last_and_heals(
    codec: TextCodec, prefix: str, before: str, typed: str, healed: str
) -> None:
    prompt = codec.fill_in_middle(prefix, "\nrest")
    assert parts(codec, prompt) == (before, "\nrest", typed)
    assert prompt.must_start_with == healed


def test_healing_leaves_the_tokens_that_the_whole_line_has(codec: TextCodec) -> None:
    """Over our own code, with the cursor at every place of a line."""
    lines = Path(engine.__file__).read_text().splitlines()
    lines += (Path(engine.__file__).parent / "client.py").read_text().splitlines()
    tried = broken = 0
    for line in filter(str.strip, lines[::3]):
        whole = codec.encode(line)
        for cursor in range(len(line) - len(line.lstrip()), len(line)):
            prompt = codec.fill_in_middle(line[:cursor], "")
            kept = list(prompt.tokens[3:])
            tried += 1
            broken += whole[: len(kept)] != kept
            assert len(codec.encode(line[:cursor])) - len(kept) <= MAX_HEALED_TOKENS + 1
    assert tried > 2000
    assert broken / tried < 0.02


def test_a_long_run_without_spaces_gives_up_only_its_end(codec: TextCodec) -> None:
    text = "# " + "这是一个测试" * 20
    prompt = codec.fill_in_middle(text, "")
    assert 1 <= len(prompt.must_start_with) <= 3
    assert text.endswith(prompt.must_start_with)


def test_typing_only_appends(codec: TextCodec) -> None:
    """Until the line ends, the prompt up to the middle marker is the same at every key."""
    before = "import os\n" * 400
    suffix = "\n" + "print(os)\n" * 400
    line = "    return os.path.join(base, name)"
    starts = set()
    for cursor in range(len(line)):
        prompt = codec.fill_in_middle(before + line[:cursor], suffix, limit=256)
        starts.add(prompt.tokens[: prompt.tokens.index(MID) + 1])
    assert len(starts) == 1


def test_what_is_known_while_a_line_is_typed_is_what_would_be_made_anew(
    codec: TextCodec,
) -> None:
    """However long the document is: of its start a door shows one character less at every key."""
    before = "".join(f"value_{index} = {index}\n" for index in range(2000))
    suffix = "\n" + "print(os)\n" * 400
    line = "    return os.path.join(base, name)"
    for cursor in range(len(line)):
        prefix = (before + line[:cursor])[-18_000:]
        known = codec.known_fill_in_middle(prefix, suffix, limit=512)
        assert (known is not None) == (cursor > 0)
        prompt = codec.fill_in_middle(prefix, suffix, limit=512)
        assert known in (None, prompt)
        assert FillInMiddle(codec.vocabulary).prompt(prefix, suffix, 512) == prompt
    elsewhere = (before + "x = 1\n")[-18_000:]
    assert codec.known_fill_in_middle(elsewhere, suffix, limit=512) is None
    assert codec.known_fill_in_middle(before + line, "another", limit=512) is None
    assert codec.known_fill_in_middle(before + line * 100, suffix, limit=512) is None


def test_many_places_are_not_all_remembered(codec: TextCodec) -> None:
    places = [f"x = {number}\n" for number in range(KEPT + 1)]
    for place in places:
        codec.fill_in_middle(place, "")
    known = [codec.known_fill_in_middle(place, "") is not None for place in places]
    assert known == [False] + [True] * KEPT


def test_moving_down_keeps_the_start_of_a_cut_prefix(codec: TextCodec) -> None:
    """Also where the door shows the end of a long document, which begins elsewhere each time."""
    lines = [f"value_{index} = {index}\n" for index in range(300)]
    for reach in (10_000, 3_000):
        shown = ["".join(lines[:count])[-reach:] for count in range(250, 266)]
        starts = {
            parts(codec, codec.fill_in_middle(text, "", limit=512))[0].split("\n")[0]
            for text in shown
        }
        assert len(starts) <= 5
        assert all(re.fullmatch(r"value_(\d+) = \1", start) for start in starts)


@settings(max_examples=50)
@given(prefix=CODE, suffix=CODE, times=st.integers(1, 40), limit=st.integers(16, 200))
def test_a_limit_keeps_what_is_nearest(
    codec: TextCodec, prefix: str, suffix: str, times: int, limit: int
) -> None:
    prefix, suffix = prefix * times, suffix * times
    prompt = codec.fill_in_middle(prefix, suffix, limit=limit)
    assert len(prompt.tokens) <= limit
    before, after, typed = parts(codec, prompt)
    assert "\ufffd" not in before + after + typed
    assert prefix.endswith(before + typed + prompt.must_start_with)
    assert suffix.startswith(after)


def test_a_cut_falls_on_lines_and_leaves_most_to_the_prefix(codec: TextCodec) -> None:
    prefix = "".join(f"before_{index} = {index}\n" for index in range(500))
    suffix = "".join(f"\nafter_{index} = {index}" for index in range(500))
    prompt = codec.fill_in_middle(prefix, suffix, limit=400)
    before, after, _ = parts(codec, prompt)
    assert before.startswith("before_")
    assert before.endswith("before_499 = 499\n")
    assert after.startswith("\nafter_0 = 0\n")
    assert after.endswith("\n")
    share = len(codec.encode(before)) / (len(codec.encode(before)) + len(codec.encode(after)))
    assert 0.6 < share < 0.85
    only_prefix = parts(codec, codec.fill_in_middle(prefix, "", limit=400))[0]
    assert len(only_prefix) > len(before)
    only_suffix = parts(codec, codec.fill_in_middle("", suffix, limit=400))[1]
    assert len(only_suffix) > 2 * len(after)


@pytest.mark.parametrize("lines", [1, 3, 8, 12, 20])
def test_what_fits_is_whole(codec: TextCodec, lines: int) -> None:
    """Also text of many characters a token, whose length in characters comes near the cut."""
    for prefix in ("import os\n" * lines, (" " * 24 + "x\n") * lines * 5):
        limit = len(codec.encode(prefix)) * 4 // 3 + 72
        before, after, _ = parts(codec, codec.fill_in_middle(prefix, "\nend", limit=limit))
        assert (before, after) == (prefix, "\nend")


def test_one_endless_line(codec: TextCodec) -> None:
    prompt = codec.fill_in_middle("var a=1;" * 100_000 + "ret", ";b()" * 100_000, limit=128)
    assert 64 < len(prompt.tokens) <= 128
    assert prompt.must_start_with == ";ret"


def test_megabytes_are_not_tokenised(codec: TextCodec) -> None:
    """What is read is bounded by the limit: the rest may be anything, at no cost."""
    seen = []
    encode = codec.vocabulary.encode_spans

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(codec.vocabulary, name)

        def encode_spans(self, text: str) -> object:
            seen.append(len(text))
            return encode(text)

    from engine.text.fill_in_middle import FillInMiddle

    infill = FillInMiddle(Counting())
    infill.prompt("x = 1\n" * 1_000_000, "y = 2\n" * 1_000_000, 1536)
    assert sum(seen) < 1536 * 60


def test_a_limit_too_small_for_a_prompt_is_refused(codec: TextCodec) -> None:
    with pytest.raises(RequestError) as refused:
        codec.fill_in_middle("a", "b", limit=15)
    assert refused.value.field == "limit"


@pytest.mark.parametrize("field", ["prefix", "suffix"])
def test_a_lone_surrogate_is_refused(codec: TextCodec, field: str) -> None:
    with pytest.raises(RequestError) as refused:
        codec.fill_in_middle(**({"prefix": "", "suffix": ""} | {field: "a\udc80"}))
    assert refused.value.field == field


def test_stop_tokens_end_the_middle(codec: TextCodec) -> None:
    stops = codec.fill_in_middle("a", "b").stop_token_ids
    names = [codec.vocabulary.tokenizer.id_to_token(token) for token in stops]
    assert {"<|fim_prefix|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>"} <= set(names)
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= set(names)
    assert "<think>" not in names


def test_other_spellings_of_the_markers(codec_with: CodecFactory) -> None:
    starcoder = codec_with(tokenizer=byte_level().replace("think>", "fim_prefix>"))
    assert not starcoder.has_fim
    names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    tokenizer = with_tokens(*names).replace("<|fim_", "<|not_")
    codec = codec_with(tokenizer=tokenizer)
    pre, suf, mid = codec.vocabulary.find(*names)
    assert codec.has_fim
    assert codec.fill_in_middle("a\n", "b").tokens == (
        *(pre, *codec.encode("a\n"), suf),
        *(*codec.encode("b"), mid),
    )


def test_without_markers_the_prefix_alone(codec_with: CodecFactory) -> None:
    codec = codec_with(tokenizer=with_tokens().replace("<|fim_", "<|not_"))
    assert not codec.has_fim
    prompt = codec.fill_in_middle("import os\nos.pa", "ignored")
    assert codec.decode(prompt.tokens) + prompt.must_start_with == "import os\nos.pa"
    assert prompt.must_start_with == ".pa"
    cut = codec.fill_in_middle("import os\n" * 1000 + "os.pa", "", limit=64)
    assert len(cut.tokens) <= 64
    assert codec.decode(cut.tokens).startswith("import os\n")
    empty = codec.fill_in_middle("", "ignored")
    assert codec.vocabulary.tokenizer.id_to_token(empty.tokens[0]) == "<|endoftext|>"
