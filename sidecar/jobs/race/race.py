"""Interleaved repeats of every task by every system, within a time that is set before."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine import PillionError
from sidecar.jobs.race.contenders import Contender, Measured
from sidecar.jobs.race.tasks import Task

# A system that takes longer than this for all tasks repeats them only while there is time.
QUICK_SECONDS = 30.0
_WARM_TOKENS = 4
NO_TIME = "there was no time left for it; --minutes allows more"

Runs = dict[tuple[str, str], dict[int, Measured]]


def entrants(passes: Mapping[str, float], rounds: int, seconds: float) -> list[str]:
    """Who takes part in the next round: everybody quick, and of the slow ones, in their order, as
    many as the time allows beside the quick ones' rounds that are left.

    passes: seconds that each took for all tasks the last time. rounds: left, with this one.
    """
    quick = [name for name, took in passes.items() if took <= QUICK_SECONDS]
    left = seconds - rounds * sum(passes[name] for name in quick)
    chosen = set(quick)
    for name, took in passes.items():
        if name not in chosen and took <= left:
            chosen.add(name)
            left -= took
    return [name for name in passes if name in chosen]


@dataclass
class Race:
    """runs: by system and task, and then by round. lost: why a system did not get to the end.
    taken: seconds of every system's last round. deadline: on `clock`; nobody is asked behind it."""

    tasks: Sequence[Task]
    max_tokens: int
    deadline: float = math.inf
    clock: Callable[[], float] = time.monotonic
    runs: Runs = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    taken: dict[str, float] = field(default_factory=dict)

    async def run(
        self,
        contenders: Sequence[Contender],
        repeat: int,
        each: Callable[[int], Awaitable[None]],
    ) -> None:
        """each: called behind every round, with its number."""
        by_name = {contender.name: contender for contender in contenders}
        for contender in contenders:
            await self._warm_up(contender)
        for number in range(repeat):
            names = list(by_name)
            if number:
                left = self.deadline - self.clock()
                names = entrants(self.taken, repeat - number, left) if left > 0 else []
            chosen = [by_name[name] for name in names if name not in self.lost]
            if not chosen:
                break
            await self._round(chosen, number)
            await each(number)

    async def _warm_up(self, contender: Contender) -> None:
        hello: Task | None = next((t for t in self.tasks if asked(contender, t)), None)
        if hello is not None:
            short = Task(
                name="warm-up",
                regime=hello.regime,
                messages=({"role": "user", "content": "Hello"},),
                prompt=hello.prompt[:8],
            )
            await self._turn(contender, short, _WARM_TOKENS)

    async def _round(self, contenders: Sequence[Contender], number: int) -> None:
        # Whoever comes first finds other caches and another clock; take turns.
        first = number % len(contenders)
        order = [*contenders[first:], *contenders[:first]]
        taken = dict.fromkeys((contender.name for contender in contenders), 0.0)
        for task in self.tasks:
            for contender in order:
                if contender.name in self.lost or not asked(contender, task):
                    continue
                if self.clock() > self.deadline:
                    self._out_of_time(contender)
                    continue
                tokens = self.max_tokens * task.length
                turn = await self._turn(contender, task, tokens)
                if turn is not None:
                    made, seconds = turn
                    taken[contender.name] += seconds
                    self.runs.setdefault((contender.name, task.name), {})[number] = made
        self.taken |= taken
        for name in self.lost:
            self.taken.pop(name, None)

    def _out_of_time(self, contender: Contender) -> None:
        if not any(name == contender.name for name, _ in self.runs):
            self.lost[contender.name] = NO_TIME

    async def _turn(
        self, contender: Contender, task: Task, max_tokens: int
    ) -> tuple[Measured, float] | None:
        began = self.clock()
        try:
            made = await contender.reply(task, max_tokens)
        except PillionError as error:
            self.lost[contender.name] = f"{task.name}: {error.message}"
            return None
        return made, self.clock() - began


def asked(contender: Contender, task: Task) -> bool:
    """Whether this system is measured on this task."""
    return contender.regimes is None or task.regime in contender.regimes
