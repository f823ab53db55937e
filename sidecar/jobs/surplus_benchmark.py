"""Surplus live: the same replies target-only, always drafted and drafted while that pays, side by
side in one run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from engine import EngineClient, Finished, GenerateRequest
from sidecar.jobs.coding_prompts import MIXED, PROMPTS, CodingPrompt

NEVER, ALWAYS, SURPLUS = "target-only", "always drafted", "by surplus"
SYSTEMS = (NEVER, ALWAYS, SURPLUS)
AGENT = "agent reply"
# Of a task whose replies are short, more of them.
VARIANTS = {"tool calls": 3}
# An agent's reply has several parts.
AGENT_TOKENS = 3
TASKS: Mapping[str, tuple[str, ...]] = {
    "rewrite": ("rename_total", "rename_jobs", "begun_data"),
    "new code": ("median", "retry"),
    "chat": ("explain", "advice"),
    "tool calls": ("open_file", "find_uses", "run_tests"),
    AGENT: tuple(prompt.name for prompt in MIXED),
}

# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
_T95_MANY = 2.0


class Ratio(Struct, frozen=True, kw_only=True):
    """A speed against another's, from paired repeats: the geometric mean and its 95 % interval
    (the same three times when there is one repeat)."""

    mean: float
    low: float
    high: float


class SurplusRow(Struct, frozen=True, kw_only=True):
    """One task. tok_s: medians by system. The ratios are of speeds. exact: all systems' replies
    are the same, token for token. tokens: of one repeat."""

    task: str
    tok_s: dict[str, float]
    vs_never: Ratio
    vs_always: Ratio
    exact: bool
    tokens: int


class SurplusFigures(Struct, frozen=True, kw_only=True):
    """Ratios of speed."""

    live_worst_vs_target_only: float
    live_mixed_vs_always_draft: float
    live_mixed_vs_never_draft: float


class SurplusBenchmark:
    """Repeats are interleaved, and so are the systems within each: what slows the machine down
    slows all alike. One repeat more than counted warms up and lets the engine learn.

    max_tokens: of a reply, `AGENT_TOKENS` times that of an agent's.
    """

    def __init__(self, client: EngineClient, *, max_tokens: int) -> None:
        self._client = client
        self._max_tokens = max_tokens
        self.mixed: list[Finished] = []
        """The last repeat's agent replies, by surplus, explained."""

    def steps(self, repeat: int) -> int:
        """How often `measure` calls `advance`."""
        return (repeat + 1) * len(TASKS)

    async def measure(self, repeat: int, advance: Callable[[], None]) -> list[SurplusRow]:
        by_name = {prompt.name: prompt for prompt in (*PROMPTS, *MIXED)}
        replies: dict[tuple[str, str], list[list[Finished]]] = {}
        for turn in range(repeat + 1):
            for task, names in TASKS.items():
                # Whoever comes first finds other caches and another clock; take turns.
                order = SYSTEMS[turn % 3 :] + SYSTEMS[: turn % 3]
                for system in order:
                    made = [
                        await self._reply(by_name[name].variant(number), system)
                        for name in names
                        for number in range(VARIANTS.get(task, 1))
                    ]
                    replies.setdefault((task, system), []).append(made)
                advance()
        self.mixed = replies[AGENT, SURPLUS][-1]
        return [self._row(task, {s: replies[task, s] for s in SYSTEMS}) for task in TASKS]

    async def _reply(self, prompt: CodingPrompt, system: str) -> Finished:
        rendered = await prompt.render(self._client)
        request = GenerateRequest(
            id=self._client.new_id("bench"),
            prompt=rendered.tokens,
            stop_token_ids=rendered.stop_token_ids,
            grammar=rendered.grammar,
            max_tokens=self._max_tokens * (AGENT_TOKENS if prompt.mixed else 1),
            draft=system != NEVER,
            policy="always" if system == ALWAYS else "surplus",
            explain=system == SURPLUS,
        )
        async with self._client.generate(request) as reply:
            return await reply.finished()

    def _row(self, task: str, replies: Mapping[str, Sequence[Sequence[Finished]]]) -> SurplusRow:
        speeds = {
            system: [_tokens_per_second(made) for made in repeats[1:]]
            for system, repeats in replies.items()
        }
        truth = [reply.tokens for reply in replies[NEVER][0]]
        return SurplusRow(
            task=task,
            tok_s={system: round(statistics.median(each), 2) for system, each in speeds.items()},
            vs_never=ratio(speeds[SURPLUS], speeds[NEVER]),
            vs_always=ratio(speeds[SURPLUS], speeds[ALWAYS]),
            exact=all(
                [reply.tokens for reply in made] == truth
                for repeats in replies.values()
                for made in repeats
            ),
            tokens=sum(map(len, truth)),
        )


def surplus_live_figures(rows: Sequence[SurplusRow]) -> SurplusFigures:
    """Of all rows."""
    mixed = next(row for row in rows if row.task == AGENT)
    return SurplusFigures(
        live_worst_vs_target_only=min(row.vs_never.mean for row in rows),
        live_mixed_vs_always_draft=mixed.vs_always.mean,
        live_mixed_vs_never_draft=mixed.vs_never.mean,
    )


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Of two systems' speeds in the same repeats."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True) if a and b] or [0.0]
    mean, spread = statistics.fmean(logs), 0.0
    if len(logs) > 1:
        freedom = len(logs) - 1
        t = _T95[freedom - 1] if freedom <= len(_T95) else _T95_MANY
        spread = t * statistics.stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (round(math.exp(mean + x), 4) for x in (-spread, 0.0, spread))
    return Ratio(mean=middle, low=low, high=high)


def _tokens_per_second(replies: Sequence[Finished]) -> float:
    """The first token of each comes from its prefill and is not counted."""
    seconds = sum(reply.decode_ms for reply in replies) / 1e3
    return sum(len(reply.tokens) - 1 for reply in replies) / seconds if seconds else 0.0
