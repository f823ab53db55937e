from __future__ import annotations

import pytest

from engine.text.regimes import SPANS, Regime, RegimeParser

CONTROLS = {
    0: "<|endoftext|>",
    1: "<|im_start|>",
    3: "<think>",
    4: "</think>",
    5: "<tool_call>",
    6: "</tool_call>",
    9: "<|fim_prefix|>",
    10: "<|fim_middle|>",
}
WORD = 99
CHAT = (1, WORD, WORD)


def follow(*pieces: int | str, prompt: tuple[int, ...] = CHAT) -> list[str]:
    """The regime after each piece: a control token, or text in one ordinary token."""
    parser = RegimeParser(CONTROLS, prompt)
    regimes = []
    for piece in pieces:
        # Control tokens have no text here, as a detokenizer may have it.
        parser.feed(*((piece, "") if isinstance(piece, int) else (WORD, piece)))
        regimes.append(parser.regime.value)
    return regimes


@pytest.mark.parametrize(
    ("prompt", "regime"),
    [
        (CHAT, Regime.PROSE),
        ((*CHAT, 3, WORD), Regime.REASONING),
        ((*CHAT, 3, WORD, 4, WORD), Regime.PROSE),
        ((9, WORD, 10), Regime.CODE),
        ((WORD, WORD), Regime.CODE),
        ((0, WORD), Regime.CODE),
    ],
)
def test_how_a_reply_begins(prompt: tuple[int, ...], regime: Regime) -> None:
    assert RegimeParser(CONTROLS, prompt).regime is regime


def test_control_tokens_count_from_the_token_on() -> None:
    assert follow(3, "hm", 4, "so", 5, '{"name": 1}', 6, "done") == [
        *("reasoning", "reasoning", "prose", "prose"),
        *("tool_call", "tool_call", "prose", "prose"),
    ]


def test_a_reply_that_begins_inside_reasoning() -> None:
    assert follow("hm", 4, "so", prompt=(*CHAT, 3)) == ["reasoning", "prose", "prose"]


def test_a_tool_call_ends_reasoning_that_was_not_closed() -> None:
    assert follow(3, "hm", 5, "x", 6, "y") == [
        *("reasoning", "reasoning", "tool_call", "tool_call", "prose", "prose")
    ]


@pytest.mark.parametrize("opener", SPANS)
def test_spelled_markers_split_anywhere(opener: str) -> None:
    regime, closer = SPANS[opener]
    regimes = follow("Look: ", *opener, "{}", *closer, "end")
    opened = 1 + len(opener)
    assert regimes[:opened] == ["prose"] * (opened - 1) + [regime.value]
    assert set(regimes[opened : opened + len(closer)]) == {regime.value} or len(closer) == 0
    assert regimes[-1] == ("prose" if closer else regime.value)


def test_a_marker_and_what_follows_in_one_token() -> None:
    assert follow('<tool_call>{"a"', ": 1}</tool_call>\n```py") == ["tool_call", "code"]
    assert follow("<tool_call></tool_call>") == ["prose"]


def test_fenced_code_begins_and_ends_with_its_fences() -> None:
    assert follow("Here:\n", "``", "`", "python\n", "x = 1\n", "```", "\nDone") == [
        *("prose", "prose", "code", "code", "code", "prose", "prose")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "a ``` b\nc",
        "```x``` is code in a line",
        "``\nx",
        "```\nx\n```\nafter",
        "~~~~\nx\n~~~~~  \nafter",
        "1. first:\n   ```js\n   x\n   ```\n",
    ],
)
def test_what_is_not_in_a_fence(text: str) -> None:
    assert follow(*text)[-1] == "prose"


@pytest.mark.parametrize(
    "text", ["````\n```\nx", "```\nx\n~~~\ny", "```\nx\n``` y\n", "~~~`\nx", "```\n" + "x" * 999]
)
def test_what_is_in_a_fence(text: str) -> None:
    assert follow(*text)[-1] == "code"


def test_spelled_markers_in_code_are_text_about_markers() -> None:
    assert follow("```\n", "<tool_call>", "\n```\n") == ["code", "code", "prose"]
    assert follow("```\n", 5, "x", 6)[1:] == ["tool_call", "tool_call", "prose"]


def test_raw_text_stays_code() -> None:
    assert set(follow("x\n", "```\n", "y\n", "```\n", "z", prompt=(WORD,))) == {"code"}
    assert follow("x", 5, "{}", 6, prompt=(WORD,)) == ["code", "tool_call", "tool_call", "code"]


def test_an_incomplete_marker_is_text() -> None:
    assert follow("<tool", "_calls are ", "<tool_call", " >", "x") == ["prose"] * 5
