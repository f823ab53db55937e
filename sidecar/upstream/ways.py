"""How an upstream is asked for what not every one can do, and what else to try. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from engine import ContextLengthExceeded
from sidecar.upstream.connection import Refused
from sidecar.upstream.prompt import GapPrompt, Mode, Prompt


class Ways(Struct, frozen=True, kw_only=True):
    """gaps: see `Mode`. calls: for a call that has to be made, ``tool_choice``, or a ``schema`` of
    a reply that says which. prediction: it may be told what a reply will largely be."""

    gaps: Mode = "suffix"
    calls: Literal["tool_choice", "schema"] = "tool_choice"
    prediction: bool = True

    def changed(self, old: Ways, new: Ways) -> Ways:
        """With what is another in `new` than in `old`."""
        names = (field.name for field in msgspec.structs.fields(Ways))
        changes = {
            name: getattr(new, name) for name in names if getattr(new, name) != getattr(old, name)
        }
        return msgspec.structs.replace(self, **changes)


class NoCall(Refused):
    """A call had to be made, and the reply has none."""

    def __init__(self) -> None:
        super().__init__(
            "tool_choice: a call was asked for, and the upstream's reply makes none",
            field="tool_choice",
            code="unsupported_value",
        )


def other_ways(ways: Ways, prompt: Prompt, error: Refused) -> Ways | None:
    """What to try after `error`, if something is left."""
    if error.code == ContextLengthExceeded.code:
        return None
    if isinstance(error, NoCall):
        schema = msgspec.structs.replace(ways, calls="schema")
        return schema if ways.calls == "tool_choice" else None
    if ways.prediction and "prediction" in f"{error.field} {error.message}":
        return msgspec.structs.replace(ways, prediction=False)
    if isinstance(prompt, GapPrompt) and ways.gaps != "prefix":
        gaps: Mode = "suffix" if ways.gaps in ("infill", "tokens") else "prefix"
        return msgspec.structs.replace(ways, gaps=gaps)
    return None
