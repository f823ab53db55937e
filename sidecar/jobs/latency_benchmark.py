"""What a key costs in the doors: inline completions of a fake engine against a bare echo on the
same socket, interleaved, by several clients that type at once.

An echo is the two messages of a key, the change and the request; the answer is what was asked,
which is about as long as a suggestion.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from sidecar.lsp.framing import FrameReader, frame
from sidecar.lsp.jsonrpc import notification_message, request_message

ECHO = "bench/echo"
SUGGESTED = "x = f(a)"
"""What the fake engine answers, always."""
KEYS_A_SECOND = 40
CLIENTS = 3
_OTHER = "for name in names: yield"
_DOCUMENT = "".join(f"def function_{n}(first, second):\n    return {n}\n\n" for n in range(150))
_AT = 224
"""A blank line, and even: another line is typed first, so that what follows it is shown."""

KINDS = ("completion", "typed", "echo")


class LatencyRow(Struct, frozen=True, kw_only=True):
    """Round trips of one kind, in milliseconds, and how many times an echo's they take.

    kind: ``completion`` (the model is asked), ``typed`` (the key is the next one of what is
    shown) or ``echo``."""

    kind: str
    count: int
    p50_ms: float
    p99_ms: float
    over_echo_p50: float
    over_echo_p99: float


class LatencyFigures(Struct, frozen=True, kw_only=True):
    """Ratios of one run. unanswered: keys whose answer was null, because the next key came."""

    completion_over_echo_p50: float
    completion_over_echo_p99: float
    typed_over_echo_p50: float
    typed_over_echo_p99: float
    keys: int
    unanswered: int
    clients: int
    keys_a_second: int


@dataclass
class Samples:
    """Seconds of each round trip, by kind."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    unanswered: int = 0

    def rows(self) -> list[LatencyRow]:
        echo = self.seconds["echo"]
        return [
            LatencyRow(
                kind=kind,
                count=len(found),
                p50_ms=round(1e3 * percentile(found, 50), 4),
                p99_ms=round(1e3 * percentile(found, 99), 4),
                over_echo_p50=round(percentile(found, 50) / percentile(echo, 50), 3),
                over_echo_p99=round(percentile(found, 99) / percentile(echo, 99), 3),
            )
            for kind, found in self.seconds.items()
        ]


def percentile(values: Sequence[float], percent: int) -> float:
    """By interpolation; one value is all of its percentiles."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def latency_figures(samples: Samples, *, clients: int) -> LatencyFigures:
    """clients: how many typed at once."""
    rows = {row.kind: row for row in samples.rows()}
    return LatencyFigures(
        completion_over_echo_p50=rows["completion"].over_echo_p50,
        completion_over_echo_p99=rows["completion"].over_echo_p99,
        typed_over_echo_p50=rows["typed"].over_echo_p50,
        typed_over_echo_p99=rows["typed"].over_echo_p99,
        keys=rows["completion"].count + rows["typed"].count,
        unanswered=samples.unanswered,
        clients=clients,
        keys_a_second=KEYS_A_SECOND,
    )


async def type_at_once(
    path: str, seconds: float, *, clients: int = CLIENTS, keys_a_second: int = KEYS_A_SECOND
) -> Samples:
    """`clients` type for `seconds`, their keys spread over the interval."""
    samples, interval = Samples(), 1 / keys_a_second
    begin = asyncio.get_running_loop().time() + interval
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            typist = Typist(path, f"file:///bench/{number}.py", samples)
            starts = begin + number / clients * interval
            group.create_task(typist.run(starts, interval, max(round(seconds / interval), 1)))
    return samples


class Typist:
    """One client: a line as the engine suggests it, another one, and so on, key by key."""

    def __init__(self, path: str, uri: str, samples: Samples) -> None:
        self._path = path
        self._uri = uri
        self._samples = samples
        self._line, self._column, self._version = _AT, 0, 1
        self._ids = 0
        self._change: object = None

    async def run(self, start: float, interval: float, keys: int) -> None:
        reader, self._writer = await asyncio.open_unix_connection(self._path)
        self._frames = FrameReader(reader)
        try:
            await self._request("initialize", {"capabilities": {}})
            self._send(notification_message("initialized", {}))
            item = {"uri": self._uri, "languageId": "python", "version": 1, "text": _DOCUMENT}
            self._send(notification_message("textDocument/didOpen", {"textDocument": item}))
            for key in range(keys):
                # An echo half an interval behind each key.
                await _at(start + key * interval)
                await self._key()
                await _at(start + (key + 0.5) * interval)
                await self._echo()
        finally:
            self._writer.close()

    async def _key(self) -> None:
        text = SUGGESTED if self._line % 2 else _OTHER
        char = text[self._column] if self._column < len(text) else "\n"
        # The last key of the shown text leaves nothing of it.
        typed = text is SUGGESTED and self._column + 1 < len(text)
        change = {
            "textDocument": {"uri": self._uri, "version": self._version + 1},
            "contentChanges": [{"range": self._range(), "text": char}],
        }
        self._version += 1
        if char == "\n":
            self._line, self._column = self._line + 1, 0
        else:
            self._column += 1
        result, took = await self._round_trip(
            "textDocument/didChange", change, "textDocument/inlineCompletion", self._asked()
        )
        self._samples.seconds["typed" if typed else "completion"].append(took)
        self._samples.unanswered += result is None
        self._change = change

    async def _echo(self) -> None:
        """The same messages, of which nothing comes."""
        _, took = await self._round_trip(ECHO, self._change, ECHO, self._asked())
        self._samples.seconds["echo"].append(took)

    async def _round_trip(
        self, notification: str, change: object, request: str, asked: object
    ) -> tuple[object, float]:
        began = time.perf_counter()
        self._send(notification_message(notification, change))
        result = await self._request(request, asked)
        return result, time.perf_counter() - began

    def _asked(self) -> dict[str, object]:
        return self._place() | {"context": {"triggerKind": 2}}

    def _place(self) -> dict[str, object]:
        return {"textDocument": {"uri": self._uri}, "position": self._position()}

    def _position(self) -> dict[str, int]:
        return {"line": self._line, "character": self._column}

    def _range(self) -> dict[str, dict[str, int]]:
        return {"start": self._position(), "end": self._position()}

    def _send(self, body: bytes) -> None:
        self._writer.write(frame(body))

    async def _request(self, method: str, params: object) -> object:
        self._ids += 1
        self._send(request_message(self._ids, method, params))
        while True:
            body = await self._frames.next()
            if body is None:
                raise ConnectionError("the server closed the connection")
            message = msgspec.json.decode(body)
            if message.get("id") == self._ids:
                if "error" in message:
                    raise ConnectionError(f"{method}: {message['error']['message']}")
                return message["result"]


async def _at(when: float) -> None:
    await asyncio.sleep(max(0.0, when - asyncio.get_running_loop().time()))
