"""Exactness goes on being proven in idle time: a past reply is decoded again, target-only, and
its token hash must be the same. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from engine.messages import Finished, GenerateRequest, Priority

# One replay a minute, of replies that are short enough to be redone without heating a laptop.
SECONDS_BETWEEN = 60.0
LONGEST_REPLY = 256


class Audit:
    """Remembers the latest reply that used drafts and hands it out when asked for work."""

    def __init__(
        self,
        seconds_between: float = SECONDS_BETWEEN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds_between = seconds_between
        self.difference = ""
        self._clock = clock
        self._next_at = clock()
        self._candidate: tuple[GenerateRequest, Finished] | None = None
        self._running: tuple[GenerateRequest, Finished] | None = None

    def consider(self, request: GenerateRequest, finished: Finished) -> None:
        """Remember a reply if there is something to prove about it."""
        drafted = finished.accepted + finished.rejected > 0
        whole = finished.finish_reason != "cancelled"
        if drafted and whole and len(finished.tokens) <= LONGEST_REPLY:
            self._candidate = (request, finished)

    def next(self) -> GenerateRequest | None:
        """The replay to run now, or None."""
        if self._candidate is None or self._running or self._clock() < self._next_at:
            return None
        self._running, self._candidate = self._candidate, None
        request, finished = self._running
        self._next_at = self._clock() + self.seconds_between
        return msgspec.structs.replace(
            request,
            id=f"audit of {request.id}",
            seed=finished.seed,
            max_tokens=len(finished.tokens),
            draft=False,
            priority=Priority.IDLE,
            margins=False,
        )

    @property
    def waits(self) -> float | None:
        """Seconds until the next replay is due; None if there is nothing to replay."""
        if self._candidate is None:
            return None
        return max(0.0, self._next_at - self._clock())

    def owns(self, request_id: str) -> bool:
        return self._running is not None and request_id == f"audit of {self._running[0].id}"

    def settle(self, replay: Finished) -> bool | None:
        """Whether the replay gave the same tokens; None if it was cut short."""
        assert self._running is not None
        request, original = self._running
        self._running = None
        if replay.finish_reason == "cancelled":
            return None
        if replay.token_hash == original.token_hash:
            return True
        pairs = enumerate(zip(original.tokens, replay.tokens, strict=False))
        part = next((i for i, (a, b) in pairs if a != b), len(replay.tokens))
        self.difference = f"reply {request.id} parts from serial decoding at token {part + 1}"
        return False

    def drop(self) -> None:
        """The replay failed; nothing was proven."""
        self._running = None
