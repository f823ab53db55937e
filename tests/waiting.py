"""Waiting for a state, with a bound that only a broken test reaches."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Return once `condition()` is true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110, what is waited for has no event
            await asyncio.sleep(0.002)
