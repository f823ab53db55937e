"""`initialize`, `initialized`, `shutdown`, `exit` and `$/cancelRequest`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from lsprotocol import types
from pygls.uris import to_fs_path

from sidecar.lsp.jsonrpc import INVALID_REQUEST, RpcError
from sidecar.lsp.params import (
    CancelParams,
    CancelProgressParams,
    DidChangeFoldersParams,
    InitializationOptions,
    InitializeParams,
    NoParams,
)
from sidecar.lsp.session import OpenRequest, Phase, Session
from sidecar.metrics import version
from sidecar.workspace.positions import Encoding

METHODS = (
    "pillion/complete",
    "pillion/edit",
    "pillion/explain",
    "pillion/refactor",
    "pillion/cache",
    "pillion/status",
    "pillion/shutdown",
)
NOTIFICATIONS = ("pillion/didChangeStatus",)
COMMANDS = ("pillion.edit", "pillion.refactor", "pillion.explain")
_ENCODINGS: tuple[Encoding, ...] = ("utf-8", "utf-16", "utf-32")


def initialize(
    session: Session, params: InitializeParams, request: OpenRequest
) -> types.InitializeResult:
    """Answers at once, whether or not the model is there yet."""
    if session.phase is not Phase.NEW:
        raise RpcError(INVALID_REQUEST, "this connection is initialized already")
    session.phase = Phase.RUNNING
    session.encoding = _choose_encoding(params)
    window, options = params.capabilities.window, params.initialization_options
    session.shows_progress = bool(window and window.work_done_progress)
    if isinstance(options, InitializationOptions):
        session.commands = frozenset(options.commands)
    session.add_folders(_folders(params))
    return types.InitializeResult(
        capabilities=types.ServerCapabilities(
            position_encoding=session.encoding,
            text_document_sync=types.TextDocumentSyncOptions(
                open_close=True, change=types.TextDocumentSyncKind.Incremental, save=True
            ),
            workspace=types.WorkspaceOptions(
                workspace_folders=types.WorkspaceFoldersServerCapabilities(
                    supported=True, change_notifications=True
                )
            ),
            inline_completion_provider=types.InlineCompletionOptions(),
            code_action_provider=types.CodeActionOptions(
                code_action_kinds=[
                    types.CodeActionKind.QuickFix,
                    types.CodeActionKind.RefactorRewrite,
                ],
                resolve_provider=True,
            ),
            execute_command_provider=types.ExecuteCommandOptions(
                commands=list(COMMANDS), work_done_progress=True
            ),
            experimental={
                "pillion": {"methods": list(METHODS), "notifications": list(NOTIFICATIONS)}
            },
        ),
        server_info=types.ServerInfo(name="pillion", version=version()),
    )


def initialized(session: Session, params: NoParams) -> None:
    """The client is ready for requests of ours; there are none yet."""


def shutdown(session: Session, params: NoParams, request: OpenRequest) -> None:
    """Ends this client's session, not the daemon: others are connected to it."""
    session.phase = Phase.SHUT_DOWN
    for other in list(session.open.values()):
        if other is not request:
            other.cancel()


def exit_connection(session: Session, params: NoParams) -> None:
    session.phase = Phase.EXITED


def cancel_request(session: Session, params: CancelParams) -> None:
    """A request that is unknown or was answered already is no error: the two may cross."""
    if (request := session.open.get(params.id)) is not None:
        request.cancel()


def cancel_progress(session: Session, params: CancelProgressParams) -> None:
    """The cancel button beside a progress bar: the request behind it is cancelled."""
    if (request := session.in_progress.get(params.token)) is not None:
        request.cancel()


def _choose_encoding(params: InitializeParams) -> Encoding:
    """The first of the client's that we know; it listed them in the order it likes them."""
    general = params.capabilities.general
    for offered in (general and general.position_encodings) or ():
        for known in _ENCODINGS:
            if offered == known:
                return known
    return "utf-16"


def did_change_folders(session: Session, params: DidChangeFoldersParams) -> None:
    """`workspace/didChangeWorkspaceFolders`."""
    session.remove_folders(_paths(folder.uri for folder in params.event.removed))
    session.add_folders(_paths(folder.uri for folder in params.event.added))


def _folders(params: InitializeParams) -> list[PurePath]:
    uris = [folder.uri for folder in params.workspace_folders or ()]
    if not uris and params.root_uri:
        uris = [params.root_uri]
    return _paths(uris)


def _paths(uris: Iterable[str]) -> list[PurePath]:
    paths = [to_fs_path(uri) for uri in uris if uri.startswith("file:")]
    return [PurePath(path) for path in paths if path]
