"""Whose turn it is. Pure: ids and priorities in, an id out.

One turn is one prefill chunk or one decode round, so an INTERACTIVE request waits for at most one
of them. Requests of one priority take turns, so a short one (a title) is not stuck behind a long
one.
"""

from __future__ import annotations

from collections import deque

from engine.errors import Overloaded
from engine.messages import Priority


class Scheduler:
    """max_active: AGENT and IDLE requests that hold caches at once (INTERACTIVE ones always may).
    max_queue: requests waiting behind them before `Overloaded`."""

    def __init__(self, max_active: int, max_queue: int) -> None:
        self._max_active = max_active
        self._max_queue = max_queue
        self._active: dict[Priority, deque[str]] = {p: deque() for p in Priority}
        self._waiting: dict[Priority, deque[str]] = {p: deque() for p in Priority}
        self._priority: dict[str, Priority] = {}

    def add(self, request_id: str, priority: Priority) -> None:
        """Raises Overloaded (nothing is queued then)."""
        if self.queued >= self._max_queue:
            raise Overloaded(
                f"{self.queued} requests are waiting already ([engine] max_queue = "
                f"{self._max_queue}); try again in a moment"
            )
        self._priority[request_id] = priority
        self._waiting[priority].append(request_id)

    def lower(self, request_id: str, priority: Priority) -> None:
        """Let an open request wait for more than it did; unknown ids are ignored."""
        before = self._priority.get(request_id)
        if before is None or before >= priority:
            return
        self._priority[request_id] = priority
        for queues in (self._active, self._waiting):
            if request_id in queues[before]:
                queues[before].remove(request_id)
                queues[priority].append(request_id)

    def remove(self, request_id: str) -> None:
        """Forget a request that ended; unknown ids are ignored."""
        priority = self._priority.pop(request_id, None)
        if priority is None:
            return
        for queue in (self._active[priority], self._waiting[priority]):
            if request_id in queue:
                queue.remove(request_id)

    def pick(self) -> str | None:
        """The request to advance by one turn; None when there is nothing to do."""
        self._admit()
        for priority in Priority:
            turns = self._active[priority]
            if turns:
                turns.rotate(-1)
                return turns[-1]
        return None

    def _admit(self) -> None:
        for priority in Priority:
            waiting = self._waiting[priority]
            while waiting and (priority is Priority.INTERACTIVE or self._has_room()):
                self._active[priority].append(waiting.popleft())

    def _has_room(self) -> bool:
        held = len(self._active[Priority.AGENT]) + len(self._active[Priority.IDLE])
        return held < self._max_active

    @property
    def active(self) -> int:
        return sum(map(len, self._active.values()))

    @property
    def queued(self) -> int:
        return sum(map(len, self._waiting.values()))
