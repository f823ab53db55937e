"""What `POST /v1/responses` answers: a `response`, or the events that one is made in."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from sidecar.http.schema.logprobs import WrittenToken
from sidecar.http.schema.usage import ReplyFacts


class OutputPart(Struct, frozen=True, kw_only=True):
    """An ``output_text`` or a ``reasoning_text``, by its type."""

    text: str
    type: str
    annotations: tuple[str, ...] | UnsetType = UNSET
    logprobs: tuple[WrittenToken, ...] | UnsetType = UNSET


class OutputItem(Struct, frozen=True, kw_only=True):
    """A `message`, a `reasoning`, a `function_call` or a `custom_tool_call`, by its type."""

    id: str
    type: str
    status: str
    role: str | UnsetType = UNSET
    content: tuple[OutputPart, ...] | UnsetType = UNSET
    summary: tuple[str, ...] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class InputDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(Struct, frozen=True, kw_only=True):
    code: str
    message: str


class IncompleteDetails(Struct, frozen=True):
    reason: str


class Response(Struct, frozen=True, kw_only=True):
    """status: ``in_progress``, ``completed``, ``incomplete`` or ``failed``."""

    id: str
    created_at: int
    model: str
    status: str
    object: str = "response"
    output: tuple[OutputItem, ...] = ()
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    metadata: dict[str, Any] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    store: bool = True
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    tool_choice: Any = "auto"
    tools: tuple[dict[str, Any], ...] = ()
    usage: ResponseUsage | None = None
    pillion: ReplyFacts | UnsetType = UNSET


class ResponseEvent(Struct, frozen=True, kw_only=True):
    """One event of a stream; which fields it has depends on its type."""

    type: str
    sequence_number: int = 0
    response: Response | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputPart | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    logprobs: tuple[WrittenToken, ...] | UnsetType = UNSET
