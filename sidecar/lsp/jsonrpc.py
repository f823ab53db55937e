"""JSON-RPC 2.0 as LSP uses it: telling messages apart, and building answers.

Source: jsonrpc.org/specification; error codes beyond it from LSP 3.18.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from lsprotocol.types import ErrorCodes, LSPErrorCodes
from msgspec import Struct

PARSE_ERROR = ErrorCodes.ParseError.value
INVALID_REQUEST = ErrorCodes.InvalidRequest.value
METHOD_NOT_FOUND = ErrorCodes.MethodNotFound.value
INVALID_PARAMS = ErrorCodes.InvalidParams.value
INTERNAL_ERROR = ErrorCodes.InternalError.value
NOT_INITIALIZED = ErrorCodes.ServerNotInitialized.value
REQUEST_CANCELLED = LSPErrorCodes.RequestCancelled.value
CONTENT_MODIFIED = LSPErrorCodes.ContentModified.value
REQUEST_FAILED = LSPErrorCodes.RequestFailed.value

Id = int | str
_NO_ID = object()
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class RpcError(Exception):
    """An answer with ``error``. `data` must be plain JSON and never holds a traceback."""

    def __init__(
        self, code: int, message: str, *, data: Any = None, request_id: Id | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.request_id = request_id


class Request(Struct, frozen=True):
    id: Id
    method: str
    params: Any


class Notification(Struct, frozen=True):
    method: str
    params: Any


class Response(Struct, frozen=True):
    """An answer to a request of ours. error: its message; None where there is a result."""

    id: Id | None
    result: Any = None
    error: str | None = None


def parse(body: bytes) -> Request | Notification | Response:
    """One message. Raises RpcError, with the request's id wherever one could be read."""
    message = _decode(body)
    if isinstance(message, list):
        raise RpcError(INVALID_REQUEST, "LSP has no batches: send each message in its own frame")
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, f"a message must be an object, got {_json_type(message)}")
    request_id = message.get("id", _NO_ID)
    answer_to = request_id if _is_id(request_id) else None
    if message.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'jsonrpc must be "2.0"', request_id=answer_to)
    if "method" not in message:
        if "result" in message or "error" in message:
            return Response(answer_to, message.get("result"), _error_of(message.get("error")))
        raise RpcError(INVALID_REQUEST, "method is missing", request_id=answer_to)
    method, params = message["method"], message.get("params")
    if not isinstance(method, str):
        raise RpcError(
            INVALID_REQUEST,
            f"method must be a string, got {_json_type(method)}",
            request_id=answer_to,
        )
    if request_id is _NO_ID:
        return Notification(method, params)
    if answer_to is None:
        raise RpcError(
            INVALID_REQUEST, f"id must be an integer or a string, got {_json_type(request_id)}"
        )
    return Request(answer_to, method, params)


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise RpcError(PARSE_ERROR, "the JSON is nested too deeply") from None
    except msgspec.DecodeError as error:
        if _LONE_SURROGATE.search(body):
            return _decode_lone_surrogates(body)
        raise RpcError(PARSE_ERROR, f"not JSON: {error}") from None


def _decode_lone_surrogates(body: bytes) -> Any:
    r"""JavaScript strings may hold half a surrogate pair (``\ud83d``), which no UTF-8 text can.

    An editor that sends one must not lose the whole change, so it becomes U+FFFD: one UTF-16
    unit too, which keeps every later position right.
    """
    try:
        return json.loads(body, object_pairs_hook=_mended_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, f"not JSON: {error}") from None


def _mended_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {_mended(name): _mended(value) for name, value in pairs}


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_mended(item) for item in value]
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _error_of(error: Any) -> str | None:
    if error is None:
        return None
    return str(error.get("message")) if isinstance(error, dict) else str(error)


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def result_message(request_id: Id, result: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def error_message(error: RpcError, request_id: Id | None = None) -> bytes:
    """An answer with `error`; without `request_id`, to the request that `error` names."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return msgspec.json.encode(
        {
            "jsonrpc": "2.0",
            "id": error.request_id if request_id is None else request_id,
            "error": body,
        }
    )


def notification_message(method: str, params: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params})


def request_message(request_id: Id, method: str, params: Any) -> bytes:
    return msgspec.json.encode(
        {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    )
