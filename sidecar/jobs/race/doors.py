"""What the doors cost: the same reply of the same engine, asked for in the process, over HTTP, and
over JSON-RPC."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from engine import EngineClient, GenerateRequest
from sidecar.config import CompletionConfig
from sidecar.jobs.coding_prompts import INVOICE, SETTINGS
from sidecar.jobs.completion import CompletionRequest, complete
from sidecar.jobs.race.chat_stream import stream_chat
from sidecar.jobs.race.contenders import REPLY_SECONDS
from sidecar.jobs.race.tasks import Task

# Of short replies: many pairs tell more than long ones.
PAIRS_A_REPEAT = 5
HTTP, JSON_RPC = "HTTP", "JSON-RPC"
Call = Callable[[str, Mapping[str, Any]], dict[str, Any]]
Way = Callable[[], Awaitable[float]]


class DoorOverhead(Struct, frozen=True, kw_only=True):
    """in_process, through_door: medians of decoded tokens a second, target-only; what the door does
    counts as decoding, what the engine says that prefill and queue took does not. share: of the
    speed that is lost, the median of the pairs, with its 95 % interval."""

    door: str
    in_process: float
    through_door: float
    share: float
    low: float
    high: float
    pairs: int


async def door_overheads(
    client: EngineClient,
    tasks: Sequence[Task],
    *,
    port: int,
    api_key: str | None,
    call: Call,
    max_tokens: int,
    repeat: int,
) -> list[DoorOverhead]:
    """client: the engine behind both doors. call: a method of the JSON-RPC door, blocking."""
    found = []
    for door, ways in (
        (HTTP, [_chat(client, task, port, api_key, max_tokens) for task in tasks]),
        (JSON_RPC, [_completion(client, code, call, max_tokens) for code in (INVOICE, SETTINGS)]),
    ):
        inside: list[float] = []
        outside: list[float] = []
        for number in range(repeat * PAIRS_A_REPEAT + 1):
            for in_process, through_door in ways:
                # The two of a pair follow each other at once, so that the machine is the same, and
                # take turns: what comes second may find warmer caches.
                first, second = (in_process, through_door), (through_door, in_process)
                speeds = [await way() for way in (first if number % 2 else second)]
                if number:
                    inside.append(speeds[0 if number % 2 else 1])
                    outside.append(speeds[1 if number % 2 else 0])
        found.append(overhead(door, inside, outside))
    return found


def overhead(door: str, inside: Sequence[float], outside: Sequence[float]) -> DoorOverhead:
    """From speeds of the same replies, in pairs."""
    low, middle, high = median_interval([o / i for o, i in zip(outside, inside, strict=True)])
    return DoorOverhead(
        door=door,
        in_process=round(statistics.median(inside), 2),
        through_door=round(statistics.median(outside), 2),
        share=round(1 - middle, 4),
        low=round(1 - high, 4),
        high=round(1 - low, 4),
        pairs=len(inside),
    )


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median between the order statistics that hold the true one in 95 of 100 cases, whatever
    the distribution: one pair that something else disturbed does not widen it as it does a mean's.
    With fewer than six values that is all of them."""
    ordered = sorted(values)
    count = len(ordered)
    outside = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[outside], statistics.median(ordered), ordered[count - 1 - outside]


def _chat(
    client: EngineClient, task: Task, port: int, api_key: str | None, max_tokens: int
) -> tuple[Way, Way]:
    async def in_process() -> float:
        began = time.perf_counter()
        prompt = await client.chat(list(task.messages))
        request = GenerateRequest(
            id=client.new_id("door"), prompt=prompt.tokens, max_tokens=max_tokens, draft=False
        )
        async with client.generate(request) as reply:
            made = await reply.finished()
        before = (made.queue_ms + made.prefill_ms) / 1e3
        return (len(made.tokens) - 1) / (time.perf_counter() - began - before)

    async def through_door() -> float:
        streamed = await asyncio.to_thread(
            stream_chat,
            port,
            task.messages,
            model="default",
            max_tokens=max_tokens,
            more={"draft": False},
            api_key=api_key,
            seconds=REPLY_SECONDS,
        )
        facts = streamed.facts["pillion"]
        before = (facts["queue_ms"] + facts["prefill_ms"]) / 1e3
        return float((streamed.tokens - 1) / (streamed.whole - before))

    return in_process, through_door


def _completion(client: EngineClient, code: str, call: Call, max_tokens: int) -> tuple[Way, Way]:
    config = CompletionConfig()
    prefix = f"{code}\n\ndef report(rows):\n    # Sum up the rows and print a line for each.\n"

    async def in_process() -> float:
        began = time.perf_counter()
        request = CompletionRequest(
            prefix=prefix, max_tokens=max_tokens, multiline="always", draft=False
        )
        made = (await complete(client, config, request)).finished
        assert made is not None
        before = (made.queue_ms + made.prefill_ms) / 1e3
        return (len(made.tokens) - 1) / (time.perf_counter() - began - before)

    async def through_door() -> float:
        asked = {
            "prefix": prefix,
            "maxTokens": max_tokens,
            "multiline": "always",
            "draft": False,
        }
        began = time.perf_counter()
        made = await asyncio.to_thread(call, "pillion/complete", asked)
        took = time.perf_counter() - began
        before = (made["queue_ms"] + made["prefill_ms"]) / 1e3
        return float((made["completion_tokens"] - 1) / (took - before))

    return in_process, through_door
