"""What `POST /v1/completions` answers: `text_completion`, whole or in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from engine import TokenLogprob
from sidecar.http.schema.usage import ReplyFacts, Usage


class TextLogprobs(Struct, frozen=True, kw_only=True):
    """text_offset: where each token begins in the text of the choice, in characters."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    text_offset: tuple[int, ...]


class TextChoice(Struct, frozen=True, kw_only=True):
    text: str
    index: int
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None


class TextCompletion(Struct, frozen=True, kw_only=True):
    """usage: in a stream, see `ChatCompletionChunk`."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[TextChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    pillion: ReplyFacts | UnsetType = UNSET
    object: str = "text_completion"


def text_logprobs(
    tokens: Sequence[TokenLogprob], spelled: Sequence[bytes], offset: int
) -> TextLogprobs:
    """spelled: the bytes of every token id. offset: where the first of them begins."""
    texts = [_text(one.token, spelled) for one in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return TextLogprobs(
        tokens=tuple(texts),
        token_logprobs=tuple(one.logprob for one in tokens),
        top_logprobs=tuple(
            {_text(token, spelled): logprob for token, logprob in one.likely} for one in tokens
        ),
        text_offset=tuple(offsets),
    )


def _text(token: int, spelled: Sequence[bytes]) -> str:
    return spelled[token].decode(errors="replace") if token < len(spelled) else ""
