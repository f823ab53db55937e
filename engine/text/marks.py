"""Where tool calls begin and end in a reply."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Marks:
    """What a stretch of calls begins with, each with what ends it; without an end it is the
    reply's rest. first_only: nothing stands before it."""

    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    first_only: bool = False

    def closer(self, opener: str) -> str:
        return self.closes[self.opens.index(opener)] if self.closes else ""
