"""What `POST /v1/messages` answers: a `message`, or the events that one is made in."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from sidecar.http.schema.usage import ReplyFacts


class WrittenBlock(Struct, frozen=True, kw_only=True):
    """A ``text``, a ``thinking`` or a ``tool_use``, by its type."""

    type: str
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    input: dict[str, Any] | UnsetType = UNSET


class MessageUsage(Struct, frozen=True, kw_only=True):
    """input_tokens: without those that came from the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class Message(Struct, frozen=True, kw_only=True):
    id: str
    model: str
    usage: MessageUsage
    type: str = "message"
    role: str = "assistant"
    content: tuple[WrittenBlock, ...] = ()
    stop_reason: str | None = None
    stop_sequence: str | None = None
    pillion: ReplyFacts | UnsetType = UNSET


class BlockDelta(Struct, frozen=True, kw_only=True):
    """What is added to a block, by its type; or what the message ends with, which has none."""

    type: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET
    stop_reason: str | UnsetType = UNSET
    stop_sequence: str | UnsetType | None = UNSET


class MessageError(Struct, frozen=True):
    type: str
    message: str


class MessageErrorBody(Struct, frozen=True, kw_only=True):
    error: MessageError
    type: str = "error"


class MessageEvent(Struct, frozen=True, kw_only=True):
    """One event of a stream; which fields it has depends on its type."""

    type: str
    message: Message | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: WrittenBlock | UnsetType = UNSET
    delta: BlockDelta | UnsetType = UNSET
    usage: MessageUsage | UnsetType = UNSET
    error: MessageError | UnsetType = UNSET
    pillion: ReplyFacts | UnsetType = UNSET


class TokenCount(Struct, frozen=True):
    input_tokens: int
