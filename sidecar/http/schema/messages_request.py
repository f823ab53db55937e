"""What `POST /v1/messages` takes, with Anthropic's names.

Unknown fields are ignored, and so are tools that only Anthropic's own servers can run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from engine import RequestError
from sidecar.http.schema.bounds import AtLeastOne, Stops, Temperature, ToolName, TopK, TopP


class Block(Struct, frozen=True):
    """A piece of a message; which fields it has depends on its type. cache_control: its caller
    will send the same again, up to here."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None


class Turn(Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ClientTool(Struct, frozen=True):
    """type: left out, or ``custom``; another one is a tool of Anthropic's servers."""

    name: ToolName
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Struct, frozen=True):
    """name: of the tool, for the type ``tool``."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, frozen=True):
    """``adaptive`` leaves it to the model's template."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(Struct, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, frozen=True):
    effort: str | None = None
    format: OutputFormat | None = None


class Metadata(Struct, frozen=True):
    """user_id: a retention hint for the prefix cache, like a session."""

    user_id: str | None = None


class CountTokensRequest(Struct, frozen=True, kw_only=True):
    """What decides about a prompt. None is a field left out."""

    messages: Annotated[list[Turn], Meta(min_length=1)]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[ClientTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    def __post_init__(self) -> None:
        choice = self.tool_choice
        if choice is not None and choice.type == "tool" and not choice.name:
            raise RequestError("tool_choice.name is missing", field="tool_choice.name")


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True):
    """None is a field left out. `draft` and `seed` are extensions."""

    max_tokens: AtLeastOne
    stream: bool | None = None
    stop_sequences: Stops | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    metadata: Metadata | None = None
    draft: bool | None = None
    seed: int | None = None
