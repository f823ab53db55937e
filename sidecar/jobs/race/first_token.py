"""How soon a server's first token comes: to a prompt it has never seen, to an agent's next turn,
and to the same turn after it was started again."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct

from engine import PillionError
from sidecar.jobs.race.contenders import Served
from sidecar.jobs.race.tasks import first_turn, second_turn

REPLY_TOKENS = 8
# Idle time, in which a server may write down what it has computed.
PAUSE_SECONDS = 2.0

Start = Callable[[], Awaitable[Served]]


class FirstToken(Struct, frozen=True, kw_only=True):
    """Seconds to the first token, of one conversation. started: until the server was ready again,
    which is not in `restart`. prompt_tokens: of the first and the second turn, as it counts."""

    name: str
    cold: float
    second_turn: float
    restart: float
    started: float
    prompt_tokens: tuple[int, int] = (0, 0)


async def first_token(
    server: Served, start: Start, number: int, pause: float = PAUSE_SECONDS
) -> tuple[FirstToken, Served]:
    """One conversation and a restart; and the server that runs now. number: see `first_turn`.

    Raises PillionError; then no server runs.
    """
    # What a benchmark of decoding turns off is on in use.
    server = dataclasses.replace(server, more=in_use(server))
    try:
        cold = await server.chat(first_turn(number), REPLY_TOKENS)
        follows = second_turn(number, cold.text)
        second = await server.chat(follows, REPLY_TOKENS)
        await asyncio.sleep(pause)
    except PillionError:
        await server.stop()
        raise
    await server.stop()
    began = time.perf_counter()
    again = await start()
    started = time.perf_counter() - began
    try:
        asked = dataclasses.replace(again, more=in_use(again))
        restart = await asked.chat(follows, REPLY_TOKENS)
    except PillionError:
        await again.stop()
        raise
    found = FirstToken(
        name=server.name,
        cold=cold.first,
        second_turn=second.first,
        restart=restart.first,
        started=started,
        prompt_tokens=(cold.prompt_tokens or 0, second.prompt_tokens or 0),
    )
    return found, again


def in_use(server: Served) -> dict[str, object]:
    """The server's request fields without those that turn its prompt cache off."""
    return {name: value for name, value in server.more.items() if name != "cache_prompt"}
