"""HTTP to the upstream: one client, streams of events, and errors by what they mean for a retry."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
from msgspec import Struct

from engine import ContextLengthExceeded, Overloaded, PillionError, RequestError

_MOST_ERROR = 1 << 16
_MOST_LINE = 1 << 24


class Patience(Struct, frozen=True, kw_only=True):
    """In seconds. connect: to be let in. silence: until the next event of a reply, its first
    included. pause: before the one retry. again: between looks at an upstream that is down. No
    user needs other values; tests shorten them."""

    connect: float = 5.0
    silence: float = 180.0
    pause: float = 0.5
    longest_pause: float = 5.0
    again: float = 5.0


class Unavailable(PillionError):
    """The upstream did not answer, or not in a way that can be read. down: it takes no requests at
    all. again: whether asking once more may help, after `pause` seconds if it said so."""

    code = "upstream_unavailable"

    def __init__(
        self,
        message: str,
        *,
        down: bool = True,
        again: bool = False,
        pause: float | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.down = down
        self.again = again
        self.pause = pause


class Silent(Unavailable):
    """It said nothing for as long as it may: stuck, or busy with the requests of others, which
    another one would make worse."""

    def __init__(self) -> None:
        super().__init__("it did not say anything in time", down=False)


class Refused(RequestError):
    """The upstream answered that it will not do this. status: of HTTP, if it came with one."""

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        code: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, field=field, code=code)
        self.status = status


class Connection:
    """To ``http://host/v1``. Use it from one event loop; `close` it."""

    def __init__(self, url: str, key: str | None, patience: Patience) -> None:
        self.url = url.rstrip("/")
        self.root = self.url.removesuffix("/v1")
        self._patience = patience
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = httpx2.Timeout(patience.silence, connect=patience.connect, pool=None)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=16)
        # Reading the system's certificates takes longer than a reply.
        verify = self.url.startswith("https:")
        # What the environment says of proxies is for the wide world, not for a named machine.
        self._http = httpx2.AsyncClient(
            headers=headers, timeout=timeout, limits=limits, verify=verify, trust_env=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, url: str) -> Any:
        """A JSON document. Raises Unavailable, Refused."""
        with _failures():
            response = await self._http.get(url, timeout=self._patience.connect)
            if response.status_code != 200:
                raise _error(response.status_code, response.content, response.headers)
            return _json(response.content)

    @contextlib.asynccontextmanager
    async def events(self, url: str, body: Any) -> AsyncIterator[AsyncIterator[Any]]:
        """The JSON of each event that answers `body`. Leaving closes the connection, which is how
        an upstream learns that nobody wants the rest. Raises Unavailable, Silent, Refused."""
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        content = msgspec.json.encode(body)
        with _failures(), _silence():
            async with self._http.stream("POST", url, content=content, headers=headers) as answer:
                if answer.status_code != 200:
                    raise _error(
                        answer.status_code, await _start_of(answer, _MOST_ERROR), answer.headers
                    )
                kind = answer.headers.get("content-type", "")
                yield _whole(answer) if kind.startswith("application/json") else _events(answer)


@contextlib.contextmanager
def _failures() -> Any:
    """What goes wrong on the way, in our words."""
    try:
        yield
    except httpx2.TimeoutException as error:
        kind = "let us in" if isinstance(error, httpx2.ConnectTimeout) else "say anything"
        raise Unavailable(f"it did not {kind} in time") from error
    except httpx2.ConnectError as error:
        raise Unavailable(f"no connection: {error}", again=True) from error
    except (httpx2.NetworkError, httpx2.RemoteProtocolError) as error:
        raise Unavailable(f"it broke off: {error}", again=True) from error
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _silence() -> Any:
    try:
        yield
    except httpx2.ReadTimeout as error:
        raise Silent from error


async def _start_of(answer: httpx2.Response, most: int) -> bytes:
    data = bytearray()
    async for chunk in answer.aiter_bytes():
        data += chunk
        if len(data) > most:
            break
    return bytes(data[:most])


async def _whole(answer: httpx2.Response) -> AsyncIterator[Any]:
    """Of a server that does not stream this: its one event."""
    data = await _start_of(answer, _MOST_LINE + 1)
    if len(data) > _MOST_LINE:
        raise Unavailable(f"its reply is longer than {_MOST_LINE} bytes", down=False)
    yield _json(data)


async def _events(answer: httpx2.Response) -> AsyncIterator[Any]:
    rest = b""
    async for chunk in answer.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MOST_LINE:
            raise Unavailable("one event is too long", down=False)
        for line in lines:
            name, _, value = line.rstrip(b"\r").partition(b":")
            if name != b"data":
                continue
            if (value := value.strip()) == b"[DONE]":
                return
            yield _json(value)


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unavailable(f"it answers what is not JSON: {error}", down=False) from None


def error_in(event: Any) -> str | None:
    """What an event says went wrong, if it does."""
    error = event.get("error") if isinstance(event, dict) else None
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:2000]


def _error(status: int, body: bytes, headers: httpx2.Headers) -> PillionError:
    """Also of servers that do not answer as OpenAI does."""
    document: Any = None
    with contextlib.suppress(Unavailable):
        document = _json(body)
    detail = document.get("error", document) if isinstance(document, dict) else document
    fields = detail if isinstance(detail, dict) else {}
    said = fields.get("message") or fields.get("detail") or body[:300].decode(errors="replace")
    message = f"the upstream answers {status}: {str(said)[:2000]}"
    if status == 429:
        return Unavailable(
            message, down=False, again=True, pause=_pause(headers), code=Overloaded.code
        )
    if status >= 500 and status != 501:
        down, again = status in (502, 503), status in (502, 503, 504)
        return Unavailable(message, down=down, again=again, pause=_pause(headers))
    if status in (401, 403):
        return Unavailable(f"{message}; [engine] upstream_key names the variable with its key")
    words = f"{fields.get('code')} {fields.get('type')} {said}".lower()
    full = status == 413 or ("context" in words and ("length" in words or "exceed" in words))
    code = ContextLengthExceeded.code if full else None
    param = fields.get("param") if isinstance(fields.get("param"), str) else None
    return Refused(message, field=param, code=code, status=status)


def _pause(headers: httpx2.Headers) -> float | None:
    try:
        return max(float(headers["retry-after"]), 0.0)
    except (KeyError, ValueError):
        return None
