"""Errors, sorted by whose fault they are. Doors catch them once and translate."""

from __future__ import annotations


class PillionError(Exception):
    """Base of every error that Pillion raises on purpose.

    `code` is a stable, machine-readable name such as ``context_length_exceeded``.
    """

    code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class RequestError(PillionError):
    """The caller's fault: a 4xx or a -326xx. `field` names what to correct."""

    code = "invalid_request"

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.field = field


class ContextLengthExceeded(RequestError):
    """The prompt (plus what was asked for) does not fit the model's context."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, context: int, *, field: str = "messages") -> None:
        super().__init__(
            f"This model's maximum context length is {context} tokens. However, your prompt "
            f"has {prompt_tokens} tokens. Shorten {field} or serve a larger --context.",
            field=field,
        )
        self.prompt_tokens = prompt_tokens
        self.context = context


class Overloaded(RequestError):
    """The queue is full (429). Nothing was started; the caller may try again."""

    code = "overloaded"


class ModelError(PillionError):
    """The checkpoint's fault: names the file and the key."""

    code = "model_error"


class EngineError(PillionError):
    """Our fault, or the machine's. The daemon exits 3 after an engine death."""

    code = "engine_error"


class NotReady(EngineError):
    """The model is still loading, or failed to load; the message says which."""

    code = "not_ready"
