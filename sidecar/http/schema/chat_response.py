"""What `POST /v1/chat/completions` answers: `chat.completion`, or a stream of
`chat.completion.chunk`."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from sidecar.http.schema.logprobs import ChoiceLogprobs
from sidecar.http.schema.usage import ReplyFacts, Usage


class CalledFunction(Struct, frozen=True, kw_only=True):
    """arguments: JSON text of an object."""

    name: str
    arguments: str


class WrittenToolCall(Struct, frozen=True, kw_only=True):
    """index: of the call in its message; only deltas say it."""

    index: int | UnsetType = UNSET
    id: str
    function: CalledFunction
    type: str = "function"


class AssistantMessage(Struct, frozen=True, kw_only=True):
    """content: null in a message that only calls tools. reasoning_content: what the model thought
    before, if it did."""

    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[WrittenToolCall, ...] | UnsetType = UNSET
    role: str = "assistant"
    refusal: None = None


class Choice(Struct, frozen=True, kw_only=True):
    message: AssistantMessage
    finish_reason: str
    index: int = 0
    logprobs: ChoiceLogprobs | None = None


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
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[WrittenToolCall, ...] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    delta: Delta
    finish_reason: str | None = None
    index: int = 0
    logprobs: ChoiceLogprobs | None = None


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
