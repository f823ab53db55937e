"""An engine in the verb's own process, for verbs that need no daemon."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

from engine import EngineClient
from sidecar.cli.terminal import Loading


@contextlib.asynccontextmanager
async def started(client: EngineClient, name: str) -> AsyncIterator[EngineClient]:
    """`client`, its model loaded, with progress meanwhile; stopped at the end.

    Raises NotReady, with the reason, when the model cannot be loaded.
    """
    client.start()
    try:
        with Loading.shown(f"loading {name}") as loading:
            while (status := client.status()).state == "loading":
                loading.show(status.detail, status.progress)
                # A change between the look above and this wait is seen a moment later.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(client.changed(), 0.2)
        await client.ready()
        yield client
    finally:
        await client.stop()


def cancelled_by_signals() -> None:
    """From now on the first signal cancels this task, and further ones are ignored: what it has
    started, it has to stop."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: task.cancelling() or task.cancel())
