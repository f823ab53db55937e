"""Decode speed of one model in several ways, side by side in one run: target-only, with each
drafter, and other implementations on the same weights and prompts."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from engine import EngineClient, Finished, GenerateRequest
from sidecar.jobs.coding_prompts import PROMPTS
from sidecar.jobs.peers import Run

TASKS = {
    "new code": ("median", "retry"),
    "rewrite this file with a rename": ("rename_total", "rename_jobs"),
    "tool call": ("open_file", "find_uses"),
    "chat": ("explain", "advice"),
}

TARGET_ONLY = "target-only"


class Row(Struct, frozen=True, kw_only=True):
    """One system on one task.

    tok_s: median over the repeats, of all the task's prompts together; prefill and the first token
    do not count. tokens_per_round: committed by a target forward, as published tables count
    accepted tokens. exact: every reply equals the target-only one, token for token.
    """

    system: str
    task: str
    tok_s: float
    tokens_per_round: float
    exact: bool
    tokens: int
    tok_s_repeats: tuple[float, ...]


class System(Protocol):
    """Something that decodes greedily."""

    @property
    def name(self) -> str: ...

    async def reply(self, prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool) -> Run: ...


@dataclass(frozen=True)
class Ours:
    """The engine behind `client`. drafters: see `GenerateRequest.drafters`; None is target-only."""

    name: str
    client: EngineClient
    drafters: tuple[str, ...] | None = ()

    async def reply(self, prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool) -> Run:
        request = GenerateRequest(
            id=self.client.new_id("bench"),
            prompt=tuple(prompt),
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            draft=self.drafters is not None,
            drafters=self.drafters or (),
        )
        async with self.client.generate(request) as reply:
            finished: Finished = await reply.finished()
        return Run(tokens=finished.tokens, seconds=finished.decode_ms / 1e3, rounds=finished.rounds)


class DecodeBenchmark:
    """Repeats are interleaved, so that a machine that slows down slows every system alike.

    systems: the first one's replies are what the others' must equal. ignore_eos: every reply gets
    `max_tokens`. cooldown: seconds before each turn, for a machine that gets hot.
    """

    def __init__(
        self,
        systems: Sequence[System],
        *,
        max_tokens: int,
        ignore_eos: bool = False,
        cooldown: float = 0.0,
    ) -> None:
        self._systems = systems
        self._max_tokens = max_tokens
        self._ignore_eos = ignore_eos
        self._cooldown = cooldown

    def steps(self, repeat: int) -> int:
        """How often `measure` calls `advance`; one more round than counted warms up."""
        return (repeat + 1) * len(self._systems) * len(TASKS)

    async def measure(
        self, client: EngineClient, repeat: int, advance: Callable[[], None]
    ) -> list[Row]:
        """Rows by task and then system. client: renders the prompts."""
        prompts = {task: await rendered(client, names) for task, names in TASKS.items()}
        runs: dict[tuple[str, str], list[list[Run]]] = {}
        for _ in range(repeat + 1):
            for task in TASKS:
                for system in self._systems:
                    await asyncio.sleep(self._cooldown)
                    replies = [await self._reply(system, prompt) for prompt in prompts[task]]
                    runs.setdefault((task, system.name), []).append(replies)
                    advance()
        return [self._row(task, system.name, runs) for task in TASKS for system in self._systems]

    def _row(self, task: str, system: str, runs: Mapping[tuple[str, str], list[list[Run]]]) -> Row:
        truth = [run.tokens for run in runs[task, self._systems[0].name][0]]
        repeats = runs[task, system]
        speeds = tuple(round(_tokens_per_second(replies), 2) for replies in repeats[1:])
        last = repeats[-1]
        return Row(
            system=system,
            task=task,
            tok_s=round(statistics.median(speeds), 2),
            tokens_per_round=round(_decoded(last) / max(1, sum(run.rounds for run in last)), 3),
            exact=all([run.tokens for run in replies] == truth for replies in repeats),
            tokens=sum(len(run.tokens) for run in last),
            tok_s_repeats=speeds,
        )

    async def _reply(self, system: System, prompt: Sequence[int]) -> Run:
        return await system.reply(prompt, self._max_tokens, ignore_eos=self._ignore_eos)


async def rendered(client: EngineClient, names: Sequence[str]) -> list[tuple[int, ...]]:
    """Prompts of `coding_prompts` by name, as token ids."""
    by_name = {prompt.name: prompt for prompt in PROMPTS}
    return [(await by_name[name].variant(0).render(client)).tokens for name in names]


def _decoded(replies: Sequence[Run]) -> int:
    """Tokens that decoding made: the first of each reply comes from its prefill."""
    return sum(len(run.tokens) - 1 for run in replies)


def _tokens_per_second(replies: Sequence[Run]) -> float:
    seconds = sum(run.seconds for run in replies)
    return _decoded(replies) / seconds if seconds else 0.0
