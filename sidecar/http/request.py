"""The incoming half of an exchange: the body, and whether the client is still there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from engine import RequestError

T = TypeVar("T")

# msgspec says where in a document it stopped: "Expected `int`, got `str` - at `$.messages[0].x`".
_WHERE = re.compile(r"(?s)(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?")
_MISSING = re.compile(r"missing required field `(.*)`")


async def read_json(request: Request, shape: type[T], *, limit: int, seconds: float) -> T:
    """Read a JSON body of at most `limit` bytes that arrives within `seconds`, as a `shape`.

    Raises RequestError (the field it is about, or none for the body as a whole), and
    ClientDisconnect when the client leaves first.
    """
    try:
        async with asyncio.timeout(seconds):
            body = await _read(request, limit)
    except TimeoutError:
        raise RequestError(
            f"the request body did not arrive within {seconds:g} seconds", code="request_timeout"
        ) from None
    if not body:
        raise RequestError("the request body is empty; send a JSON object", code="invalid_json")
    return decode(body, shape)


async def _read(request: Request, limit: int) -> bytearray:
    declared = request.headers.get("content-length", "")
    body = bytearray()
    too_large = declared.isdecimal() and int(declared[:20]) > limit
    while not too_large:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        too_large = len(body) > limit
        if not message.get("more_body", False):
            break
    if too_large:
        raise RequestError(
            f"the request body is larger than {limit} bytes ([http] max_body_bytes)",
            code="body_too_large",
        )
    return body


def decode(body: bytes | bytearray, shape: type[T]) -> T:
    """`body` as a `shape`, or a RequestError that names the field."""
    try:
        # A field that is skipped is not looked into, so bad UTF-8 has to be found here.
        body.decode()
        try:
            return msgspec.json.decode(body, type=shape)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
            # 1.0 is an integer in JSON Schema, and to clients that have one kind of numbers.
            return msgspec.convert(_with_integers(msgspec.json.decode(body)), shape)
    except UnicodeDecodeError as error:
        message = f"the request body is not UTF-8: byte {error.start}"
    except RecursionError:
        message = "the request body is nested too deeply"
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except msgspec.DecodeError as error:
        message = f"the request body is not JSON: {error}"
    raise RequestError(message, code="invalid_json")


def _with_integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_integers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_integers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _wrong_field(text: str) -> RequestError:
    match = _WHERE.fullmatch(text)
    assert match is not None, text
    reason, where = match[1], match[2] or ""
    if missing := _MISSING.search(reason):
        where = f"{where}.{missing[1]}" if where else missing[1]
        return RequestError(f"{where} is missing", field=where)
    reason = reason[:1].lower() + reason[1:]
    return RequestError(f"{where or 'the request body'}: {reason}", field=where or None)


async def while_connected(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Run `work` for as long as the client is there; its departure cancels it.

    `receive` must have yielded the whole body already.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
