"""A raw JSON-RPC client with LSP framing, for tests. It checks what every server must hold to:
well-formed frames, and no answer to a request that is not open."""

import asyncio
import contextlib
import itertools
import json
from typing import Any


class RpcFailure(Exception):
    """An answer with ``error``."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


class RpcClient:
    """`request` returns a future of the result; `orphans` are errors with id null; notifications
    of the server are kept in `notifications`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.notifications: list[tuple[str, Any]] = []
        self.orphans: list[dict[str, Any]] = []
        self._ids = itertools.count(1)
        self._open: dict[int | str, asyncio.Future[Any]] = {}
        self._arrived = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, path: str) -> "RpcClient":
        return cls(*await asyncio.open_unix_connection(path, limit=1 << 26))

    def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)

    def send_body(self, body: bytes) -> None:
        self.send_bytes(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    def send(self, message: Any) -> None:
        self.send_body(json.dumps(message).encode())

    def notify(self, method: str, params: Any = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params or {}})

    def request(self, method: str, params: Any = None, *, request_id: Any = None) -> Any:
        """A future; awaiting it raises RpcFailure, or ConnectionError when the server left."""
        if request_id is None:
            request_id = next(self._ids)
        answer = self.expect(request_id)
        answer.request_id = request_id
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}})
        return answer

    def expect(self, request_id: int | str) -> Any:
        """A future of the answer to a request that is sent by hand."""
        answer = _Answer()
        self._open[request_id] = answer
        return answer

    def cancel(self, answer: Any) -> None:
        self.notify("$/cancelRequest", {"id": answer.request_id})

    async def initialize(self, *encodings: str, **params: Any) -> dict[str, Any]:
        """The handshake. encodings: as offered, in order; none leaves them out."""
        general = {"general": {"positionEncodings": list(encodings)}} if encodings else {}
        result: dict[str, Any] = await self.request(
            "initialize", {"processId": None, "rootUri": None, "capabilities": general, **params}
        )
        self.notify("initialized")
        return result

    def open(self, uri: str, text: str, *, version: int = 1, language: str = "python") -> None:
        item = {"uri": uri, "languageId": language, "version": version, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})

    def change(self, uri: str, version: int, text: str, *at: int) -> None:
        """at: start line and character, end line and character; none replaces everything."""
        change: dict[str, Any] = {"text": text}
        if at:
            change["range"] = {
                "start": {"line": at[0], "character": at[1]},
                "end": {"line": at[-2], "character": at[-1]},
            }
        self.notify(
            "textDocument/didChange",
            {"textDocument": {"uri": uri, "version": version}, "contentChanges": [change]},
        )

    def inline(self, uri: str, line: int, character: int, **context: Any) -> Any:
        """A future of the inline completion's result."""
        return self.request(
            "textDocument/inlineCompletion",
            {
                "textDocument": {"uri": uri},
                "position": {"line": line, "character": character},
                "context": {"triggerKind": 2, **context},
            },
        )

    async def orphan(self) -> dict[str, Any]:
        """The next error with id null."""
        while not self.orphans:
            self._arrived.clear()
            await self._arrived.wait()
        return self.orphans.pop(0)

    def stop_reading(self) -> None:
        """Be a client that hangs: what the server sends stays in the socket's buffers."""
        self._reading.cancel()
        transport: Any = self.writer.transport
        transport.pause_reading()

    async def closed(self) -> None:
        """Return once the server has closed the connection."""
        await asyncio.wait({self._reading})

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def _read(self) -> None:
        try:
            while body := await self._frame():
                self._receive(json.loads(body))
        except OSError:
            pass
        finally:
            self._arrived.set()
            for answer in self._open.values():
                if not answer.done():
                    answer.set_exception(ConnectionError("the server closed the connection"))

    async def _frame(self) -> bytes:
        try:
            header = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as end:
            if end.partial:
                raise AssertionError(f"the server ended inside a frame: {end.partial!r}") from end
            return b""
        name, _, length = header.strip().partition(b": ")
        assert name == b"Content-Length"
        return await self.reader.readexactly(int(length))

    def _receive(self, message: dict[str, Any]) -> None:
        assert message["jsonrpc"] == "2.0"
        if "method" in message:
            self.notifications.append((message["method"], message["params"]))
        elif message["id"] is None:
            self.orphans.append(message["error"])
        else:
            answer = self._open.pop(message["id"])
            if "error" in message:
                assert set(message) == {"jsonrpc", "id", "error"}
                answer.set_exception(RpcFailure(message["error"]))
            else:
                assert set(message) == {"jsonrpc", "id", "result"}
                answer.set_result(message["result"])
        self._arrived.set()


class _Answer(asyncio.Future[Any]):
    """request_id: what `RpcClient.cancel` needs. An error nobody waits for is no warning."""

    request_id: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.add_done_callback(lambda done: done.cancelled() or done.exception())
