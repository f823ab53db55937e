"""What one connection knows: its documents, its encoding, its open requests."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import itertools
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path, PurePath
from typing import Any

from cattrs import Converter
from lsprotocol import types
from msgspec import Struct
from pygls.protocol import default_converter
from pygls.uris import to_fs_path

from engine import NotReady
from sidecar.jobs.completion import CompletionRequest, prompt_of, reach, uses_context
from sidecar.jobs.suggestions import Suggestions
from sidecar.jobs.warmth import Warmth
from sidecar.lsp.jsonrpc import (
    REQUEST_CANCELLED,
    REQUEST_FAILED,
    Id,
    Response,
    RpcError,
    error_message,
    notification_message,
    request_message,
    result_message,
)
from sidecar.lsp.outbox import Outbox
from sidecar.lsp.params import invalid_params
from sidecar.services import Services
from sidecar.workspace.documents import Document, Documents
from sidecar.workspace.positions import Encoding
from sidecar.workspace.view import View

_CONVERTER: Converter = default_converter()  # type: ignore[no-untyped-call]  # pygls ships none


Place = tuple[int, int]
"""(line, code point) of a document."""


@functools.lru_cache(256)
def _path_of(uri: str) -> str | None:
    return to_fs_path(uri) or None


@functools.lru_cache(256)
def _name_in(file: str, folders: tuple[PurePath, ...]) -> str:
    path = PurePath(file)
    for folder in folders:
        if path.is_relative_to(folder):
            return path.relative_to(folder).as_posix()
    return path.name


class Phase(enum.Enum):
    """Where a connection is in LSP's life cycle."""

    NEW = enum.auto()
    RUNNING = enum.auto()
    SHUT_DOWN = enum.auto()
    EXITED = enum.auto()


class OpenRequest:
    """A request that is owed one answer: the first one given is sent, later ones are dropped."""

    def __init__(self, session: Session, request_id: Id, method: str) -> None:
        self.id = request_id
        self.method = method
        self.task: asyncio.Task[None] | None = None
        self._session = session
        self._recallable = True

    def result(self, value: object) -> None:
        """value: an lsprotocol object, a Struct with the wire's names, or plain JSON types."""
        plain = value if isinstance(value, Struct) else _CONVERTER.unstructure(value)
        self._session.answer(self, result_message(self.id, plain))

    def error(self, error: RpcError) -> None:
        self._session.answer(self, error_message(error, self.id))

    def beyond_recall(self) -> None:
        """Its result is being written: from here on it ends as that, also where it is cancelled."""
        self._recallable = False

    def cancel(self) -> None:
        """The client does not want it any more."""
        if not self._recallable and self.task is not None and not self.task.done():
            return
        self.error(RpcError(REQUEST_CANCELLED, f"{self.method} was cancelled"))
        self._stop()

    def withdraw(self) -> None:
        """Its answer would be stale. The result is null, which every client takes for "nothing".

        VS Code would take ContentModified in silence too, but not RequestCancelled when it had not
        asked; Neovim never runs the callback of a RequestCancelled, and hands any other error to
        whoever sent the request.
        """
        self.result(None)
        self._stop()

    def _stop(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Session:
    """Owned by one connection and touched by its tasks only."""

    def __init__(self, services: Services, outbox: Outbox) -> None:
        self.services = services
        self.documents = Documents()
        self.encoding: Encoding = "utf-16"
        self.phase = Phase.NEW
        self.folders: list[PurePath] = []
        self.open: dict[Id, OpenRequest] = {}
        self.in_progress: dict[Id, OpenRequest] = {}
        self.shows_progress = False
        self.commands: frozenset[str] = frozenset()
        self.told_not_ready = False
        self.told_withheld: set[str] = set()
        self.warmth = Warmth(services.engine)
        self.suggestions = Suggestions(
            services.engine, services.config.completion, ahead=services.config.workspace.warm
        )
        self.view = View(
            services.workspace,
            self.documents,
            services.config.workspace,
            enabled=lambda: uses_context(services.config.workspace, services.engine),
            settled=self._warm,
            tell=services.engine.files_changed,
        )
        self._waiting: asyncio.Task[None] | None = None
        self._outbox = outbox
        self._current: dict[str, OpenRequest] = {}
        self._asked: dict[Id, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)
        self._following: dict[str, asyncio.Task[None]] = {}

    def document(self, uri: str) -> Document:
        """The open document. Raises RpcError naming the field; nothing is read from disk."""
        document = self.documents.get(uri)
        if document is None:
            raise invalid_params(
                "textDocument.uri", f"{uri} is not open; send textDocument/didOpen first"
            )
        return document

    def file_of(self, uri: str) -> str | None:
        """The absolute path of a document that is a file."""
        return _path_of(uri) if uri.startswith("file:") else None

    def add_folders(self, folders: Iterable[PurePath]) -> None:
        """Folders that the client works in."""
        for folder in folders:
            if folder not in self.folders:
                self.folders.append(folder)
                if self.services.config.workspace.context != "off":
                    self.view.add_folder(Path(folder))

    def remove_folders(self, folders: Iterable[PurePath]) -> None:
        """Folders that the client does not work in any more; no file of theirs is read again."""
        for folder in folders:
            if folder in self.folders:
                self.folders.remove(folder)
                self.view.remove_folder(Path(folder))

    def path_of(self, uri: str) -> str | None:
        """How a prompt names a document: its path in the workspace, or else its bare name, so
        that no prompt holds where the user's home is."""
        found = self.file_of(uri)
        return _name_in(found, tuple(self.folders)) if found is not None else None

    def wait_for_model(self) -> None:
        """Settle what goes along with prompts once it is known which model they are for."""
        if self._waiting is None and self.services.engine.status().state == "loading":
            self._waiting = asyncio.create_task(self._settle_when_ready(), name="model")

    async def _settle_when_ready(self) -> None:
        # A model that never comes is told of by whoever asks for it.
        with contextlib.suppress(NotReady):
            await self.services.engine.ready()
            self.view.settle()

    def completion_at(self, document: Document, start: Place, end: Place) -> CompletionRequest:
        """A request to fill what is between two places of a document."""
        services = self.services
        distance = reach(services.config.completion)
        return CompletionRequest(
            prefix=document.before(*start, distance),
            suffix=document.after(*end, distance),
            path=self.path_of(document.uri),
            shown=self.view.shown(document.uri),
            shown_tokens=services.config.workspace.context_tokens,
        )

    def _warm(self, uri: str, place: Place | None) -> None:
        """Compute the likely next prompt of a document ahead: as far as it is the same anywhere in
        it, or where typing paused."""
        document, file, services = self.documents.get(uri), self.file_of(uri), self.services
        if document is None or file is None or not services.config.workspace.warm:
            return
        if services.engine.status().state != "ready" or self.view.withheld(file):
            return
        at = place or (0, 0)
        request = self.completion_at(document, at, at)
        if place is None and not request.shown.files:
            return
        prompt = prompt_of(services.engine, services.config.completion, request)
        self.warmth.warm(uri, prompt, stable=place is None)

    def make_current(self, uri: str, request: OpenRequest) -> None:
        """`request` is now the one whose answer is about `uri`; an older one is withdrawn."""
        self.drop_current(uri)
        self._current[uri] = request

    def drop_current(self, uri: str) -> None:
        """What was asked about `uri` is about a text that is gone."""
        if (request := self._current.pop(uri, None)) is not None:
            request.withdraw()

    def answer(self, request: OpenRequest, body: bytes) -> None:
        """Send `request`'s answer, unless it has had one."""
        if self.open.get(request.id) is not request:
            return
        del self.open[request.id]
        for uri, current in list(self._current.items()):
            if current is request:
                del self._current[uri]
        self._outbox.send(body)

    def next_id(self) -> str:
        """For a request or a token of ours; no other one of this connection has it."""
        return f"pillion-{next(self._ids)}"

    async def ask(self, method: str, params: object) -> Any:
        """Send a request to the client and wait for its result. Raises RpcError where it answers
        with an error, or goes away."""
        request_id = self.next_id()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[request_id] = answer
        try:
            self._outbox.send(request_message(request_id, method, _CONVERTER.unstructure(params)))
            return await answer
        finally:
            del self._asked[request_id]

    def receive(self, response: Response) -> None:
        """Hand a client's answer to whoever asked; one to nothing is ignored."""
        answer = self._asked.get(response.id) if response.id is not None else None
        if answer is None or answer.done():
            return
        if response.error is not None:
            answer.set_exception(RpcError(REQUEST_FAILED, f"the editor says: {response.error}"))
        else:
            answer.set_result(response.result)

    def follow(self, name: str, watch: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run `watch` until the client is gone; once, however often it asks."""
        if name not in self._following:
            self._following[name] = asyncio.create_task(watch(), name=name)

    def close(self) -> None:
        """The client is gone: nobody answers any more."""
        for task in self._following.values():
            task.cancel()
        for answer in self._asked.values():
            answer.cancel()
        self.view.close()
        self.warmth.close()
        self.suggestions.close()
        if self._waiting is not None:
            self._waiting.cancel()

    def plain(self, value: object) -> Any:
        """An lsprotocol object as JSON types."""
        return _CONVERTER.unstructure(value)

    def notify(self, method: str, params: object) -> None:
        self._outbox.send(notification_message(method, _CONVERTER.unstructure(params)))

    def show_to_client(self, kind: types.MessageType, message: str) -> None:
        """Show the user a sentence."""
        self.notify(types.WINDOW_SHOW_MESSAGE, types.ShowMessageParams(kind, message))

    def log_to_client(self, kind: types.MessageType, message: str) -> None:
        """Put a line in the editor's log of this server."""
        self.notify(types.WINDOW_LOG_MESSAGE, types.LogMessageParams(kind, message))
