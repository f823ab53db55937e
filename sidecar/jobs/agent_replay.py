"""Recorded agents' requests asked again in order: what is computed, and how soon replies begin."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from engine import (
    Chunk,
    EngineClient,
    Failed,
    Finished,
    GenerateRequest,
    RequestError,
    error_of,
)
from sidecar.jobs.race.chat_stream import stream_chat
from sidecar.jobs.recorded_agents import Recorded

# A reply's first tokens are enough to tell whether it is the same.
REPLY_TOKENS = 8


class Asked(Struct, frozen=True, kw_only=True):
    """What became of a request. prompt, cached: tokens. seconds: from the request, its messages
    not rendered yet, to the first piece of the reply. tokens: of the reply; none where it is
    another implementation's."""

    prompt: int
    cached: int
    seconds: float
    tokens: tuple[int, ...] = ()


class Turn(Struct, frozen=True, kw_only=True):
    """One recorded request, asked of an engine with a cache, of one without, and, if it is the
    last of its session, of a new process on the cache that an earlier one left before it
    (restarted). turn: from 0. new: tokens of its prompt behind what it shares with the session's
    request before it."""

    agent: str
    session: int
    turn: int
    new: int
    warm: Asked
    cold: Asked
    restarted: Asked | None = None

    @property
    def same(self) -> bool:
        """Whether the cache changed nothing in the reply."""
        again = self.restarted or self.cold
        return self.warm.tokens == self.cold.tokens == again.tokens


async def ask(client: EngineClient, one: Recorded) -> Asked:
    """Ask as the HTTP door does, for a short greedy reply."""
    began, first = time.perf_counter(), 0.0
    prompt = await client.chat(one.messages, tools=one.tools or None)
    request = GenerateRequest(
        id=client.new_id("replay"),
        prompt=prompt.tokens,
        boundaries=prompt.boundaries,
        stop_token_ids=prompt.stop_token_ids,
        max_tokens=REPLY_TOKENS,
        seed=1,
    )
    async with client.generate(request) as reply:
        events: AsyncIterator[Any] = reply
        async for event in events:
            if isinstance(event, Chunk | Finished):
                first = first or time.perf_counter() - began
            if isinstance(event, Failed):
                raise error_of(event)
            if isinstance(event, Finished):
                return Asked(
                    prompt=event.prompt_tokens,
                    cached=event.cached_tokens,
                    seconds=first,
                    tokens=event.tokens,
                )
    raise AssertionError("a reply ends with Finished or Failed")


async def fitting(client: EngineClient, requests: Iterable[Recorded]) -> list[Recorded]:
    """Those whose prompts, as the model's template renders them, fit its context."""
    model = client.status().model
    context = model.context if model is not None else 0
    found: list[Recorded] = []
    for one in requests:
        try:
            prompt = await client.chat(one.messages, tools=one.tools or None)
        except RequestError:
            continue
        if len(prompt.tokens) + REPLY_TOKENS <= context:
            found.append(one)
    return found


async def replay(
    client: EngineClient, requests: Sequence[Recorded], step: Callable[[], None]
) -> list[Asked]:
    """All in order, through one engine."""
    answers = []
    for one in requests:
        answers.append(await ask(client, one))
        step()
    return answers


async def replay_both(
    cached: EngineClient,
    plain: EngineClient,
    requests: Sequence[Recorded],
    step: Callable[[], None],
) -> list[Turn]:
    """All in order, each by both engines, one right after the other: what else the machine does
    then slows both."""
    turns = []
    before: dict[tuple[str, int], tuple[int, ...]] = {}
    for one in requests:
        cold = await ask(plain, one)
        warm = await ask(cached, one)
        prompt = (await plain.chat(one.messages, tools=one.tools or None)).tokens
        known = _shared(before.get((one.agent, one.session), ()), prompt)
        before[one.agent, one.session] = prompt
        turns.append(
            Turn(
                agent=one.agent,
                session=one.session,
                turn=one.turn,
                new=len(prompt) - known,
                warm=warm,
                cold=cold,
            )
        )
        step()
    return turns


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def last_turns(requests: Sequence[Recorded]) -> list[int]:
    """Which requests are the last of a session that has more than one."""
    last: dict[tuple[str, int], int] = {}
    for index, one in enumerate(requests):
        if one.turn:
            last[one.agent, one.session] = index
    return sorted(last.values())


def turn_figures(turns: Sequence[Turn]) -> dict[str, float]:
    """Shares of what a prompt takes without a cache; of each agent's second and later turns."""
    figures: dict[str, float] = {"replayed": len(turns)}
    figures["replay_differences"] = sum(not one.same for one in turns)
    # What was computed of a session's later requests besides what is new in them.
    figures["replay_max_extra_tokens"] = max(
        (one.warm.prompt - one.warm.cached - one.new for one in turns if one.turn), default=0
    )
    for agent in dict.fromkeys(one.agent for one in turns):
        later = [one for one in turns if one.agent == agent and one.turn]
        if later:
            figures |= _shares(agent, [(one.warm, one.cold.seconds) for one in later])
    again = [(one.restarted, one.cold.seconds) for one in turns if one.restarted]
    if again:
        shares = _shares("restart", again)
        figures["restart_recomputed_share"] = shares["restart_recomputed_share"]
        figures["restart_ttft_over_cold"] = _ratio((one.seconds, cold) for one, cold in again)
    return figures


def _shares(name: str, asked: Sequence[tuple[Asked, float]]) -> dict[str, float]:
    """asked: with what each would have taken cold."""
    name = key_of(name)
    prompt = sum(one.prompt for one, _ in asked)
    computed = prompt - sum(one.cached for one, _ in asked)
    return {
        f"{name}_recomputed_share": round(computed / max(prompt, 1), 5),
        f"{name}_ttft_turn2_over_cold": _ratio((one.seconds, cold) for one, cold in asked),
    }


def key_of(name: str) -> str:
    """A name as figures have it."""
    return re.sub(r"\W", "_", name)


def _ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """The median of the ratios."""
    return round(statistics.median(one / other for one, other in pairs), 4)


def replay_elsewhere(
    port: int,
    model: str,
    requests: Sequence[Recorded],
    seconds: float,
    step: Callable[[], None],
    more: Mapping[str, Any] | None = None,
) -> list[Asked]:
    """The same requests, in order, to another implementation's server on loopback. seconds: for
    each. What it says of cached tokens is believed."""
    answers = []
    for one in requests:
        tools = {"tools": one.tools} if one.tools else {}
        reply = stream_chat(
            port,
            one.messages,
            model=model,
            max_tokens=REPLY_TOKENS,
            more={**tools, **(more or {})},
            seconds=seconds,
            wordless=True,
        )
        timings = reply.facts.get("timings") or {}
        prompt = reply.prompt_tokens or 0
        # llama.cpp counts them beside its times.
        cached = reply.cached_tokens or timings.get("cache_n") or 0
        answers.append(Asked(prompt=prompt, cached=cached, seconds=reply.first))
        step()
    return answers


def elsewhere_figures(
    name: str, requests: Sequence[Recorded], answers: Sequence[Asked], again: Asked | None = None
) -> dict[str, float]:
    """As `turn_figures`, of one agent. Cold is what the longest stretch that was computed took, by
    a prompt's length. again: the last request, asked first of a new process."""
    if not answers:
        return {}
    longest = max(answers, key=lambda one: one.prompt - one.cached)
    each = longest.seconds / max(longest.prompt - longest.cached, 1)
    later = [
        (answer, each * answer.prompt)
        for one, answer in zip(requests, answers, strict=True)
        if one.turn and answer.prompt
    ]
    if not later:
        return {}
    figures = _shares(f"{name}_{requests[0].agent}", later)
    if again is not None:
        figures[f"{key_of(name)}_restart_ttft_over_cold"] = _ratio(
            [(again.seconds, each * again.prompt)]
        )
    return figures
