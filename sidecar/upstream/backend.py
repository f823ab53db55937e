"""`engine.Backend` that lets an upstream decode, and the local model while that is down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import msgspec

from engine import (
    Backend,
    CacheReport,
    CacheStatus,
    Codec,
    EngineStatus,
    Event,
    Failed,
    FileContent,
    Finished,
    GenerateRequest,
    ModelInfo,
    Overloaded,
    PillionError,
    RequestError,
    Totals,
)
from sidecar.upstream.capabilities import Capabilities, look, model_info
from sidecar.upstream.codec import UpstreamCodec
from sidecar.upstream.connection import Connection, Patience, Refused, Silent, Unavailable, error_in
from sidecar.upstream.dialect import asked
from sidecar.upstream.fallback import LocalReply, local_request
from sidecar.upstream.prompt import Prompt, unpack
from sidecar.upstream.remote_reply import RemoteReply
from sidecar.upstream.ways import NoCall, Ways, other_ways

log = logging.getLogger(__name__)

_LOOK_SECONDS = 30.0
_NOT_ASKED = "not asked yet"


class UpstreamBackend:
    """url: ``http://host/v1``. model: its name there. local: decodes while the upstream is down;
    not started yet. context, most_open: as `EngineOptions` has them (``max_queue``)."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        key: str | None = None,
        local: Backend | None = None,
        context: int | None = None,
        most_open: int = 256,
        patience: Patience | None = None,
    ) -> None:
        self._url = url
        self._wanted = model
        self._key = key
        self._local = local
        self._context = context
        self._most_open = most_open
        self._patience = patience or Patience()
        self._codec = UpstreamCodec()
        self._found: Capabilities | None = None
        self._model: ModelInfo | None = None
        self._down = _NOT_ASKED
        self._state = "loading"
        self._ways = Ways()
        self._totals = Totals()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._locals: dict[str, LocalReply] = {}
        self._thread: threading.Thread | None = None
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._asked = asyncio.Event()

    @property
    def codec(self) -> Codec | None:
        return self._codec if self.status().state == "ready" else None

    def start(self, emit: Callable[[Event], None], changed: Callable[[], None]) -> None:
        self._emit, self._changed = emit, changed
        if self._local is not None:
            self._local.start(self._on_local_event, changed)
        self._thread = threading.Thread(target=self._run, name="upstream", daemon=True)
        self._thread.start()

    def post(self, request: GenerateRequest) -> None:
        self._call(self._begin, request)

    def cancel(self, request_id: str) -> None:
        self._call(self._cancel, request_id)

    def files_changed(self, files: Sequence[FileContent]) -> None:
        if self._local is not None:
            self._local.files_changed(files)

    def cache(self, action: str) -> Future[CacheReport]:
        if self._local is not None and self._local.status().state == "ready":
            return self._local.cache(action)
        report: Future[CacheReport] = Future()
        report.set_result(CacheReport(status=CacheStatus()))
        return report

    def stop(self) -> None:
        if self._thread is not None:
            self._call(self._stopping.set)
            self._thread.join()
            self._thread = None
        if self._local is not None:
            self._local.stop()

    def status(self) -> EngineStatus:
        local = self._local.status() if self._local is not None else EngineStatus(state="loading")
        if self._state == "stopped":
            return EngineStatus(state="stopped")
        if self._model is None:
            # Never seen: all that is known is the local model.
            detail = f"upstream {self._url}: {self._down}"
            if self._down == _NOT_ASKED or local.state != "ready":
                return msgspec.structs.replace(local, state="loading", detail=detail)
            return msgspec.structs.replace(local, notes=(*local.notes, self._note(local)))
        return msgspec.structs.replace(
            local,
            state="ready",
            detail="",
            progress=None,
            model=self._model,
            exactness=None,
            drafters=("the upstream's own, unknown here",),
            kernels="the upstream's own, unknown here",
            notes=(self._note(local),),
            active=local.active + len(self._tasks),
            totals=_sum(local.totals, self._totals),
        )

    def _note(self, local: EngineStatus) -> str:
        if not self._down:
            assert self._found is not None
            how = {"infill": "/infill", "tokens": "its model's tokens", "suffix": "suffix"}
            gaps = how.get(self._ways.gaps, "what comes before the cursor alone")
            more = "" if self._found.context else "; it does not say its context"
            more += "" if self._found.tools else "; its chat template shows the model no tools"
            return f"upstream {self._url} decodes {self._found.model}; gaps by {gaps}{more}"
        instead = "nothing answers meanwhile"
        if local.state == "ready" and local.model is not None:
            instead = f"{local.model.id} answers here meanwhile"
        elif local.state == "loading" and self._local is not None:
            instead = f"the local model is loading: {local.detail}"
        return f"upstream {self._url} is down ({self._down}); {instead}"

    # From here on in the thread of the upstream.

    def _call(self, work: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *args)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._connection = Connection(self._url, self._key, self._patience)
        looking = asyncio.create_task(self._keep_looking())
        await self._stopping.wait()
        looking.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(looking, *self._tasks.values(), return_exceptions=True)
        await self._connection.close()
        self._state = "stopped"
        self._changed()

    async def _keep_looking(self) -> None:
        """Until it is there, and whenever it went or may have gone."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    found = await look(self._connection, self._wanted)
            except (Unavailable, TimeoutError) as error:
                self._set_down(str(error) or "it did not answer in time")
                await asyncio.sleep(self._patience.again)
            else:
                self._asked.clear()
                self._set_found(found)
                await self._asked.wait()

    def _set_found(self, found: Capabilities) -> None:
        if self._down or self._found is None or found.model != self._found.model:
            log.info("the upstream %s decodes %s", self._url, found.model)
        self._found = found
        self._ways = Ways(gaps=found.gaps, calls="tool_choice" if found.tools else "schema")
        self._model = model_info(found, self._url, self._context)
        self._down = ""
        self._changed()

    async def _has_another_model(self, than: str) -> bool:
        """Whether it decodes another one by now: it may have been restarted."""
        if self._wanted is not None:
            return False
        # Many may find out at once.
        if self._model_name() == than:
            with contextlib.suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    found = await look(self._connection, None)
                if found.model != self._model_name():
                    self._set_found(found)
        return self._model_name() != than

    def _model_name(self) -> str:
        return self._found.model if self._found is not None else self._wanted or ""

    def _set_down(self, why: str) -> None:
        if why != self._down:
            log.warning("the upstream %s is down: %s", self._url, why)
            self._down = why
            self._changed()
        self._asked.set()

    def _begin(self, request: GenerateRequest) -> None:
        if self._stopping.is_set():
            self._fail(request.id, "cancelled", "the daemon is stopping")
        elif len(self._tasks) >= self._most_open:
            self._fail(request.id, Overloaded.code, f"{len(self._tasks)} requests are open already")
        else:
            reply = RemoteReply(request, self._url, self._emit)
            task = asyncio.create_task(self._answer(reply))
            self._tasks[request.id] = task
            task.add_done_callback(lambda task: self._over(task, reply))

    def _over(self, task: asyncio.Task[None], reply: RemoteReply) -> None:
        self._tasks.pop(reply.request.id, None)
        if task.cancelled():
            # Before its first step, or it would have said so itself.
            self._end_cancelled(reply)

    def _end_cancelled(self, reply: RemoteReply) -> None:
        if self._stopping.is_set():
            self._fail(reply.request.id, "cancelled", "the daemon is stopping")
            return
        self._count(reply, cancelled=1)
        self._emit(reply.finished("cancelled", self._found))

    def _cancel(self, request_id: str) -> None:
        task = self._tasks.get(request_id)
        if task is not None and not task.done():
            task.cancel()
        elif self._local is not None:
            self._local.cancel(request_id)

    async def _answer(self, reply: RemoteReply) -> None:
        """One ending, whatever happens."""
        request = reply.request
        try:
            if request.warm:
                self._emit(reply.finished("warmed", self._found))
                return
            if request.logprobs is not None:
                self._codec.token_bytes()
            prompt = unpack(request.prompt)
            if self._down and self._local_is_ready():
                await self._locally(request, prompt, self._down)
                return
            try:
                await self._remotely(reply, prompt)
            except Unavailable as error:
                if error.down:
                    self._set_down(error.message)
                elif isinstance(error, Silent):
                    # Whether it is stuck or busy shows when it is looked at.
                    self._asked.set()
                busy = error.code == Overloaded.code
                if reply.begun or busy or not self._local_is_ready():
                    raise
                await self._locally(request, prompt, error.message)
                return
            self._count(reply)
            self._emit(reply.finished(reply.listener.ending.reason, self._found))
        except asyncio.CancelledError:
            self._end_cancelled(reply)
        except PillionError as error:
            code = error.code
            if isinstance(error, Unavailable) and code == Unavailable.code:
                code = "not_ready" if error.down and not reply.begun else "engine_error"
            field = error.field if isinstance(error, RequestError) else None
            self._fail(request.id, code, error.message, field)
        except Exception as error:
            # A fault of ours must not leave a request without its ending.
            log.exception("request %s", request.id)
            self._fail(request.id, "engine_error", f"upstream: {type(error).__name__}: {error}")

    async def _remotely(self, reply: RemoteReply, prompt: Prompt) -> None:
        """Once more where nothing was sent yet and that may help, or in another way, or of another
        model. Raises Unavailable, Refused."""
        retried, renewed, model, before = False, False, self._model_name(), self._ways
        ways = before
        while True:
            try:
                await self._stream(reply, prompt, model, ways)
                self._ways = self._ways.changed(before, ways)
                return
            except Unavailable as error:
                pause = self._patience.pause if error.pause is None else error.pause
                patient = pause <= self._patience.longest_pause
                if reply.begun or retried or not error.again or not patient:
                    raise
                retried = True
                await asyncio.sleep(pause)
            except Refused as error:
                unknown = error.status == 404 and not reply.begun and not renewed
                if unknown and await self._has_another_model(than=model):
                    renewed, model, before = True, self._model_name(), self._ways
                    ways = before
                    continue
                other = None if reply.begun else other_ways(ways, prompt, error)
                if other is None:
                    raise
                log.info("the upstream is asked in another way: %s", error.message)
                ways = other

    async def _stream(self, reply: RemoteReply, prompt: Prompt, model: str, ways: Ways) -> None:
        reply.listen(prompt, ways)
        wanted = asked(reply.request, prompt, model, ways)
        base = self._connection.root if wanted.below_root else self._connection.url
        async with self._connection.events(base + wanted.path, wanted.body) as events:
            async for event in events:
                if (error := error_in(event)) is not None:
                    raise Unavailable(f"the upstream gave up: {error}", down=False)
                try:
                    reply.hear(event)
                except (TypeError, ValueError, KeyError, AttributeError, IndexError) as wrong:
                    why = f"it sends an event that is none of OpenAI's: {wrong!r}"
                    raise Unavailable(why, down=False) from wrong
        listener = reply.listener
        if not listener.ended:
            raise Unavailable("its reply broke off before its end", down=False, again=True)
        if listener.missing:
            raise NoCall
        reply.send(listener.rest())

    def _local_is_ready(self) -> bool:
        return self._local is not None and self._local.status().state == "ready"

    async def _locally(self, request: GenerateRequest, prompt: Prompt, why: str) -> None:
        assert self._local is not None
        codec = self._local.codec
        assert codec is not None
        translated, reader = await asyncio.to_thread(local_request, request, prompt, codec)
        self._locals[request.id] = LocalReply(why, reader)
        self._local.post(translated)

    def _on_local_event(self, event: Event) -> None:
        """Called in the local engine's thread."""
        if isinstance(event, Finished | Failed):
            reply = self._locals.pop(event.id, None)
        else:
            reply = self._locals.get(event.id)
        for translated in [event] if reply is None else reply.events(event):
            self._emit(translated)

    def _fail(self, request_id: str, code: str, message: str, field: str | None = None) -> None:
        self._totals = _sum(self._totals, Totals(requests=1, failed=1))
        self._emit(Failed(id=request_id, code=code, message=message, field=field))

    def _count(self, reply: RemoteReply, cancelled: int = 0) -> None:
        ending = reply.listener.ending
        more = Totals(
            requests=1,
            cancelled=cancelled,
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=ending.cached_tokens,
            completion_tokens=reply.completion_tokens,
            accepted=ending.accepted,
            rejected=ending.rejected,
            prefill_seconds=reply.prefill_seconds,
            decode_seconds=reply.decode_seconds,
        )
        self._totals = _sum(self._totals, more)


def _sum(one: Totals, other: Totals) -> Totals:
    names = (field.name for field in msgspec.structs.fields(Totals))
    return Totals(**{name: getattr(one, name) + getattr(other, name) for name in names})
