"""What a reply is made of, for those who do not know how a model writes it."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from engine.messages import ToolCall


class Reasoned(Struct, frozen=True):
    """A stretch of reasoning."""

    text: str


class Said(Struct, frozen=True):
    """A stretch of the answer."""

    text: str


class Unread(Struct, frozen=True):
    """Something that looks like a tool call and is none that can be made; it is also `Said`."""

    reason: str


Piece = Reasoned | Said | ToolCall | Unread


class PieceReader(Protocol):
    """Takes a reply apart while it is written."""

    @property
    def waiting(self) -> bool:
        """Whether text is held back because it may turn out to be a tool call."""

    @property
    def reasoning(self) -> bool:
        """Whether the next text is reasoning, as far as is known."""

    def feed(self, text: str) -> list[Piece]:
        """Take in what was written next; return what is now certain."""

    def finish(self, *, complete: bool) -> list[Piece]:
        """The reply is over, and `complete` unless it was cut short: return what is left."""
