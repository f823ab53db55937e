"""What a refactor made of one file, and how a client gets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from sidecar.edits.hunks import Hunk, apply_hunks
from sidecar.edits.text_file import TextFile
from sidecar.edits.writable_root import Refused, sha256

State = Literal["changed", "unchanged", "refused"]


class FileResult(Struct, frozen=True, kw_only=True):
    """What became of a file. text: the whole of it afterwards, where it changed. before: SHA-256 of
    the bytes it was made from. notes: what was left as it is in a file that changed.
    seconds: of decoding; tokens, rounds, accepted: of the model's answers."""

    path: str
    state: State
    reason: str = ""
    before: str = ""
    text: str = ""
    hunks: tuple[Hunk, ...] = ()
    notes: tuple[str, ...] = ()
    decided: int = 0
    tokens: int = 0
    rounds: int = 0
    accepted: int = 0
    cached: int = 0
    prompt: int = 0
    seconds: float = 0.0
    exact: bool = True


def wire(result: FileResult) -> dict[str, Any]:
    """A result as clients get it: they have the file, so hunks are enough. after: SHA-256 of the
    text in UTF-8."""
    facts: dict[str, Any] = msgspec.to_builtins(result)
    text = facts.pop("text")
    return facts | {"after": sha256(text.encode()) if result.state == "changed" else ""}


def changed_file(data: bytes, result: Mapping[str, Any]) -> TextFile:
    """The file that a changed `result` (see `wire`) makes of `data`. Raises Refused where it was
    made from other bytes."""
    if sha256(data) != result["before"]:
        raise Refused("was changed meanwhile")
    file = TextFile.of(data)
    made = file.with_text(apply_hunks(file.text, msgspec.convert(result["hunks"], list[Hunk])))
    if sha256(made.text.encode()) != result["after"]:
        raise Refused("is not what the daemon has read")
    return made
