"""One client's connection: read messages, call the method, answer each request exactly once.

We use pygls' types and converter but not its protocol class, which is made for one client a
process: its `exit` ends the daemon, a change can overtake the request before it, ill-formed params
get no answer, a client that goes away or does not read is not noticed, and asking for a document
that is not open reads the disk. The tests beside this file are named after what we do instead.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from lsprotocol import types

from engine import NotReady, Overloaded, PillionError, RequestError
from sidecar.edits.writable_root import Refused
from sidecar.lsp import documents, lifecycle, params
from sidecar.lsp.code_action import CodeActionParams, ResolveParams, code_action, resolve
from sidecar.lsp.execute_command import ExecuteCommandParams, execute_command
from sidecar.lsp.framing import FrameReader, FramingError
from sidecar.lsp.inline_completion import inline_completion
from sidecar.lsp.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_INITIALIZED,
    PARSE_ERROR,
    REQUEST_FAILED,
    Notification,
    Request,
    RpcError,
    error_message,
    parse,
)
from sidecar.lsp.outbox import Outbox
from sidecar.lsp.params import NoParams, read_params
from sidecar.lsp.pillion_cache import CacheParams, pillion_cache
from sidecar.lsp.pillion_complete import CompleteParams, pillion_complete
from sidecar.lsp.pillion_edit import EditParams, pillion_edit
from sidecar.lsp.pillion_explain import ExplainParams, pillion_explain
from sidecar.lsp.pillion_refactor import RefactorParams, pillion_refactor
from sidecar.lsp.pillion_shutdown import pillion_shutdown
from sidecar.lsp.pillion_status import StatusParams, pillion_status
from sidecar.lsp.session import OpenRequest, Phase, Session
from sidecar.services import Services

MAX_OPEN_REQUESTS = 256

log = logging.getLogger(__name__)


class Method(NamedTuple):
    """handler: called while the message is read, in order. A request's returns the result, or a
    coroutine that will; it sees the documents as they were when the request came."""

    params: type[Any]
    handler: Callable[..., Any]


REQUESTS = {
    types.INITIALIZE: Method(params.InitializeParams, lifecycle.initialize),
    types.SHUTDOWN: Method(NoParams, lifecycle.shutdown),
    types.TEXT_DOCUMENT_INLINE_COMPLETION: Method(params.InlineCompletionParams, inline_completion),
    types.TEXT_DOCUMENT_CODE_ACTION: Method(CodeActionParams, code_action),
    types.CODE_ACTION_RESOLVE: Method(ResolveParams, resolve),
    types.WORKSPACE_EXECUTE_COMMAND: Method(ExecuteCommandParams, execute_command),
    "pillion/complete": Method(CompleteParams, pillion_complete),
    "pillion/edit": Method(EditParams, pillion_edit),
    "pillion/explain": Method(ExplainParams, pillion_explain),
    "pillion/refactor": Method(RefactorParams, pillion_refactor),
    "pillion/cache": Method(CacheParams, pillion_cache),
    "pillion/status": Method(StatusParams, pillion_status),
    "pillion/shutdown": Method(NoParams, pillion_shutdown),
}
NOTIFICATIONS = {
    types.INITIALIZED: Method(NoParams, lifecycle.initialized),
    types.EXIT: Method(NoParams, lifecycle.exit_connection),
    types.CANCEL_REQUEST: Method(params.CancelParams, lifecycle.cancel_request),
    types.WINDOW_WORK_DONE_PROGRESS_CANCEL: Method(
        params.CancelProgressParams, lifecycle.cancel_progress
    ),
    types.TEXT_DOCUMENT_DID_OPEN: Method(params.DidOpenParams, documents.did_open),
    types.TEXT_DOCUMENT_DID_CHANGE: Method(params.DidChangeParams, documents.did_change),
    types.TEXT_DOCUMENT_DID_SAVE: Method(params.DidSaveParams, documents.did_save),
    types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: Method(
        params.DidChangeFoldersParams, lifecycle.did_change_folders
    ),
    types.TEXT_DOCUMENT_DID_CLOSE: Method(params.DidCloseParams, documents.did_close),
}


async def serve_connection(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    services: Services,
    methods: Mapping[str, Method] = REQUESTS,
) -> None:
    """Serve one client until it says `exit` or is gone, then stop whatever it left running.

    Never raises, except CancelledError when the daemon itself ends it.
    """
    outbox = Outbox(writer)
    connection = Connection(outbox, services, methods)
    try:
        await connection.read(FrameReader(reader))
    except OSError as error:
        log.info("a client went away: %s", error)
    except Exception:
        log.exception("a connection broke")
    finally:
        await connection.close()
        await outbox.close()


class Connection:
    """Turns messages into calls, and what comes of them into answers."""

    def __init__(
        self, outbox: Outbox, services: Services, methods: Mapping[str, Method] = REQUESTS
    ) -> None:
        self._outbox = outbox
        self._services = services
        self._methods = methods
        self._session = Session(services, outbox)
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, frames: FrameReader) -> None:
        """Take messages until `exit` or the end of the stream."""
        while self._session.phase is not Phase.EXITED:
            try:
                body = await frames.next()
                if body is None:
                    return
                self._receive(body)
            except FramingError as error:
                self._outbox.send(error_message(RpcError(PARSE_ERROR, error.message)))
                if not error.resync:
                    log.warning("closing a connection: %s", error.message)
                    return
            except RpcError as error:
                self._outbox.send(error_message(error))
            # A client that sends without a pause must not starve the others.
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Cancel what is open and wait until it has let go of the engine."""
        for request in list(self._session.open.values()):
            request.cancel()
        self._session.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _receive(self, body: bytes) -> None:
        message = parse(body)
        if isinstance(message, Request):
            self._request(message)
        elif isinstance(message, Notification):
            self._notification(message)
        else:
            self._session.receive(message)

    def _request(self, message: Request) -> None:
        if message.id in self._session.open:
            raise RpcError(
                INVALID_REQUEST,
                f"id {message.id!r} is in use by an open request",
                request_id=message.id,
            )
        request = OpenRequest(self._session, message.id, message.method)
        self._session.open[message.id] = request
        try:
            method = self._method(message.method)
            outcome = method.handler(
                self._session, read_params(message.params, method.params), request
            )
        except Exception as error:
            request.error(self._answer_to(error, request))
            return
        if not inspect.iscoroutine(outcome):
            request.result(outcome)
            return
        request.task = asyncio.create_task(self._answer(request, outcome), name=message.method)
        self._tasks.add(request.task)
        request.task.add_done_callback(lambda task: self._done(request, task, outcome))

    async def _answer(self, request: OpenRequest, outcome: Coroutine[Any, Any, object]) -> None:
        # Here, and not when the task is done: that would be known one turn of the loop later.
        try:
            request.result(await outcome)
        except Exception as error:
            request.error(self._answer_to(error, request))

    def _method(self, name: str) -> Method:
        """Raises RpcError when the method is unknown, or not now."""
        phase = self._session.phase
        if phase is Phase.SHUT_DOWN:
            raise RpcError(INVALID_REQUEST, f"{name} came after shutdown; only exit may")
        # The API methods are also for scripts, which need no handshake.
        if phase is Phase.NEW and name != types.INITIALIZE and not name.startswith("pillion/"):
            raise RpcError(NOT_INITIALIZED, f"{name} came before initialize")
        if (method := self._methods.get(name)) is None:
            kind = "a notification, not a request" if name in NOTIFICATIONS else "not known here"
            raise RpcError(METHOD_NOT_FOUND, f"{name} is {kind}")
        if len(self._session.open) > MAX_OPEN_REQUESTS:
            raise Overloaded(f"{MAX_OPEN_REQUESTS} requests are open on this connection")
        return method

    def _done(
        self,
        request: OpenRequest,
        task: asyncio.Task[None],
        outcome: Coroutine[Any, Any, object],
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            outcome.close()  # where it was never begun
            request.cancel()

    def _notification(self, message: Notification) -> None:
        """Never answered, so what is wrong with one can only be logged."""
        method = NOTIFICATIONS.get(message.method)
        phase = self._session.phase
        if method is None:
            log.debug("ignoring %s", message.method)
        elif phase is Phase.RUNNING or message.method == types.EXIT:
            try:
                method.handler(self._session, read_params(message.params, method.params))
            except RpcError as error:
                log.warning("ignoring %s: %s", message.method, error.message)
        else:
            log.warning("ignoring %s: the connection is %s", message.method, phase.name.lower())

    def _answer_to(self, error: BaseException, request: OpenRequest) -> RpcError:
        """The one place where an exception becomes an answer."""
        match error:
            case RpcError():
                return error
            case Refused():
                return RpcError(REQUEST_FAILED, error.message, data={"code": error.code})
            case NotReady():
                progress = self._services.engine.status().progress
                data: dict[str, Any] = {"code": error.code, "progress": progress}
                return RpcError(REQUEST_FAILED, error.message, data=data)
            case Overloaded():
                return RpcError(REQUEST_FAILED, error.message, data={"code": error.code})
            case RequestError():
                data = {"code": error.code, "field": error.field}
                return RpcError(INVALID_PARAMS, error.message, data=data)
            case PillionError():
                return RpcError(INTERNAL_ERROR, error.message, data={"code": error.code})
            case _:
                log.error("%s failed", request.method, exc_info=error)
                return RpcError(
                    INTERNAL_ERROR, f"{request.method} failed; the daemon's log says why"
                )
