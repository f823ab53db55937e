"""What `POST /v1/chat/completions` answers: `chat.completion`, or a stream of
`chat.completion.chunk`."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from sidecar.http.schema.usage import ReplyFacts, Usage


class AssistantMessage(Struct, frozen=True, kw_only=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class Choice(Struct, frozen=True, kw_only=True):
    message: AssistantMessage
    finish_reason: str
    index: int = 0
    logprobs: None = None


class ChatCompletion(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[Choice, ...]
    usage: Usage
    pillion: ReplyFacts
    object: str = "chat.completion"


class Delta(Struct, frozen=True, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    delta: Delta
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class ChatCompletionChunk(Struct, frozen=True, kw_only=True):
    """usage: left out unless the client asked for it; then null on every chunk but the last.
    pillion: on the chunk that carries the finish_reason."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[ChunkChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    pillion: ReplyFacts | UnsetType = UNSET
    object: str = "chat.completion.chunk"
