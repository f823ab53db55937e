"""What `POST /v1/completions` takes, with OpenAI's names."""

from __future__ import annotations

from msgspec import Struct

from engine import RequestError
from sidecar.http.schema.bounds import (
    MAX_CHOICES,
    AtLeastOne,
    Choices,
    EditorStops,
    Logprobs,
    MinP,
    Penalty,
    RepetitionPenalty,
    StopText,
    Temperature,
    TopK,
    TopP,
)
from sidecar.http.schema.chat_request import StreamOptions

DEFAULT_TOKENS = 16
"""OpenAI's."""


class CompletionsRequest(Struct, frozen=True, kw_only=True):
    """prompt: text, token ids, or several of either. Control tokens that it spells count as such,
    so a prompt may be laid out for fill-in-the-middle by the client; or `suffix` is the text behind
    the gap. `draft`, `explain`, `ignore_eos`, `top_k`, `min_p`, `repetition_penalty` and
    `max_output_tokens` (another name of `max_tokens`) are extensions."""

    prompt: str | list[str | int | list[int]]
    model: str | None = None
    suffix: str | None = None
    max_tokens: AtLeastOne | None = None
    max_output_tokens: AtLeastOne | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: StopText | EditorStops | None = None
    n: Choices | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: Logprobs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    draft: bool | None = None
    explain: bool | None = None
    ignore_eos: bool | None = None
    prompt_cache_key: str | None = None

    def __post_init__(self) -> None:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise _unsupported("best_of", "best_of must be n: no choice is thrown away")
        if self.echo and self.logprobs is not None:
            raise _unsupported("echo", "echo has no log-probabilities: leave out logprobs")
        if self.suffix is not None and not isinstance(self.prompt, str):
            raise RequestError("suffix needs a prompt that is one text", field="suffix")
        if len(self.prompts) * (self.n or 1) > MAX_CHOICES:
            raise RequestError(
                f"prompt: {len(self.prompts)} prompts of {self.n or 1} choices are more than "
                f"{MAX_CHOICES} replies",
                field="prompt",
            )
        if not all(self.prompts):
            raise RequestError("prompt is empty", field="prompt")

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or more of them. Raises RequestError for a mixture."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [token for token in self.prompt if isinstance(token, int)]
        if ids and len(ids) == len(self.prompt):
            return [ids]
        whole = [one for one in self.prompt if not isinstance(one, int)]
        if len(whole) != len(self.prompt) or not whole:
            raise RequestError(
                "prompt must be a text, a list of texts, token ids or lists of them",
                field="prompt",
            )
        return whole


def _unsupported(name: str, message: str) -> RequestError:
    return RequestError(message, field=name, code="unsupported_value")
