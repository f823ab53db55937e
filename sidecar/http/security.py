"""Who may talk to the HTTP door.

The door listens on loopback, where every web page that the user opens can reach it too. So the
Host header must name this machine (a page whose own name was re-pointed at 127.0.0.1 sends its
own), and a page of another origin is refused, preflight included; no CORS header is ever sent.
With an API key every path needs it, `/health` too: it tells paths and process ids.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from engine import RequestError
from sidecar.config import HttpConfig
from sidecar.http.errors import error_response

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@\s]+)(:\d{1,5})?", re.IGNORECASE)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_WILDCARDS = frozenset({"0.0.0.0", "::", ""})


class Security:
    """ASGI middleware that refuses before anything is routed or read."""

    def __init__(self, app: ASGIApp, config: HttpConfig) -> None:
        self._app = app
        self._key = config.api_key.encode() if config.api_key else None
        self._max_head = config.max_header_bytes
        # Behind a wildcard address the names of this machine are unknown; there the key, which
        # no foreign page has, is the protection.
        self._any_host = config.host in _WILDCARDS and self._key is not None
        own = f"[{config.host}]" if ":" in config.host else config.host
        self._hosts = _LOOPBACK | {own.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check_size(scope)
                self._check(Headers(scope=scope), scope["method"])
            except RequestError as refusal:
                await error_response(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers, method: str) -> None:
        host = headers.get("host", "")
        self._check_host(host)
        self._check_origin(headers, host)
        self._check_key(headers)
        if method == "POST":
            _check_content(headers)

    def _check_size(self, scope: Scope) -> None:
        """uvicorn's own bound is for a head that is still incomplete; one that comes in a single
        piece passes it."""
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self._max_head:
            raise RequestError(
                f"the request's head is larger than {self._max_head} bytes "
                "([http] max_header_bytes)",
                code="head_too_large",
            )

    def _check_host(self, host: str) -> None:
        name = _HOST.fullmatch(host)
        if name is None or (not self._any_host and name[1].lower() not in self._hosts):
            raise RequestError(
                f"the Host header must be a loopback name such as localhost or 127.0.0.1, "
                f"or the configured [http] host, not {host[:100]!r}",
                code="forbidden",
            )

    def _check_origin(self, headers: Headers, host: str) -> None:
        origin = headers.get("origin")
        foreign = origin is not None and origin.lower() != f"http://{host}".lower()
        # Browsers leave Origin out of a plain GET, but say where the page came from.
        if foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise RequestError(
                f"requests of web pages are refused (Origin: {str(origin)[:100]})",
                code="forbidden",
            )

    def _check_key(self, headers: Headers) -> None:
        if self._key is None:
            return
        given = _given_key(headers)
        if not hmac.compare_digest(given.encode("latin-1"), self._key):
            raise RequestError(
                "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
                if not given
                else "the API key is wrong",
                code="invalid_api_key",
            )


def _given_key(headers: Headers) -> str:
    """From any of the places that clients put it in; browsers ask for a name and a password."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            return (
                base64.b64decode(token.strip(), validate=True).decode("latin-1").partition(":")[2]
            )
    return headers.get("x-api-key", "")


def _check_content(headers: Headers) -> None:
    """JSON only: the types that a page may send without a preflight are refused. A request
    without the header is taken for JSON, for curl-like scripts."""
    media = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media != "application/json" and not re.fullmatch(r"application/[\w.-]+\+json", media):
        raise RequestError(
            f"Content-Type must be application/json, not {media[:100]!r} "
            "(curl: -H 'Content-Type: application/json')",
            code="unsupported_media_type",
        )
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise RequestError(
            f"Content-Encoding {encoding[:100]!r} is not supported; send plain JSON",
            code="unsupported_media_type",
        )
