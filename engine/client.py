"""The asyncio side of the engine: what every door talks to.

An `EngineClient` owns no model. It posts frozen messages to a `Backend` (the engine thread, or a
shipped fake) and hands the events that come back to whoever asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import msgspec

from engine.backlog import Backlog
from engine.errors import EngineError, NotReady, RequestError
from engine.messages import (
    ContextFile,
    EngineStatus,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Grammar,
    Priority,
    RenderedPrompt,
    ReplyFormat,
)
from engine.prefix_cache.messages import CACHE_ACTIONS, CacheReport, FileContent
from engine.reply_pieces import PieceReader
from engine.worker import Worker

Message = Mapping[str, Any]

_LONG = 1 << 16
"""Characters (or token ids) that a tokenizer takes tens of milliseconds for."""


class Detokenizer(Protocol):
    """Turns one sequence's ids into text, a whole character at a time."""

    def add(self, token: int) -> str:
        """Feed one id; return the text that is now certain (maybe empty)."""

    def finish(self) -> str:
        """Return what is left; an incomplete character becomes U+FFFD."""


class Codec(Protocol):
    """Text to ids and back. Pure and thread-safe; the client runs it on a thread of its own."""

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        """Ids of `text`. Unless `control`, text that spells a control token stays ordinary text."""

    def decode(self, tokens: Sequence[int]) -> str: ...

    def detokenizer(self) -> Detokenizer: ...

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        template: Mapping[str, Any] | None = None,
        reasoning: bool = True,
    ) -> RenderedPrompt:
        """Render OpenAI-shaped messages with the model's chat template, ready for a reply.

        `template` are extra template variables (``enable_thinking``, ...). Without `reasoning`
        the reply begins with its answer. Raises RequestError naming the field when the template
        refuses the messages.
        """

    def grammar(
        self,
        reply: ReplyFormat,
        tools: Sequence[Message] | None = None,
        *,
        prompt: RenderedPrompt | None = None,
    ) -> Grammar:
        """What holds a reply to `prompt` to `reply`. Raises RequestError naming the field.

        The one call that may take seconds, for a schema that is made to; see `EngineClient.chat`.
        """

    def reader(self, tools: Sequence[Message] | None, *, reasoning: str = "") -> PieceReader:
        """Takes one reply apart; reasoning: see `RenderedPrompt`. Without tools nothing is taken
        for a call."""

    def token_bytes(self) -> list[bytes]:
        """The bytes of every token id; empty for control tokens."""

    def fill_in_middle(
        self,
        prefix: str,
        suffix: str,
        *,
        path: str | None = None,
        limit: int | None = None,
        project: str = "",
        context: Sequence[ContextFile] = (),
        context_limit: int = 0,
    ) -> RenderedPrompt:
        """A completion prompt for the text between `prefix` and `suffix`.

        context: other files, shown first and in this order, as far as they fit into
        `context_limit` tokens beside the `limit` for the rest; `project` names what they belong
        to. A file that does not fit is left out with all behind it.

        Uses the tokenizer's FIM tokens when it has them, else the prefix alone. Keeps at most
        `limit` tokens, dropping what is farthest from the cursor. Everything of the cursor's line
        goes after the middle marker; a half-typed token is taken off and comes back as
        `must_start_with`.
        """


class Backend(Protocol):
    """What really decodes. All calls are thread-safe and return at once."""

    @property
    def codec(self) -> Codec | None:
        """The loaded model's codec; None until `status().state` is ``ready``."""

    def start(self, emit: Callable[[Event], None], changed: Callable[[], None]) -> None:
        """Begin loading. `emit` takes every event, `changed` is called when the state changes;
        both are called from the backend's own thread."""

    def post(self, request: GenerateRequest) -> None:
        """Queue a request. It ends with exactly one `Finished` or `Failed` event."""

    def cancel(self, request_id: str) -> None:
        """Stop within one round; the request still ends (``finish_reason`` ``cancelled``)."""

    def files_changed(self, files: Sequence[FileContent]) -> None:
        """What these files hold now; the prefix cache prefers to keep what is still true."""

    def cache(self, action: str) -> Future[CacheReport]:
        """Ask the prefix cache itself; action: one of `CACHE_ACTIONS`."""

    def status(self) -> EngineStatus:
        """A snapshot."""

    def stop(self) -> None:
        """End every open request, then the thread. Idempotent; returns when it is gone."""


class Reply:
    """An open request: an async iterator of its events that ends after the last one.

    Leaving the iteration early (`break`, an exception, a cancelled task) must be followed by
    `aclose`, or use it as an async context manager: both cancel the request.
    """

    def __init__(self, client: EngineClient, request_id: str) -> None:
        self.id = request_id
        self._client = client
        self._events = Backlog()
        self._waiting: asyncio.Future[None] | None = None
        self._over = False

    def _deliver(self, event: Event) -> None:
        self._events.put(event)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        while not self._events:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        event = self._events.get()
        if isinstance(event, Finished | Failed):
            self._over = True
        return event

    async def finished(self) -> Finished:
        """Wait for the end. Raises the error that a `Failed` stands for."""
        async for event in self:
            if isinstance(event, Finished):
                return event
            if isinstance(event, Failed):
                raise error_of(event)
        raise EngineError(f"request {self.id} was read twice")

    def cancel(self) -> None:
        """Ask the engine to stop this request; its `Finished` event still arrives."""
        self._client.cancel(self.id)

    async def aclose(self) -> None:
        if not self._over:
            self._over = True
            self._client.cancel(self.id)

    async def __aenter__(self) -> Reply:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class EngineClient:
    """One per daemon, used from the event loop that called `start`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._replies: dict[str, Reply] = {}
        self._ids = itertools.count(1)
        self._codec_thread = Worker("codec")
        # Not the codec's thread, where keystrokes would wait for a slow schema or a long text.
        self._slow_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="codec-slow")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self._awaited: set[str] = set()
        self._arrived: deque[Event] = deque()
        self._woken = False
        # Told of every request and of its ending; and of every event, while somebody looks.
        self.observers: list[Callable[[GenerateRequest | Event], None]] = []
        self.watchers: list[Callable[[Event], None]] = []

    def start(self) -> None:
        """Begin loading in the background and return."""
        self._loop = asyncio.get_running_loop()
        self._backend.start(self._on_event_threadsafe, self._on_change_threadsafe)

    def _on_event_threadsafe(self, event: Event) -> None:
        self._arrived.append(event)
        # Waking the loop costs more than an event does: once for all that come before it wakes.
        if not self._woken:
            self._woken = True
            self._call_soon(self._on_events)

    def _on_change_threadsafe(self) -> None:
        self._call_soon(self._wake)

    def _call_soon(self, callback: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        # A closed loop has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _on_events(self) -> None:
        self._woken = False
        while self._arrived:
            self._on_event(self._arrived.popleft())

    def _on_event(self, event: Event) -> None:
        last = isinstance(event, Finished | Failed)
        reply = self._replies.pop(event.id, None) if last else self._replies.get(event.id)
        if last and event.id in self._awaited:
            self._awaited.remove(event.id)
            if not self._awaited:
                self._tell()
        if reply is not None:
            reply._deliver(event)
        for observe in self.observers if last else ():
            observe(event)
        for watch in self.watchers:
            watch(event)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def status(self) -> EngineStatus:
        return self._backend.status()

    async def changed(self) -> None:
        """Return after the next change of `status().state` (or of loading progress)."""
        await self._changed.wait()

    def news(self) -> asyncio.Event:
        """Set at the next change of `status().state`, of loading progress, or of `working`."""
        return self._news

    @property
    def working(self) -> bool:
        """Whether a request is open that is more than IDLE: someone waits for it."""
        return bool(self._awaited)

    async def ready(self) -> EngineStatus:
        """Wait until the model is loaded. Raises NotReady if it never will be."""
        while (status := self.status()).state == "loading":
            changed = self._changed
            if self.status().state == "loading":
                await changed.wait()
        if status.state != "ready":
            raise NotReady(f"the engine is {status.state}: {status.detail}")
        return status

    def new_id(self, prefix: str = "req") -> str:
        return f"{prefix}-{next(self._ids)}"

    def generate(self, request: GenerateRequest) -> Reply:
        """Open a request. Raises NotReady while no model is there."""
        status = self.status()
        if status.state != "ready":
            raise NotReady(f"the engine is {status.state}: {status.detail}")
        if request.id in self._replies:
            raise EngineError(f"request id {request.id} is already open")
        reply = self._replies[request.id] = Reply(self, request.id)
        if request.priority is not Priority.IDLE:
            self._awaited.add(request.id)
            if len(self._awaited) == 1:
                self._tell()
        for observe in self.observers:
            observe(request)
        self._backend.post(request)
        return reply

    def cancel(self, request_id: str) -> None:
        self._backend.cancel(request_id)

    def files_changed(self, files: Sequence[FileContent]) -> None:
        """Tell the prefix cache what files hold now. A hint: hits are right without it."""
        self._backend.files_changed(files)

    async def cache(self, action: str) -> CacheReport:
        """Look at the prefix cache, or clear it or have it check itself (`CACHE_ACTIONS`). Raises
        RequestError for another action, NotReady while no model is there."""
        if action not in CACHE_ACTIONS:
            raise RequestError(
                f"action: {action!r} is none of {', '.join(CACHE_ACTIONS)}", field="action"
            )
        status = self.status()
        if status.state != "ready":
            raise NotReady(f"the engine is {status.state}: {status.detail}")
        return await asyncio.wrap_future(self._backend.cache(action))

    @property
    def open_requests(self) -> int:
        return len(self._replies)

    def _codec(self) -> Codec:
        codec = self._backend.codec
        if codec is None:
            status = self.status()
            raise NotReady(f"the engine is {status.state}: {status.detail}")
        return codec

    async def _on_codec_thread(self, method: str, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(getattr(self._codec(), method), *args, **kwargs)
        if _length(args) + _length(kwargs) > _LONG:
            return await asyncio.get_running_loop().run_in_executor(self._slow_threads, call)
        return await self._codec_thread.run(call)

    async def encode(self, text: str, *, control: bool = False) -> list[int]:
        """See `Codec.encode`."""
        tokens: list[int] = await self._on_codec_thread("encode", text, control=control)
        return tokens

    async def decode(self, tokens: Sequence[int]) -> str:
        """See `Codec.decode`."""
        text: str = await self._on_codec_thread("decode", tokens)
        return text

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        template: Mapping[str, Any] | None = None,
        reply: ReplyFormat | None = None,
    ) -> RenderedPrompt:
        """See `Codec.chat`. With `reply` the prompt comes with the grammar that the reply is held
        to (see `Codec.grammar`), and asks for no reasoning before it unless the reply may have
        some."""
        reasoning = reply is None or reply.reasons
        prompt: RenderedPrompt = await self._on_codec_thread(
            "chat", messages, tools=tools, template=template, reasoning=reasoning
        )
        if reply is None:
            return prompt
        codec, loop = self._codec(), asyncio.get_running_loop()
        grammar = await loop.run_in_executor(
            self._slow_threads, lambda: codec.grammar(reply, tools, prompt=prompt)
        )
        return msgspec.structs.replace(prompt, grammar=grammar)

    def reader(self, tools: Sequence[Message] | None, *, reasoning: str = "") -> PieceReader:
        """See `Codec.reader`."""
        return self._codec().reader(tools, reasoning=reasoning)

    async def token_bytes(self) -> list[bytes]:
        """See `Codec.token_bytes`."""
        spelled: list[bytes] = await self._on_codec_thread("token_bytes")
        return spelled

    async def fill_in_middle(
        self,
        prefix: str,
        suffix: str,
        *,
        path: str | None = None,
        limit: int | None = None,
        **context: Any,
    ) -> RenderedPrompt:
        """See `Codec.fill_in_middle`; context: its arguments of that kind."""
        # While a line is typed only that line is new: then it takes no longer than the way to the
        # codec's thread and back. Codecs that have nothing to tokenise need no such method.
        known = getattr(self._codec(), "known_fill_in_middle", None)
        if known is not None:
            ready: RenderedPrompt | None = known(prefix, suffix, path=path, limit=limit, **context)
            if ready is not None:
                return ready
        prompt: RenderedPrompt = await self._on_codec_thread(
            "fill_in_middle", prefix, suffix, path=path, limit=limit, **context
        )
        return prompt

    async def stop(self) -> None:
        """End every open request and the engine. Idempotent."""
        await asyncio.get_running_loop().run_in_executor(None, self._backend.stop)
        # The endings of open requests are already queued on the loop; let them through.
        await asyncio.sleep(0)
        self._codec_thread.stop()
        self._slow_threads.shutdown(wait=False, cancel_futures=True)


def _length(value: Any) -> int:
    """Characters and numbers in plain data."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_length, value.values()))
    if isinstance(value, list | tuple):
        ids = value and isinstance(value[0], int)
        return len(value) if ids else sum(map(_length, value))
    return 0


def error_of(failed: Failed) -> Exception:
    """The exception that a `Failed` event stands for."""
    from engine.errors import ContextLengthExceeded, ModelError, Overloaded, RequestError

    for kind in (ContextLengthExceeded, Overloaded, RequestError):
        if failed.code == kind.code or (kind is RequestError and failed.field is not None):
            error = RequestError(failed.message, field=failed.field, code=failed.code)
            return error if kind is not Overloaded else Overloaded(failed.message)
    if failed.code == ModelError.code:
        return ModelError(failed.message)
    return EngineError(failed.message, code=failed.code)
