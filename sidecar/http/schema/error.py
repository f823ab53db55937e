"""OpenAI's error object."""

from __future__ import annotations

from msgspec import Struct


class ErrorDetail(Struct, frozen=True, kw_only=True):
    """message: what is wrong and what to do. type: whose fault (``invalid_request_error``,
    ``server_error``, ...). param: the field to correct. code: stable and machine-readable."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(Struct, frozen=True):
    error: ErrorDetail
