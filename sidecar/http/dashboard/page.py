"""The page's files: shipped with the package, read once, sent with a policy that lets the browser
load nothing else."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # Asked again each time, so that a page is never older than its daemon.
    "cache-control": "no-cache",
}


@functools.cache
def _assets() -> dict[str, bytes]:
    folder = resources.files(__package__) / "assets"
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}


class Page:
    """The endpoint of ``/`` and of ``/dashboard/NAME``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if request.method not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        name = request.path_params.get("name", "index.html")
        body = _assets().get(name)
        kind = _TYPES.get(name.rpartition(".")[2])
        if body is None or kind is None:
            raise HTTPException(404)
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = {**_HEADERS, "content-type": kind, "etag": tag}
        if request.headers.get("if-none-match") == tag:
            response = Response(status_code=304, headers=headers)
        else:
            response = Response(body, headers=headers)
        await response(scope, receive, send)
