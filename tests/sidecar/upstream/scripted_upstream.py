"""An upstream that does as a test tells it: it streams, dies, hangs, refuses, or talks nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any


class Call:
    """One request that came in. `gone` is set when its client left."""

    def __init__(self, path: str, body: Any, headers: dict[str, str]) -> None:
        self.path = path
        self.body = body
        self.headers = headers
        self.gone = asyncio.Event()


class Answer:
    """What can be done with a connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def head(self, status: int, kind: str, *more: str) -> None:
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", "connection: close", *more]
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def json(self, document: Any, status: int = 200, *more: str) -> None:
        await self.head(status, "application/json", *more)
        await self.raw(json.dumps(document).encode())

    async def events(self, *events: Any, done: bool = True) -> None:
        """A whole stream, its head included."""
        await self.head(200, "text/event-stream")
        for event in events:
            await self.event(event)
        if done:
            await self.raw(b"data: [DONE]\n\n")

    async def event(self, event: Any) -> None:
        await self.raw(b"data: " + json.dumps(event).encode() + b"\n\n")

    def die(self) -> None:
        """As a process that is killed."""
        self._writer.transport.abort()


Script = Callable[[Call, Answer], Awaitable[None]]


class ScriptedUpstream:
    """`url` is what `[engine] upstream` names. script: answers everything that is posted. models:
    what it lists."""

    def __init__(self, script: Script, models: Any = None, props: Any = None) -> None:
        self.script = script
        self.calls: list[Call] = []
        self.port = 0
        self.models: Any = models or {"data": [{"id": "big", "max_model_len": 8192}]}
        self._props = props
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Nobody is let in any more, and everybody is thrown out."""
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._open.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        _, path, _ = head[0].split(" ")
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        answer = Answer(writer)
        if path == "/v1/models":
            await answer.json(self.models)
        elif path == "/props":
            await answer.json(self._props or {}, 200 if self._props else 404)
        else:
            call = Call(path, json.loads(body), headers)
            self.calls.append(call)
            answering = asyncio.create_task(self._answer(call, answer))
            watching = asyncio.create_task(reader.read())
            await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                call.gone.set()
            answering.cancel()
            watching.cancel()
            await asyncio.gather(answering, watching, return_exceptions=True)

    async def _answer(self, call: Call, answer: Answer) -> None:
        with contextlib.suppress(ConnectionError):
            await self.script(call, answer)


@contextlib.asynccontextmanager
async def upstream(
    script: Script, models: Any = None, props: Any = None
) -> AsyncIterator[ScriptedUpstream]:
    served = ScriptedUpstream(script, models, props)
    await served.start()
    yield served
    await served.stop()


def delta(reason: str | None = None, **content: Any) -> dict[str, Any]:
    """An event of a chat stream."""
    return {"choices": [{"index": 0, "delta": content, "finish_reason": reason}]}


def text(content: str, reason: str | None = None) -> dict[str, Any]:
    """An event of a completion."""
    return {"choices": [{"index": 0, "text": content, "finish_reason": reason}]}


def usage(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, **details}
    return {"choices": [], "usage": counts}
