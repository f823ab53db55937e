"""Whose turn it is. Pure: ids and priorities in, an id out.

One turn is one prefill chunk or one decode round, so an INTERACTIVE request waits for at most one
of them. Requests of one priority take turns, so a short one (a title) is not stuck behind a long
one. Nobody's turn is spent on waiting while somebody else could go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine.errors import Overloaded
from engine.messages import Priority


class Scheduler:
    """max_active: AGENT requests that hold caches at once, and IDLE ones beside fewer of them;
    INTERACTIVE ones always may. max_queue: AGENT and IDLE requests waiting behind them before
    `Overloaded`, and INTERACTIVE ones that are open."""

    def __init__(self, max_active: int, max_queue: int) -> None:
        self._max_active = max_active
        self._max_queue = max_queue
        self._active: dict[Priority, deque[str]] = {p: deque() for p in Priority}
        self._waiting: dict[Priority, deque[str]] = {p: deque() for p in Priority}
        self._priority: dict[str, Priority] = {}

    def add(self, request_id: str, priority: Priority) -> None:
        """Raises Overloaded (nothing is queued then)."""
        if priority is Priority.INTERACTIVE:
            before, what = self._open(priority), "keystrokes' requests are open"
        else:
            # What others wait for is no reason to refuse a keystroke, which waits for none of them.
            before = sum(len(self._waiting[p]) for p in Priority if p > Priority.INTERACTIVE)
            what = "requests are waiting"
        if before >= self._max_queue:
            raise Overloaded(
                f"{before} {what} already ([engine] max_queue = {self._max_queue}); try again in a "
                "moment"
            )
        self._priority[request_id] = priority
        self._waiting[priority].append(request_id)

    def change(self, request_id: str, priority: Priority) -> None:
        """Let an open request wait for more than it did, or for less; unknown ids are ignored."""
        before = self._priority.get(request_id)
        if before is None or before is priority:
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

    def pick(self, waits: Callable[[str], bool] = lambda _id: False) -> str | None:
        """The request to advance by one turn; None when there is nothing to do.

        waits: whether a request cannot go on yet (its prefix comes from disk). The others have
        their turns meanwhile, but not the IDLE ones: nobody misses a chunk of theirs, and it could
        be what the disk's answer is kept waiting for. Where all of them wait it is one of those.
        """
        self._admit()
        waiting = None
        for priority in Priority:
            if priority is Priority.IDLE and waiting is not None:
                break
            turns = self._active[priority]
            for _ in range(len(turns)):
                turns.rotate(-1)
                if not waits(turns[-1]):
                    return turns[-1]
                waiting = waiting or turns[-1]
        return waiting

    def _admit(self) -> None:
        for priority in Priority:
            waiting = self._waiting[priority]
            while waiting and self._has_room(priority):
                self._active[priority].append(waiting.popleft())

    def _has_room(self, priority: Priority) -> bool:
        """An AGENT request waits for no IDLE one."""
        agents, idle = len(self._active[Priority.AGENT]), len(self._active[Priority.IDLE])
        match priority:
            case Priority.INTERACTIVE:
                return True
            case Priority.AGENT:
                return agents < self._max_active
            case Priority.IDLE:
                return agents + idle < self._max_active

    def _open(self, priority: Priority) -> int:
        return len(self._active[priority]) + len(self._waiting[priority])

    @property
    def active(self) -> int:
        return sum(map(len, self._active.values()))

    @property
    def queued(self) -> int:
        return sum(map(len, self._waiting.values()))
