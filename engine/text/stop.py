"""Stop strings in streamed text."""

from __future__ import annotations


class StopMatcher:
    """Finds the first of several stop strings in text that arrives in pieces.

    The earliest match wins; of two that start at the same character, the longest. That rule is
    about the whole text, so the result does not depend on where the pieces were cut. Text that
    could still turn out to begin a stop string is held back, so what was emitted never has to be
    taken back. After a hit nothing more is emitted.

    stops: non-empty strings; none of them is part of the emitted text. hit: the one found, if any.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.hit: str | None = None

    def feed(self, text: str) -> tuple[str, str | None]:
        """Add `text`; return what is now certain, and the stop string if one was reached."""
        if self.hit is not None:
            return "", self.hit
        return self._scan(self._held + text, more=True)

    def flush(self) -> str:
        """The text ended: return what is left before a stop string (`hit` says if there is one)."""
        if self.hit is not None:
            return ""
        return self._scan(self._held, more=False)[0]

    def _scan(self, text: str, *, more: bool) -> tuple[str, str | None]:
        self._held = ""
        for start in range(len(text)) if self._stops else ():
            found = [stop for stop in self._stops if text.startswith(stop, start)]
            if more and any(self._may_complete(stop, text, start) for stop in self._stops):
                self._held = text[start:]
                return text[:start], None
            if found:
                self.hit = max(found, key=len)
                return text[:start], self.hit
        return text, None

    @staticmethod
    def _may_complete(stop: str, text: str, start: int) -> bool:
        rest = len(text) - start
        return rest < len(stop) and stop.startswith(text[start:])
