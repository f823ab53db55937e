"""What the prefix cache saves, and that no reply depends on it: a line being typed, random
branchings, writers that are killed."""

from __future__ import annotations

import random
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from engine import (
    ContextFile,
    CrashTrial,
    EngineClient,
    EngineError,
    GenerateRequest,
    Priority,
    RenderedPrompt,
    crash_trials_command,
)
from sidecar.config import CompletionConfig
from sidecar.jobs.completion import CompletionRequest, complete, prompt_of
from sidecar.workspace.view import Shown

LINE = "    result = [item for item in sorted(values) if item.ready()]  "
FILES, FILE_LINES, CONTEXT_LINES = 6, 400, 40
SHOWN_TOKENS = 8192


class Keystrokes(Struct, frozen=True, kw_only=True):
    """first: tokens computed for the first key. extra: the most that were computed for a later one
    beyond what was typed so far. edited: what an edit of the fourth of six other files then
    computes beyond the tokens from its segment on."""

    first: int
    extra: int
    edited: int


async def keystrokes(client: EngineClient, keys: int = 60) -> Keystrokes:
    """Type a line into a file of 400 lines beside six other files, a completion a key."""
    model = client.status().model
    lines = max(8, min(CONTEXT_LINES, (model.context if model is not None else 0) // 200))
    files = [code(f"module_{n}", lines) for n in range(FILES)]
    first = extra = 0
    for typed in range(min(keys, len(LINE))):
        computed, _ = await _complete(client, files, LINE[:typed])
        first = first or computed
        if typed:
            extra = max(extra, computed - len(await client.encode(LINE[:typed])))
    files[3] = files[3].replace("total", "summed", 1)
    computed, prompt = await _complete(client, files, LINE[:keys])
    edited = computed - (len(prompt.tokens) - prompt.segments[2].end)
    return Keystrokes(first=first, extra=extra, edited=edited)


def code(name: str, lines: int) -> str:
    """A function of that many lines."""
    body = "".join(f"    total += {n} * scale_{name}({n})\n" for n in range(lines))
    return f"def {name}(total):\n{body}    return total\n"


async def _complete(
    client: EngineClient, files: Sequence[str], typed: str
) -> tuple[int, RenderedPrompt]:
    """How many tokens of the prompt were computed, and the prompt."""
    shown = tuple(
        ContextFile(path=f"module_{n}.py", text=text, content=text.encode())
        for n, text in enumerate(files)
    )
    request = CompletionRequest(
        prefix=code("edited", FILE_LINES // 2) + typed,
        suffix="\n" + code("rest", FILE_LINES // 2),
        path="edited.py",
        shown=Shown("project", shown),
        shown_tokens=SHOWN_TOKENS,
        max_tokens=1,
    )
    config = CompletionConfig()
    prompt = await prompt_of(client, config, request)
    finished = (await complete(client, config, request)).finished
    if finished is None or len(prompt.segments) != FILES:
        raise EngineError(f"{len(prompt.segments)} of {FILES} files fit the model's context")
    return finished.prompt_tokens - finished.cached_tokens, prompt


class Branched(Struct, frozen=True, kw_only=True):
    """differences: replies that were not those of an engine without a cache. cancelled: requests
    that were cut short in between. found: prompt tokens that were not computed again."""

    differences: int
    cancelled: int
    found: int


async def branchings(
    cached: EngineClient, plain: EngineClient, count: int, step: Callable[[], None]
) -> Branched:
    """Prompts that branch off others at random, some cancelled half-way, the cache cleared now and
    then, but not in the last tenth: something is to be left. The same ones each time."""
    draw, differences, cancelled, found = random.Random(7), 0, 0, 0
    stems: list[tuple[int, ...]] = [tuple(await cached.encode(code("stem", 40)))]
    for number in range(count):
        prompt, fields = _branch(draw, stems, number)
        if draw.random() < 0.2:
            await _cut_short(cached, prompt, fields)
            cancelled += 1
        if draw.random() < 0.02 and number < count * 9 // 10:
            await cached.cache("clear")
        ours, other = [
            await client.generate(
                GenerateRequest(id=client.new_id("branch"), prompt=prompt, **fields)
            ).finished()
            for client in (cached, plain)
        ]
        differences += ours.tokens != other.tokens
        found += ours.cached_tokens
        stems.append((*prompt, *ours.tokens))
        step()
    return Branched(differences=differences, cancelled=cancelled, found=found)


def _branch(
    draw: random.Random, stems: Sequence[tuple[int, ...]], number: int
) -> tuple[tuple[int, ...], dict[str, Any]]:
    stem = draw.choice(stems[-10:])
    # Mostly near the end, so that prompts stay long.
    cut = draw.randrange(len(stem) * 7 // 8 if draw.random() < 0.8 else 0, len(stem)) + 1
    prompt = (*stem[:cut], *(draw.randrange(256) for _ in range(draw.randrange(1, 48))))[:800]
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


def crash_trials(source: Path, folder: Path, trials: int) -> Iterator[CrashTrial]:
    """Writers of a cache in `folder` that are killed while they write the records of the one in
    `source`. Raises EngineError where the trials themselves end early."""
    with subprocess.Popen(
        crash_trials_command(source, folder, trials),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            yield msgspec.json.decode(line, type=CrashTrial)
    if running.returncode:
        raise EngineError(f"the crash trials ended with exit code {running.returncode}")
