"""Log-probabilities, as OpenAI's chat completions have them."""

from __future__ import annotations

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


def logprobs_of(tokens: Iterable[TokenLogprob], spelled: Sequence[bytes]) -> ChoiceLogprobs:
    """spelled: the bytes of every token id."""
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
            for one in tokens
        )
    )


def _bytes(token: int, spelled: Sequence[bytes]) -> bytes:
    return spelled[token] if token < len(spelled) else b""


def _text(token: int, spelled: Sequence[bytes]) -> str:
    return _bytes(token, spelled).decode(errors="replace")
