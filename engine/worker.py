"""A thread that is asked from an event loop, for calls that are short.

`ThreadPoolExecutor` with `run_in_executor` takes three times as long for a call that does nothing
(175 us, this one 55 us, on two cores of a Xeon), which is most of what a keystroke's prompt costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from engine.errors import EngineError

_Job = tuple[asyncio.Future[Any], Callable[[], Any]]


class Worker:
    """One call after the other, in order. The thread starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False

    async def run(self, call: Callable[[], Any]) -> Any:
        """What `call` returns or raises. A call whose task is cancelled before its turn is left
        out. Raises EngineError behind `stop`."""
        if self._stopped:
            raise EngineError(f"the {self._name} thread was stopped")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._jobs.put((answer, call))
        return await answer

    def stop(self) -> None:
        """End the thread behind what it is asked already. Idempotent; returns at once."""
        self._stopped = True
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            answer, call = job
            if answer.cancelled():
                continue
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            # A closed loop has nobody left to tell.
            with contextlib.suppress(RuntimeError):
                answer.get_loop().call_soon_threadsafe(_tell, answer, result, error)


def _tell(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.cancelled():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
