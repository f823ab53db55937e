"""The engine thread: loads the model, proves it, and turns messages into events."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from engine.client import Codec
from engine.errors import EngineError, PillionError
from engine.messages import (
    EngineOptions,
    EngineStatus,
    Event,
    Failed,
    GenerateRequest,
    ModelInfo,
)
from engine.prefix_cache.messages import CacheOptions, CacheReport, FileContent

if TYPE_CHECKING:
    from engine.loading.load import Loaded
    from engine.loading.measured import Measured
    from engine.loop import DecodingLoop

    # A request, an id to cancel, something to do between turns, or None for the end.
    Posted = GenerateRequest | str | Callable[[DecodingLoop], None] | None

Load = Callable[[EngineOptions, Callable[[str, float | None], None]], "Loaded"]


class Engine:
    """A `Backend` on one thread of its own; every mx.array is made and used there.

    load: how the model is loaded; tests pass one that alters the model. turned: see
    `DecodingLoop`.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        cache: CacheOptions | None = None,
        load: Load | None = None,
        turned: Callable[[str], None] | None = None,
    ) -> None:
        self._options = options
        self._turned = turned
        self._cache_options = cache or CacheOptions()
        self._load = load
        self._inbox: queue.SimpleQueue[Posted] = queue.SimpleQueue()
        self._status = EngineStatus(state="loading", detail="starting")
        self._loop: DecodingLoop | None = None
        self._measured: Measured | None = None
        self._thread: threading.Thread | None = None
        # Guards the step from accepting posts to refusing them, so that none falls between.
        self._ending = threading.Lock()
        # Questions to the cache without an answer yet.
        self._asked: set[Future[CacheReport]] = set()
        # A request that left the inbox and is not in the loop yet.
        self._in_hand: GenerateRequest | None = None
        self.codec: Codec | None = None

    def start(self, emit: Callable[[Event], None], changed: Callable[[], None]) -> None:
        self._emit = emit
        self._changed = changed
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def post(self, request: GenerateRequest) -> None:
        with self._ending:
            if self._status.state == "ready":
                self._inbox.put(request)
                return
        message = f"the engine is {self._status.state}: {self._status.detail}"
        self._emit(Failed(id=request.id, code=EngineError.code, message=message))

    def cancel(self, request_id: str) -> None:
        self._inbox.put(request_id)

    def files_changed(self, files: Sequence[FileContent]) -> None:
        self._inbox.put(lambda loop: loop.reuse.files_changed(files))

    def cache(self, action: str) -> Future[CacheReport]:
        report: Future[CacheReport] = Future()
        # From here on it cannot be cancelled, so that its result can always be set.
        report.set_running_or_notify_cancel()

        def look(loop: DecodingLoop) -> None:
            assert self.codec is not None
            loop.reuse.report(action, self.codec.decode, report.set_result)

        with self._ending:
            if self._status.state == "ready":
                self._asked.add(report)
                report.add_done_callback(self._asked.discard)
                self._inbox.put(look)
                return report
        report.set_exception(EngineError(f"the engine is {self._status.state}"))
        return report

    def stop(self) -> None:
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join()

    def status(self) -> EngineStatus:
        import msgspec

        loop, status = self._loop, self._status
        if loop is None:
            return status
        from engine.loop import active_memory

        return msgspec.structs.replace(
            status,
            exactness=loop.exactness,
            active=loop.active,
            queued=loop.queued + self._inbox.qsize(),
            totals=loop.totals,
            regimes=loop.regimes,
            costs=loop.surplus.costs.curve if loop.surplus is not None else None,
            slowdown=loop.surplus.costs.drift if loop.surplus is not None else 1.0,
            memory_bytes=active_memory() if status.state == "ready" else 0,
            cache=loop.reuse.status(),
        )

    def _set(self, state: str, detail: str = "", progress: float | None = None) -> None:
        import msgspec

        self._status = msgspec.structs.replace(
            self._status, state=state, detail=detail, progress=progress
        )
        self._changed()

    def _know(self, info: ModelInfo, drafters: tuple[str, ...], note: str, kernels: str) -> None:
        """For the status, of what was loaded."""
        import msgspec

        self._status = msgspec.structs.replace(
            self._status,
            model=info,
            drafters=drafters,
            notes=(note,) if note else (),
            kernels=kernels,
        )

    def _run(self) -> None:
        # One broad except on purpose: whatever kills this thread must answer every open request.
        try:
            self._prepare()
            self._serve()
            if self._loop is not None:
                self._loop.reuse.close()
            if self._measured is not None:
                self._measured.keep(now=True)
        except PillionError as error:
            self._die(error.message)
        except Exception as error:
            traceback.print_exc()
            self._die(f"{type(error).__name__}: {error}")
        else:
            self._finish("stopped", "the engine was stopped")
        finally:
            _end_streams()

    def _die(self, detail: str) -> None:
        self._finish("failed", detail)

    def _finish(self, state: str, detail: str) -> None:
        with self._ending:
            self._set(state, detail)
        error = EngineError(f"the engine has {state}: {detail}")
        if self._loop is not None:
            self._loop.fail_all(error)
        unopened = [self._in_hand]
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._inbox.get_nowait()
                unopened.append(message if isinstance(message, GenerateRequest) else None)
        for report in list(self._asked):
            report.set_exception(error)
        for request in filter(None, unopened):
            self._emit(Failed(id=request.id, code=error.code, message=error.message))

    def _prepare(self) -> None:
        """Load, probe, and say so."""
        self._set("loading", "importing MLX")
        import mlx.core as mx

        from engine.cpu.draft_stack import fuse
        from engine.decoding.exactness import measured_chunk, probe
        from engine.kernels import bits, install
        from engine.loading.load import load
        from engine.loading.measured import measured
        from engine.loading.pairing import Pair, load_pair
        from engine.loading.pairs import drafter_folder
        from engine.loop import DecodingLoop, portfolios, widest
        from engine.prefix_cache.fingerprint import computed_by, fingerprint
        from engine.targets.target import bind

        options = self._options
        loaded = (self._load or load)(
            options, lambda what, share: self._set("loading", what, share)
        )
        if mx.metal.is_available():
            mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))
        target = bind(loaded.model, loaded.config)
        self._set("loading", "choosing kernels")
        limit = 1 if options.draft == "none" else options.max_width
        kernels = install(target.model, options.kernels, limit)
        info = loaded.info
        pair = load_pair(options, target, info, lambda what, p: self._set("loading", what, p))
        if pair.model is not None:
            install(pair.model, options.kernels)
            fuse(pair.model, target)
        asked = 1 if options.draft == "none" else options.max_width or widest(pair.model)
        exactness = probe(
            target,
            info.vocab_size,
            info.context,
            asked,
            lambda share: self._set("loading", "probing exactness", share),
        )
        width = asked if options.fast and target.speculative else exactness.width
        if width == 1 and pair.model is not None:
            target.untap()
            pair = Pair(None, note=f"{pair.name} is not used: {exactness.reason}")
        if width > 1:
            self._measured = measured(
                target,
                info,
                width,
                pair.model,
                pair.name,
                lambda what, share: self._set("loading", what, share),
            )
        chunk = options.prefill_chunk or measured_chunk(target, info.vocab_size)
        drafter = drafter_folder(options.draft, options.model) if pair.model is not None else None
        folders = [Path(info.path), *([drafter] if drafter is not None else [])]
        in_bits = bits(target.model, kernels)
        facts = computed_by(options, pair.name, in_bits, 0 if exactness.prefill else chunk)
        self._loop = DecodingLoop(
            target,
            loaded.codec,
            info,
            options,
            exactness,
            width=width,
            chunk=chunk,
            emit=self._emit,
            new_portfolio=portfolios(target, pair.model),
            surplus=self._measured.controller if self._measured is not None else None,
            measurement=self._measured.measurement if self._measured is not None else None,
            cache=self._cache_options,
            fingerprint=lambda: fingerprint(folders, facts, Path(self._cache_options.dir or "")),
            turned=self._turned,
        )
        self.codec = loaded.codec
        names = ("copy", pair.name) if pair.model is not None else ("copy",)
        self._know(info, names if width > 1 else (), pair.note, kernels)
        self._set("ready")

    def _serve(self) -> None:
        """Turns and messages until told to stop."""
        assert self._loop is not None
        loop, busy = self._loop, False
        while True:
            try:
                # Between turns only look; with nothing to do wait for a message (or an audit).
                message = self._inbox.get_nowait() if busy else self._inbox.get(timeout=loop.waits)
            except queue.Empty:
                busy = loop.turn()
                if not busy and self._measured is not None:
                    self._measured.keep()
                continue
            if message is None:
                return
            if isinstance(message, GenerateRequest):
                self._in_hand = message
                loop.open(message)
                self._in_hand = None
            elif callable(message):
                message(loop)
            else:
                loop.cancel(message)
            busy = True


def _end_streams() -> None:
    """Give back this thread's MLX streams while the thread still runs.

    Left to the thread's end, that is still going on when a process exits right after `stop`, and
    MLX 0.32 then sometimes aborts it ("terminate called without an active exception") in place of
    its exit code. A thread that only multiplies and synchronises did so in 13 of 115 processes on
    a busy machine, in 0 of 115 when it also called `clear_streams`.
    """
    if (mx := sys.modules.get("mlx.core")) is not None:
        mx.synchronize()
        mx.clear_streams()
