"""What the prefix cache saves: recorded agents, a line being typed, random branchings."""

from __future__ import annotations

import random
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from engine import EngineClient, Finished, GenerateRequest, Priority, RequestError, Segment
from sidecar.jobs.race.chat_stream import stream_chat
from sidecar.jobs.recorded_agents import Recorded

# A reply's first tokens are enough to tell whether it is the same.
REPLY_TOKENS = 8


class Turn(Struct, frozen=True, kw_only=True):
    """One recorded request. seconds: to the first token; cold_seconds: without a cache.
    restart_seconds: of the session's last request, asked first of a new process."""

    agent: str
    session: int
    turn: int
    prompt: int
    cached: int
    seconds: float
    cold_seconds: float
    same: bool
    restart_seconds: float | None = None
    restart_cached: int | None = None


class Asked(Struct, frozen=True, kw_only=True):
    """What one engine made of a request."""

    prompt: int
    cached: int
    seconds: float
    tokens: tuple[int, ...]


async def ask(client: EngineClient, one: Recorded) -> Asked:
    """Ask as the HTTP door does, for a short greedy reply. seconds: from when its turn began to the
    first token, decoding left out."""
    prompt = await client.chat(one.messages, tools=one.tools or None)
    request = GenerateRequest(
        id=client.new_id("replay"),
        prompt=prompt.tokens,
        boundaries=prompt.boundaries,
        stop_token_ids=prompt.stop_token_ids,
        max_tokens=REPLY_TOKENS,
        seed=1,
    )
    finished = await client.generate(request).finished()
    return Asked(
        prompt=finished.prompt_tokens,
        cached=finished.cached_tokens,
        seconds=finished.prefill_ms / 1e3,
        tokens=finished.tokens,
    )


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


def last_turns(requests: Sequence[Recorded]) -> list[int]:
    """Which requests are the last of a session that has more than one."""
    last: dict[tuple[str, int], int] = {}
    for index, one in enumerate(requests):
        if one.turn:
            last[one.agent, one.session] = index
    return sorted(last.values())


def turns(
    requests: Sequence[Recorded],
    warm: Sequence[Asked],
    cold: Sequence[Asked],
    restarted: dict[int, Asked],
) -> list[Turn]:
    """What the same requests cost with the cache, without it, and after a restart."""
    rows = []
    for index, (one, ours, without) in enumerate(zip(requests, warm, cold, strict=True)):
        again = restarted.get(index)
        same = ours.tokens == without.tokens and (again is None or again.tokens == without.tokens)
        rows.append(
            Turn(
                agent=one.agent,
                session=one.session,
                turn=one.turn,
                prompt=ours.prompt,
                cached=ours.cached,
                seconds=ours.seconds,
                cold_seconds=without.seconds,
                same=same,
                restart_seconds=again.seconds if again is not None else None,
                restart_cached=again.cached if again is not None else None,
            )
        )
    return rows


def turn_figures(rows: Sequence[Turn]) -> dict[str, float]:
    """Shares of what a prompt takes without a cache; of OpenCode's second and later turns."""
    figures: dict[str, float] = {"replayed": len(rows)}
    figures["replay_differences"] = sum(not row.same for row in rows)
    for agent in dict.fromkeys(row.agent for row in rows):
        later = [row for row in rows if row.agent == agent and row.turn]
        if not later:
            continue
        name, prompt = agent.replace("-", "_"), sum(row.prompt for row in later)
        computed = prompt - sum(row.cached for row in later)
        figures[f"{name}_recomputed_share"] = round(computed / prompt, 5)
        figures[f"{name}_ttft_turn2_over_cold"] = _ratio(
            (row.seconds, row.cold_seconds) for row in later
        )
    restarted = [(r.restart_seconds, r.cold_seconds) for r in rows if r.restart_seconds is not None]
    if restarted:
        figures["restart_ttft_over_cold"] = _ratio(restarted)
    return figures


def _ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """The median of the ratios."""
    return round(statistics.median(one / other for one, other in pairs), 4)


def replay_elsewhere(
    port: int, model: str, requests: Sequence[Recorded], seconds: float, step: Callable[[], None]
) -> list[Asked]:
    """The same requests, in order, to another implementation's server on loopback. seconds: for
    each. What it says of cached tokens is believed."""
    answers = []
    for one in requests:
        reply = stream_chat(
            port,
            one.messages,
            model=model,
            max_tokens=REPLY_TOKENS,
            more={"tools": one.tools} if one.tools else None,
            seconds=seconds,
        )
        prompt, cached = reply.prompt_tokens or 0, reply.cached_tokens or 0
        answers.append(Asked(prompt=prompt, cached=cached, seconds=reply.first, tokens=()))
        step()
    return answers


def elsewhere_figures(
    name: str, requests: Sequence[Recorded], answers: Sequence[Asked]
) -> dict[str, float]:
    """As `turn_figures`; cold is here the first request of each session, by its length."""
    first = {(r.agent, r.session): a for r, a in zip(requests, answers, strict=True) if not r.turn}
    later = [
        (answer, first[one.agent, one.session])
        for one, answer in zip(requests, answers, strict=True)
        if one.turn
    ]
    prompt = sum(answer.prompt for answer, _ in later)
    if not prompt:
        return {}
    computed = prompt - sum(answer.cached for answer, _ in later)
    return {
        f"{name}_recomputed_share": round(computed / prompt, 5),
        f"{name}_ttft_turn2_over_cold": _ratio(
            (answer.seconds, cold.seconds * answer.prompt / max(cold.prompt - cold.cached, 1))
            for answer, cold in later
        ),
    }


LINE = "    result = [item for item in sorted(values) if item.ready()]  "
FILES, FILE_LINES, CONTEXT_LINES = 6, 400, 40


async def keystrokes(client: EngineClient, keys: int = 60) -> tuple[int, int]:
    """Type a line into a file of 400 lines beside six other files, a request a key: the most tokens
    computed for one key beyond what was typed so far, after the first; and what an edit of the
    fourth other file then computes beyond the tokens from its segment on."""
    model = client.status().model
    lines = max(8, min(CONTEXT_LINES, (model.context if model is not None else 0) // 160))
    files = [_code(f"module_{n}", lines) for n in range(FILES)]
    before, after = _code("edited", FILE_LINES // 2), _code("rest", FILE_LINES // 2)
    first, worst = 0, 0
    for typed in range(min(keys, len(LINE))):
        prompt, ends = await _prompt(client, files, before, after, LINE[:typed])
        finished = await _complete(client, prompt, ends)
        computed = finished.prompt_tokens - finished.cached_tokens
        line = await client.encode(LINE[:typed])
        first = first or computed
        if typed:
            worst = max(worst, computed - len(line))
    files[3] = files[3].replace("total", "summed", 1)
    prompt, ends = await _prompt(client, files, before, after, LINE[:keys])
    finished = await _complete(client, prompt, ends)
    return worst, finished.prompt_tokens - finished.cached_tokens - (len(prompt) - ends[2])


def _code(name: str, lines: int) -> str:
    body = "".join(f"    total += {n} * scale_{name}({n})\n" for n in range(lines))
    return f"def {name}(total):\n{body}    return total\n"


async def _prompt(
    client: EngineClient, files: Sequence[str], before: str, after: str, typed: str
) -> tuple[tuple[int, ...], list[int]]:
    """Context files, then the edited file around the cursor, what is typed last; and where each
    context file ends."""
    tokens: list[int] = []
    ends: list[int] = []
    for file in files:
        tokens += await client.encode(file)
        ends.append(len(tokens))
    rendered = await client.fill_in_middle(before + typed, after, limit=1200)
    return (*tokens, *rendered.tokens), [*ends, *(len(tokens) + b for b in rendered.boundaries)]


async def _complete(client: EngineClient, prompt: tuple[int, ...], ends: list[int]) -> Finished:
    segments = tuple(
        Segment(end=end, path=f"{n}.py", content=b"") for n, end in enumerate(ends[:FILES])
    )
    request = GenerateRequest(
        id=client.new_id("key"),
        prompt=prompt,
        segments=segments,
        boundaries=tuple(ends[FILES:]),
        max_tokens=1,
        seed=1,
        priority=Priority.INTERACTIVE,
    )
    return await client.generate(request).finished()


async def branchings(
    cached: EngineClient, plain: EngineClient, count: int, step: Callable[[], None]
) -> int:
    """Prompts that branch off others at random, some cancelled half-way, the cache cleared now and
    then: how many replies are not those of an engine without a cache."""
    draw, differences = random.Random(7), 0
    stems: list[tuple[int, ...]] = [tuple(await cached.encode(_code("stem", 40)))]
    for number in range(count):
        prompt, fields = _branch(draw, stems, number)
        if draw.random() < 0.2:
            await _cut_short(cached, prompt, fields)
        if draw.random() < 0.02:
            await cached.cache("clear")
        both: list[Awaitable[Any]] = [
            client.generate(
                GenerateRequest(id=client.new_id("branch"), prompt=prompt, **fields)
            ).finished()
            for client in (cached, plain)
        ]
        ours, other = [await one for one in both]
        differences += ours.tokens != other.tokens
        stems.append((*prompt, *ours.tokens))
        step()
    return differences


def _branch(
    draw: random.Random, stems: Sequence[tuple[int, ...]], number: int
) -> tuple[tuple[int, ...], dict[str, Any]]:
    stem = draw.choice(stems[-10:])
    cut = draw.randrange(1, len(stem) + 1)
    prompt = (*stem[:cut], *(draw.randrange(256) for _ in range(draw.randrange(1, 24))))[:800]
    fields = {
        "max_tokens": draw.randrange(1, 8),
        "seed": number,
        "boundaries": (draw.randrange(1, len(prompt) + 1),),
        "priority": draw.choice(list(Priority)),
    }
    return prompt, fields


async def _cut_short(client: EngineClient, prompt: tuple[int, ...], fields: dict[str, Any]) -> None:
    async with client.generate(
        GenerateRequest(id=client.new_id("cut"), prompt=prompt, **fields)
    ) as reply:
        events: AsyncIterator[Any] = reply
        async for _ in events:
            break
