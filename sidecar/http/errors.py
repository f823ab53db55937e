"""The one place where errors become HTTP answers."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine import EngineError, NotReady, PillionError, RequestError
from sidecar.http.schema.error import ErrorBody, ErrorDetail

# Codes that do not have the status of their class (400 for the caller's fault, 500 for ours).
_STATUS = {
    "invalid_api_key": 401,
    "forbidden": 403,
    "model_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "overloaded": 429,
    "head_too_large": 431,
    "not_ready": 503,
    "cancelled": 503,
}
_TYPE = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
# Bounds what is echoed of a value that the client sent.
_MAX_MESSAGE = 2000


def status_of(error: PillionError) -> int:
    return _STATUS.get(error.code, 400 if isinstance(error, RequestError) else 500)


def error_body(error: PillionError) -> ErrorBody:
    """The error in OpenAI's shape, for an answer or for an event of a stream."""
    status = status_of(error)
    fallback = "invalid_request_error" if status < 500 else "server_error"
    return ErrorBody(
        ErrorDetail(
            message=error.message[:_MAX_MESSAGE],
            type=_TYPE.get(status, fallback),
            param=error.field if isinstance(error, RequestError) else None,
            code=error.code,
        )
    )


def json_response(content: object, status: int = 200, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(msgspec.json.encode(content), status, named, "application/json")


def error_response(error: PillionError) -> Response:
    """The answer that an error stands for, with the headers its status asks for."""
    status = status_of(error)
    headers = {}
    if status == 401:
        headers["www_authenticate"] = "Bearer"
    if status == 408:
        # The rest of that body may still come; it must not be taken for the next request.
        headers["connection"] = "close"
    if status == 429 or error.code == NotReady.code:
        headers["retry_after"] = "1"
    response = json_response(error_body(error), status, **headers)
    if status == 401:
        # In a line of its own, or browsers do not ask. It is how a person gets to the dashboard.
        response.headers.append("www-authenticate", 'Basic realm="pillion", charset="UTF-8"')
    return response


async def on_pillion_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, PillionError)
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """What the router raises: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        refusal = RequestError(
            f"{request.method[:20]} is not allowed on {path}; use {allowed}",
            code="method_not_allowed",
        )
        response = error_response(refusal)
        response.headers["allow"] = allowed
        return response
    endpoints = ", ".join(
        f"{method} {route.path}"
        for route in request.app.routes
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
    )
    return error_response(
        RequestError(f"there is no {path}; the endpoints are {endpoints}", code="not_found")
    )


async def on_bug(_request: Request, error: Exception) -> Response:
    """A fault of ours. The server logs the traceback; the client learns no more than its kind."""
    return error_response(
        EngineError(f"internal error ({type(error).__name__}); the daemon's log says more")
    )
