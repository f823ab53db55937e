"""A backend that somebody looks over the shoulder of: for proofs about the real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager

from engine.client import Backend, Codec
from engine.messages import EngineStatus, Event, GenerateRequest
from engine.prefix_cache.messages import CacheReport, FileContent


class WatchedBackend:
    """Passes everything on. posted: given each request, is entered before it is queued and left
    behind; emitted: called with each event before anybody else has it, from the backend's own
    thread."""

    def __init__(
        self,
        backend: Backend,
        posted: Callable[[GenerateRequest], AbstractContextManager[None]],
        emitted: Callable[[Event], None],
    ) -> None:
        self._backend = backend
        self._posted = posted
        self._emitted = emitted

    @property
    def codec(self) -> Codec | None:
        return self._backend.codec

    def start(self, emit: Callable[[Event], None], changed: Callable[[], None]) -> None:
        def watched(event: Event) -> None:
            self._emitted(event)
            emit(event)

        self._backend.start(watched, changed)

    def post(self, request: GenerateRequest) -> None:
        with self._posted(request):
            self._backend.post(request)

    def cancel(self, request_id: str) -> None:
        self._backend.cancel(request_id)

    def files_changed(self, files: Sequence[FileContent]) -> None:
        self._backend.files_changed(files)

    def cache(self, action: str) -> Future[CacheReport]:
        return self._backend.cache(action)

    def status(self) -> EngineStatus:
        return self._backend.status()

    def stop(self) -> None:
        self._backend.stop()
