"""What `POST /v1/responses` takes, with OpenAI's names.

Unknown fields are ignored, as in chat completions, and so are tools and items that only OpenAI's
own servers can run or read (web search, ...): agents declare them to everyone.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from engine import RequestError
from sidecar.http.schema.bounds import AtLeastOne, Logprobs, Temperature, ToolName, TopP


class InputPart(Struct, frozen=True):
    """Of type ``input_text``, ``output_text``, ``summary_text``, ``reasoning_text`` or
    ``refusal``."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(Struct, frozen=True):
    """One item of the conversation; which fields it has depends on its type."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputPart] | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    call_id: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None


class DeclaredTool(Struct, frozen=True):
    """type: ``function``, ``custom`` (its input is any text), or ``namespace`` with `tools`."""

    type: str
    name: ToolName | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    tools: list[DeclaredTool] | None = None


class ChosenTool(Struct, frozen=True):
    """The one tool to call."""

    type: Literal["function", "custom"]
    name: str


class TextFormat(Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema"]
    schema: dict[str, Any] | None = None


class TextOptions(Struct, frozen=True):
    format: TextFormat | None = None


class ReasoningOptions(Struct, frozen=True):
    effort: str | None = None


class ResponsesRequest(Struct, frozen=True, kw_only=True):
    """None is a field left out. `draft`, `seed` and `chat_template_kwargs` are extensions. Of what
    to `include`, sealed reasoning and log-probabilities are known; `top_logprobs` asks for the
    latter, too."""

    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    tools: list[DeclaredTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: AtLeastOne | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    top_logprobs: Logprobs | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    background: bool | None = None
    draft: bool | None = None
    seed: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.background:
            raise RequestError(
                "background is not supported; leave it out",
                field="background",
                code="unsupported_value",
            )
