"""What `POST /v1/chat/completions` takes, with OpenAI's names.

Unknown fields are ignored, because clients send hints of many vendors. A known field of a wrong
type or value is refused by name, and so is one that asks for what is not served: a client that
asked for sound must not get prose.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from engine import RequestError
from sidecar.http.schema.bounds import (
    AtLeastOne,
    Choices,
    Logprobs,
    MinP,
    Penalty,
    RepetitionPenalty,
    Stops,
    StopText,
    Temperature,
    ToolName,
    TopK,
    TopP,
)


class ContentPart(Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Struct, frozen=True):
    """arguments: JSON text, as OpenAI defines it; some clients send the object itself."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(Struct, frozen=True):
    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"


class ChatMessage(Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Function(Struct, frozen=True):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Struct, frozen=True):
    type: Literal["function"]
    function: Function


class PredictedPart(Struct, frozen=True):
    text: str
    type: Literal["text"] = "text"


class Prediction(Struct, frozen=True):
    """What the reply will largely be. It makes the reply faster and never different."""

    content: str | list[PredictedPart]
    type: Literal["content"] = "content"


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class NamedFunction(Struct, frozen=True):
    name: str


class NamedTool(Struct, frozen=True):
    """The one tool to call."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Struct, frozen=True):
    """Enforced, whether it is `strict` or not."""

    schema: dict[str, Any] | None = None


class ResponseFormat(Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatRequest(Struct, frozen=True, kw_only=True):
    """None is a field left out. `draft`, `explain`, `ignore_eos`, `top_k`, `min_p` and
    `repetition_penalty` are extensions; `chat_template_kwargs` and `reasoning_effort` become
    variables of the chat template."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    model: str | None = None
    max_tokens: AtLeastOne | None = None
    max_completion_tokens: AtLeastOne | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: StopText | Stops | None = None
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    draft: bool | None = None
    explain: bool | None = None
    ignore_eos: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    prediction: Prediction | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_key_camel: str | None = field(default=None, name="promptCacheKey")

    def __post_init__(self) -> None:
        for index, message in enumerate(self.messages):
            _check_message(message, f"messages[{index}]")
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", field="top_logprobs")
        self._refuse_what_is_not_served()

    def _refuse_what_is_not_served(self) -> None:
        if self.modalities not in (None, [], ["text"]) or self.audio:
            name = "audio" if self.audio else "modalities"
            raise _unsupported(name, f"{name}: this model writes text only")
        if self.functions or self.function_call not in (None, "none", "auto"):
            name = "functions" if self.functions else "function_call"
            raise _unsupported(name, f"{name} is not supported; use tools")


def _check_message(message: ChatMessage, where: str) -> None:
    if not isinstance(message.content, list):
        return
    for index, part in enumerate(message.content):
        here = f"{where}.content[{index}]"
        if part.type not in ("text", "refusal"):
            raise _unsupported(
                f"{here}.type", f'{here} is of type "{part.type}"; this model reads text only'
            )
        if getattr(part, part.type) is None:
            raise RequestError(f"{here} lacks its {part.type}", field=f"{here}.{part.type}")


def _unsupported(name: str, message: str) -> RequestError:
    return RequestError(message, field=name, code="unsupported_value")
