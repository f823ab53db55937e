"""Clients that behave badly, all at once, and what the daemon owes each of them.

Every request has exactly one ending, whoever left in between; nothing of a request stays behind;
memory stays flat; and a keystroke waits for at most one turn of somebody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from engine import Event, Failed, Finished, GenerateRequest, Priority
from sidecar.runtime_dir import Address

WAIT_ROUNDS = 2
"""One decode round and one prefill chunk."""
FLAT = 0.1
"""Memory is flat when it grew by less than this share..."""
FILLED_SECONDS = 120.0
"""... in a run of at least this length: in a shorter one caches are still being filled."""
# Of the run, until memory is compared with what it is at the end.
_WARMED_UP = 0.25
_TOOL = {
    "type": "function",
    "function": {
        "name": "read",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}


class Chaos(Struct, frozen=True, kw_only=True):
    """What happened. requests: that reached the engine; endings: of them, by kind.
    not_ended_once: requests with no ending, or with several. answers: what clients saw, by kind;
    ``garbage`` was turned away, ``garbage 200`` was not.
    broken_streams: that were read to the end and had none. leaked_sequences: open in the engine
    when every client was gone. rss_growth_share: of the process, since it was warm.
    max_wait_rounds_interactive: rounds, prompt chunks and idle work of requests that are no
    keystrokes while one was open, from being queued until its end; also of those that send no
    events. Keystrokes take turns among themselves."""

    seconds: float
    requests: int
    endings: dict[str, int]
    not_ended_once: int
    answers: dict[str, int]
    broken_streams: int
    leaked_sequences: int
    rss_growth_share: float
    max_wait_rounds_interactive: int

    @property
    def problems(self) -> list[str]:
        """What should not have happened."""
        found = []
        if self.not_ended_once:
            found.append(f"{self.not_ended_once} requests did not end exactly once")
        if self.broken_streams:
            found.append(f"{self.broken_streams} streams stopped without an ending")
        for answer, count in sorted(self.answers.items()):
            # A daemon that has too much to do may say so.
            if len(answer) == 3 and answer.startswith("5") and answer != "503":
                found.append(f"{count} requests were answered with {answer}")
            elif answer.startswith("garbage "):
                found.append(f"garbage was answered with {answer.split()[1]}, {count} times")
        if self.leaked_sequences:
            found.append(f"{self.leaked_sequences} sequences are still open")
        if self.rss_growth_share > FLAT and self.seconds >= FILLED_SECONDS:
            found.append(f"memory grew by {self.rss_growth_share:.0%}")
        if self.max_wait_rounds_interactive > WAIT_ROUNDS:
            found.append(
                f"a keystroke waited for {self.max_wait_rounds_interactive} turns of others"
            )
        return found


class Ledger:
    """What goes into the engine and what comes out. Called from several threads."""

    def __init__(self) -> None:
        # Again by the same thread, where a request is refused while it is posted.
        self._lock = threading.RLock()
        self._endings: dict[str, list[str]] = {}
        # Open keystrokes, and the turns that others had meanwhile.
        self._waiting: dict[str, int] = {}
        self._interactive: set[str] = set()
        self.max_wait = 0

    @contextlib.contextmanager
    def posted(self, request: GenerateRequest) -> Iterator[None]:
        """A request goes in, and no turn ends meanwhile: one that was over before it was in the
        queue is none that it waited for."""
        with self._lock:
            self._endings[request.id] = []
            if request.priority is Priority.INTERACTIVE:
                self._interactive.add(request.id)
                self._waiting[request.id] = 0
            yield

    def emitted(self, event: Event) -> None:
        """An event comes out."""
        with self._lock:
            if isinstance(event, Finished | Failed):
                self._waiting.pop(event.id, None)
                kind = event.finish_reason if isinstance(event, Finished) else event.code
                self._endings.setdefault(event.id, []).append(kind)

    def turned(self, id: str) -> None:
        """A turn of this request is over, or one for nobody."""
        with self._lock:
            if id not in self._interactive:
                for key in self._waiting:
                    self._waiting[key] += 1
                self.max_wait = max(self.max_wait, *self._waiting.values(), 0)

    @property
    def requests(self) -> int:
        return len(self._endings)

    def endings(self) -> dict[str, int]:
        """How requests ended, by kind."""
        return dict(Counter(kind for kinds in self._endings.values() for kind in kinds))

    def not_ended_once(self) -> int:
        """Requests with no ending, or with several."""
        return sum(len(kinds) != 1 for kinds in self._endings.values())


class Clients:
    """What the clients of one run do. seed: of what they choose."""

    def __init__(self, address: Address, seed: int) -> None:
        self._port = urlsplit(address.url).port
        self._key = address.api_key or ""
        self._random = random.Random(seed)
        self._number = 0
        self.answers: Counter[str] = Counter()
        self.broken = 0

    async def run(self, streams: int, seconds: float) -> None:
        """`streams` clients, each with one thing after the other, until the time is over."""
        until = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < until:
                await self._something()

        await asyncio.gather(*(client() for _ in range(streams)))

    async def _something(self) -> None:
        kinds: list[Callable[[], Awaitable[str]]] = [
            *[self._read] * 4,
            *[self._leave] * 4,
            *[self._type] * 4,
            *[self._dawdle] * 2,
            self._leave_at_once,
            self._garbage,
        ]
        kind = self._random.choice(kinds)
        self.answers[await kind()] += 1

    async def _read(self) -> str:
        """Read an answer of some door to its end."""
        path, body = self._request()
        async with self._sent(path, body) as (reader, _):
            answer = await reader.read()
        return self._judge(path, body, answer)

    async def _leave(self) -> str:
        """Hang up somewhere in the stream."""
        path, body = self._request()
        async with self._sent(path, body | {"stream": True}) as (reader, _):
            for _ in range(self._random.randrange(1, 12)):
                if not await reader.readline():
                    break
        return "left"

    async def _leave_at_once(self) -> str:
        async with self._sent(*self._request()):
            await asyncio.sleep(self._random.random() * 0.05)
        return "left"

    async def _dawdle(self) -> str:
        """Read slowly."""
        path, body = self._request()
        body |= {"stream": True}
        answer = b""
        async with self._sent(path, body) as (reader, _):
            while part := await reader.read(256):
                answer += part
                await asyncio.sleep(self._random.random() * 0.05)
        return self._judge(path, body, answer)

    async def _type(self) -> str:
        """A keystroke; often the next one comes before the answer."""
        body = {
            "input_prefix": f"def f{self._next()}(a):\n    return ",
            "input_suffix": "\n",
            "n_predict": 8,
        }
        async with self._sent("/infill", body) as (reader, _):
            if self._random.random() < 0.5:
                await asyncio.sleep(self._random.random() * 0.1)
                return "typed on"
            answer = await reader.read()
        return self._judge("/infill", body, answer)

    async def _garbage(self) -> str:
        """No JSON, no HTTP, or nothing that is allowed."""
        bad: Any = self._random.choice(
            [b'{"messages": [', b"\xff\x00" * 50, b'{"messages": "no"}', b"[" * 5000, b"{}"]
        )
        if self._random.random() < 0.3:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(self._random.randbytes(200))
        else:
            reader, writer = await self._open("/v1/chat/completions", bad)
        answer = b""
        try:
            with contextlib.suppress(OSError):
                writer.write_eof()
                answer = await reader.read()
        finally:
            await _close(writer)
        turned_away = not answer or _status(answer).startswith("4")
        return "garbage" if turned_away else f"garbage {_status(answer)}"

    def _request(self) -> tuple[str, dict[str, Any]]:
        """Some door, and something to ask it."""
        text = f"{self._next()}: " + "def add(a, b): return a + b\n" * self._random.randrange(1, 40)
        common = {"stream": self._random.random() < 0.5, "seed": self._random.randrange(9)}
        tokens = self._random.randrange(1, 48)
        messages = [{"role": "user", "content": text}]
        return self._random.choice(
            [
                (
                    "/v1/chat/completions",
                    common
                    | {"messages": messages, "max_tokens": tokens, "tools": [_TOOL]}
                    | {"n": self._random.choice([1, 1, 2])},
                ),
                ("/v1/completions", common | {"prompt": text, "max_tokens": tokens}),
                ("/v1/messages", common | {"messages": messages, "max_tokens": tokens}),
                ("/v1/responses", common | {"input": text, "max_output_tokens": tokens}),
            ]
        )

    def _next(self) -> int:
        self._number += 1
        return self._number

    @contextlib.asynccontextmanager
    async def _sent(self, path: str, body: dict[str, Any]) -> Any:
        reader, writer = await self._open(path, msgspec.json.encode(body))
        try:
            yield reader, writer
        finally:
            await _close(writer)

    async def _open(
        self, path: str, body: bytes
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # A small buffer: a client that does not read is felt soon.
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2048)
        head = [
            f"POST {path} HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"x-api-key: {self._key}",
            "Connection: close",
        ]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        return reader, writer

    def _judge(self, path: str, body: dict[str, Any], answer: bytes) -> str:
        """What a client that read everything got."""
        status = _status(answer)
        if status != "200" or not body.get("stream"):
            return status or "nothing"
        endings = {
            "/v1/messages": (b"event: message_stop", b"event: error"),
            "/v1/responses": (
                b"event: response.completed",
                b"event: response.incomplete",
                b"event: response.failed",
            ),
        }.get(path, (b"data: [DONE]", b'data: {"error"'))
        if sum(answer.count(ending) for ending in endings) != 1:
            self.broken += 1
        return "stream"


def _status(answer: bytes) -> str:
    return answer[9:12].decode(errors="replace")


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def chaos(
    address: Address,
    ledger: Ledger,
    open_sequences: Callable[[], int],
    resident_bytes: Callable[[], int],
    *,
    streams: int = 16,
    seconds: float = 600.0,
    seed: int = 0,
) -> Chaos:
    """Run the clients against the daemon at `address`, whose engine tells `ledger` everything.

    open_sequences: in the engine now. resident_bytes: of the daemon's process.
    """
    began = time.monotonic()
    clients = Clients(address, seed)
    await clients.run(streams, seconds * _WARMED_UP)
    warm = resident_bytes()
    await clients.run(streams, seconds * (1 - _WARMED_UP))
    await _until(lambda: not open_sequences())
    return Chaos(
        seconds=round(time.monotonic() - began, 1),
        requests=ledger.requests,
        endings=ledger.endings(),
        not_ended_once=ledger.not_ended_once(),
        answers=dict(clients.answers),
        broken_streams=clients.broken,
        leaked_sequences=open_sequences(),
        rss_growth_share=round(resident_bytes() / warm - 1, 4),
        max_wait_rounds_interactive=ledger.max_wait,
    )


async def _until(quiet: Callable[[], bool]) -> None:
    """Wait for what is due within a round, with much patience."""
    for _ in range(600):
        if quiet():
            return
        await asyncio.sleep(0.05)
