"""What clients send, as far as we read it. Unknown fields are ignored, wrong ones are named.

These are our own Structs rather than lsprotocol's classes because msgspec refuses a value of the
wrong type with the path to it; lsprotocol's converter turns ``"uri": 5`` into the text "5".
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from sidecar.lsp.jsonrpc import INVALID_PARAMS, RpcError
from sidecar.workspace.documents import Change
from sidecar.workspace.positions import Position, Range

P = TypeVar("P")

_MISSING = re.compile(r"Object missing required field `(.*?)`?")


class Params(Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of every params object; wire names are camelCase."""


class NoParams(Params, frozen=True, kw_only=True):
    """For methods that take nothing; whatever is sent is ignored."""


class GeneralCapabilities(Params, frozen=True, kw_only=True):
    position_encodings: list[str] | None = None


class WindowCapabilities(Params, frozen=True, kw_only=True):
    work_done_progress: bool | None = None


class ClientCapabilities(Params, frozen=True, kw_only=True):
    general: GeneralCapabilities | None = None
    window: WindowCapabilities | None = None


class InitializationOptions(Params, frozen=True, kw_only=True):
    """commands: of code actions that the client handles itself."""

    commands: list[str] = field(default_factory=list)


class WorkspaceFolder(Params, frozen=True, kw_only=True):
    uri: str


class InitializeParams(Params, frozen=True, kw_only=True):
    capabilities: ClientCapabilities = ClientCapabilities()
    root_uri: str | None = None
    workspace_folders: list[WorkspaceFolder] | None = None
    # Lua has one empty table for both.
    initialization_options: InitializationOptions | list[Any] | None = None


class CancelParams(Params, frozen=True, kw_only=True):
    id: int | str


class CancelProgressParams(Params, frozen=True, kw_only=True):
    token: int | str


class TextDocumentIdentifier(Params, frozen=True, kw_only=True):
    uri: str


class VersionedTextDocumentIdentifier(TextDocumentIdentifier, frozen=True, kw_only=True):
    version: int | None = None


class TextDocumentItem(TextDocumentIdentifier, frozen=True, kw_only=True):
    language_id: str = ""
    version: int = 0
    text: str


class DidOpenParams(Params, frozen=True, kw_only=True):
    text_document: TextDocumentItem


class DidChangeParams(Params, frozen=True, kw_only=True):
    text_document: VersionedTextDocumentIdentifier
    content_changes: list[Change]


class DidSaveParams(Params, frozen=True, kw_only=True):
    text_document: TextDocumentIdentifier


class WorkspaceFoldersChange(Params, frozen=True, kw_only=True):
    added: list[WorkspaceFolder] = field(default_factory=list)
    removed: list[WorkspaceFolder] = field(default_factory=list)


class DidChangeFoldersParams(Params, frozen=True, kw_only=True):
    event: WorkspaceFoldersChange


class DidCloseParams(Params, frozen=True, kw_only=True):
    text_document: TextDocumentIdentifier


class SelectedCompletionInfo(Params, frozen=True, kw_only=True):
    """The entry chosen in the editor's completion list, and what it would replace."""

    range: Range
    text: str


class InlineCompletionContext(Params, frozen=True, kw_only=True):
    trigger_kind: int = 1
    selected_completion_info: SelectedCompletionInfo | None = None


class InlineCompletionParams(Params, frozen=True, kw_only=True):
    text_document: TextDocumentIdentifier
    position: Position
    context: InlineCompletionContext = field(default_factory=InlineCompletionContext)


def read_params(params: Any, kind: type[P]) -> P:
    """`params` as a `kind`. Raises RpcError that names the field."""
    try:
        return msgspec.convert({} if params is None else params, kind)
    except msgspec.ValidationError as error:
        path, what = _complaint(str(error))
        raise invalid_params(path, what) from None


def invalid_params(path: str, what: str) -> RpcError:
    """The answer to params of the right types that still cannot be used."""
    return RpcError(
        INVALID_PARAMS, f"{path}: {what}", data={"code": "invalid_params", "field": path}
    )


def _complaint(message: str) -> tuple[str, str]:
    """(field, what is wrong with it), from msgspec's sentence."""
    what, _, path = message.removesuffix("`").partition(" - at `$")
    path = path.lstrip(".")
    if missing := _MISSING.fullmatch(what):
        return ".".join(filter(None, (path, missing[1]))), "is missing"
    return path or "params", what[:1].lower() + what[1:].replace("`", "")
