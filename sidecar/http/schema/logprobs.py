"""Log-probabilities, as OpenAI's chat completions have them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence

from msgspec import Struct

from engine import TokenLogprob


class LikelyToken(Struct, frozen=True, kw_only=True):
    """bytes: of the token, which alone may be no whole character."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class WrittenToken(LikelyToken, frozen=True, kw_only=True):
    top_logprobs: tuple[LikelyToken, ...]


class ChoiceLogprobs(Struct, frozen=True, kw_only=True):
    content: tuple[WrittenToken, ...]
    refusal: None = None


def logprobs_of(
    said: Iterable[tuple[str, Sequence[TokenLogprob]]], spelled: Sequence[bytes]
) -> ChoiceLogprobs:
    """said: pieces of text, each with the tokens that it came with. spelled: the bytes of every
    token id."""
    return ChoiceLogprobs(
        content=tuple(
            WrittenToken(
                token=_text(one.token, spelled),
                logprob=one.logprob,
                bytes=tuple(_bytes(one.token, spelled)),
                top_logprobs=tuple(
                    LikelyToken(
                        token=_text(token, spelled),
                        logprob=logprob,
                        bytes=tuple(_bytes(token, spelled)),
                    )
                    for token, logprob in one.likely
                ),
            )
            for text, tokens in said
            for one in _saying(text, tokens, spelled)
        )
    )


def _saying(
    text: str, tokens: Sequence[TokenLogprob], spelled: Sequence[bytes]
) -> Sequence[TokenLogprob]:
    """Those of `tokens` that `text` begins with or behind: reasoning that ended in the same round
    is no part of it."""
    ends = list(itertools.accumulate(len(_bytes(one.token, spelled)) for one in tokens))
    begin = b"".join(_bytes(one.token, spelled) for one in tokens).rfind(text.encode())
    return tokens[bisect.bisect_right(ends, begin) :] if begin > 0 else tokens


def _bytes(token: int, spelled: Sequence[bytes]) -> bytes:
    return spelled[token] if token < len(spelled) else b""


def _text(token: int, spelled: Sequence[bytes]) -> str:
    return _bytes(token, spelled).decode(errors="replace")
