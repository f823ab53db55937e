"""Measure a built-in pair on text that was never trained on, through Pillion's own engine."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
from msgspec import Struct

from engine import (
    Chunk,
    EngineClient,
    EngineOptions,
    Failed,
    Finished,
    GenerateRequest,
    RenderedPrompt,
    Sampling,
    engine_client,
    error_of,
)
from engine.builtin.train.acceptance import (
    Count,
    Reply,
    dflash,
    drafted_by_itself,
    own_logits,
    replay,
    seen_by_drafters,
)
from engine.builtin.train.corpus import Source, collect
from engine.builtin.train.edits import EDITS, functions, rename
from engine.builtin.train.samples import cut, write
from engine.builtin.train.tool_prompts import tool_chat
from engine.drafters.copy import CopyDrafter
from engine.drafters.dflash import DFlashModel
from engine.loading.drafter import load_drafter
from engine.loading.load import load
from engine.targets.target import Target, bind
from engine.text.instructions import change, changed_code

WINDOW = 512
SAMPLINGS = {
    "greedy": Sampling(),
    "t07": Sampling(temperature=0.7, top_p=0.95),
    "t10": Sampling(temperature=1.0),
}
CALL = re.compile(r"<function=(.*?)>\n(.*?)</function>", re.DOTALL)
PARAMETER = re.compile(r"<parameter=(.*?)>\n(.*?)\n</parameter>", re.DOTALL)
SHORT_FUNCTION = 400  # characters
# Chosen once; nothing is tuned on what it draws.
SEED, ANOTHER_SEED = 20, 1_000_003


class Answers(Struct, frozen=True, kw_only=True):
    """All that is known of a target alone. replies: (regime, reply) by name of the sampling."""

    texts: dict[str, dict[str, float]]
    scores: dict[str, dict[str, int]]
    replies: dict[str, list[tuple[str, Reply]]]


@dataclass(frozen=True)
class Task:
    """A prompt, and whether a reply's text is right: name of a score to truth."""

    regime: str
    render: Callable[[EngineClient], Any]
    most_tokens: int
    judge: Callable[[str], dict[str, bool]]


def loss_and_accuracy(model: nn.Module, rows: Sequence[list[int]]) -> tuple[float, float]:
    """Nats a token and the share of next tokens that are the most likely one."""
    nats, right, count = 0.0, 0, 0
    for row in rows:
        logits = model(mx.array([row[:-1]]))[0].astype(mx.float32)
        labels = mx.array(row[1:])
        nats += float(mx.sum(nn.losses.cross_entropy(logits, labels)))
        right += int(mx.sum(mx.argmax(logits, axis=-1) == labels))
        count += len(row) - 1
    return nats / count, right / count


def windows(sources: list[Source], encode: Callable[[str], list[int]], count: int) -> list[Any]:
    """The first `count` windows of WINDOW + 1 ids of all texts, shuffled the same way each time."""
    rows = []
    for source in sources:
        ids = encode(source.text)
        rows += [ids[at : at + WINDOW + 1] for at in range(0, len(ids) - WINDOW, WINDOW)]
    random.Random(SEED).shuffle(rows)
    return rows[:count]


def parse_call(text: str) -> tuple[str, dict[str, str]] | None:
    found = CALL.search(text)
    return (found.group(1), dict(PARAMETER.findall(found.group(2)))) if found else None


def tool_task(source: Source, rng: random.Random) -> Task | None:
    """One tool call."""
    messages, tools = tool_chat(source, rng)
    last = messages[-1]
    if "tool_calls" not in last:
        return None
    wanted = last["tool_calls"][0]["function"]

    def judge(text: str) -> dict[str, bool]:
        called = parse_call(text)
        tool = called is not None and called[0] == wanted["name"]
        exact = tool and called is not None and called[1] == wanted["arguments"]
        return {"tool": tool, "tool_and_arguments": exact}

    return Task("tool", lambda client: client.chat(messages[:-1], tools=tools), 96, judge)


def rename_task(source: Source, rng: random.Random) -> Task | None:
    short = [pair for pair in functions(source) if len(pair[0]) <= SHORT_FUNCTION]
    made = rename(*rng.choice(short), rng) if short else None
    return changing("rename", made) if made else None


def edit_task(source: Source, rng: random.Random) -> Task | None:
    """Any other edit with one right answer."""
    short = [pair for pair in functions(source) if len(pair[0]) <= SHORT_FUNCTION]
    if not short:
        return None
    kind = rng.choice([make for make, _ in EDITS if make.__name__ not in OPEN_ENDED])
    made = kind(*rng.choice(short), rng)
    return changing("edit", made) if made else None


OPEN_ENDED = ("rename", "write_docstring", "unchanged")


def changing(regime: str, made: tuple[str, str, str]) -> Task:
    """A task that is right when the changed code is exactly as it should be."""
    instruction, before, after = made
    message = {"role": "user", "content": change(instruction, before)}

    def judge(text: str) -> dict[str, bool]:
        right = changed_code(text) == after.rstrip("\n")
        short = {f"{regime}_short": right} if len(before) <= SHORT_FUNCTION // 2 else {}
        return {regime: right, **short}

    return Task(regime, lambda client: client.chat([message]), 300, judge)


def fill_task(source: Source, rng: random.Random) -> Task | None:
    """The rest of a line, with what follows it known."""
    made = cut(source.text, rng)
    if not made or "\n" in made[1] or not made[2].startswith("\n") or not made[1].strip():
        return None
    prefix, middle, suffix = made

    def judge(text: str) -> dict[str, bool]:
        return {"fill_whole": text == middle, "fill_line": text.split("\n")[0] == middle}

    return Task("fill", lambda client: client.fill_in_middle(prefix, suffix), 48, judge)


def code_task(source: Source, rng: random.Random) -> Task:
    """Sixteen lines of a file, to be continued as plain text."""
    lines = source.text.split("\n")
    start = rng.randrange(max(1, len(lines) - 30))
    text = "\n".join(lines[start : start + 16]) + "\n"

    async def render(client: EngineClient) -> RenderedPrompt:
        return RenderedPrompt(tokens=tuple(await client.encode(text)))

    return Task("code", render, 64, lambda _: {})


def chat_task(source: Source, rng: random.Random) -> Task | None:
    """A function to write or to explain; nobody judges the reply."""
    found = functions(source)
    messages = write(*rng.choice(found), rng) if found else None
    if not messages:
        return None
    return Task("chat", lambda client: client.chat(messages[:-1]), 64, lambda _: {})


MAKERS: dict[str, Callable[[Source, random.Random], Task | None]] = {
    "tool": tool_task,
    "rename": rename_task,
    "edit": edit_task,
    "fill": fill_task,
    "code": code_task,
    "chat": chat_task,
}


def tasks(regime: str, sources: list[Source], count: int) -> Iterator[Task]:
    """The first `count` tasks of a regime, the same for every model."""
    rng = random.Random(f"{SEED} {regime}")
    for _ in range(count * 50):
        if count == 0:
            return
        task = MAKERS[regime](rng.choice(sources), rng)
        if task is not None:
            count -= 1
            yield task


async def answer(
    client: EngineClient, task: Task, sampling: Sampling, seed: int
) -> tuple[Reply, str]:
    """The reply to a task and its text."""
    prompt = await task.render(client)
    request = GenerateRequest(
        id=client.new_id(),
        prompt=prompt.tokens,
        max_tokens=task.most_tokens,
        sampling=sampling,
        seed=seed,
        must_start_with=prompt.must_start_with,
        stop_token_ids=prompt.stop_token_ids,
    )
    text = ""
    async for event in client.generate(request):
        if isinstance(event, Chunk):
            text += event.text
        elif isinstance(event, Finished):
            return Reply(prompt.tokens, event.tokens, sampling, seed), text
        elif isinstance(event, Failed):
            raise error_of(event)
    raise RuntimeError("a reply ended without an ending")


async def answers(
    options: EngineOptions, held_out: list[Source], given: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, list[tuple[str, Reply]]]]:
    """Scores of the greedy replies, and all replies by name of the sampling."""
    client = engine_client(options)
    client.start()
    await client.ready()
    scores: dict[str, list[bool]] = {}
    replies: dict[str, list[tuple[str, Reply]]] = {name: [] for name in SAMPLINGS}
    try:
        for regime in MAKERS:
            scored = regime not in ("code", "chat")
            drafted = given.code if regime == "code" else given.drafted
            count = given.tasks if scored else drafted
            for index, task in enumerate(tasks(regime, held_out, count)):
                for name, sampling in SAMPLINGS.items():
                    if name != "greedy" and index >= drafted:
                        continue
                    reply, text = await answer(client, task, sampling, index)
                    if index < drafted:
                        replies[name].append((regime, reply))
                    for score, right in task.judge(text).items() if name == "greedy" else ():
                        scores.setdefault(score, []).append(right)
            print(regime, {k: f"{sum(v)}/{len(v)}" for k, v in scores.items()}, flush=True)
    finally:
        await client.stop()
    return {k: {"right": sum(v), "of": len(v)} for k, v in scores.items()}, replies


Replies = dict[str, list[tuple[str, Reply]]]


def acceptance(
    name: str, replies: Replies, count: Callable[[Reply, int], Count], sampled: bool
) -> dict[str, Any]:
    """Tokens a round of one drafter, by sampling and regime.

    count: the rounds of a reply with a noise seed. sampled: whether the noise matters to it.
    """
    report: dict[str, Any] = {}
    for sampling, found in replies.items():
        counts: dict[str, Count] = {}
        for regime, reply in found:
            if len(reply.tokens) < 2:
                continue
            counted = count(reply, reply.seed)
            for key in ("all", "loops") if reply.loops else ("all", "no_loops", regime):
                counts.setdefault(key, Count()).add(counted)
            if sampled and sampling != "greedy" and not reply.loops:
                own = count(reply, reply.seed + ANOTHER_SEED)
                for key in ("own_noise", f"own_noise_{regime}"):
                    counts.setdefault(key, Count()).add(own)
        report[sampling] = {key: counted.per_round for key, counted in sorted(counts.items())}
        report[sampling]["looping_replies"] = sum(reply.loops for _, reply in found)
        report[sampling]["replies"] = len(found)
    print(name, json.dumps(report), flush=True)
    return report


def all_acceptance(target: Target, folders: Sequence[Path], replies: Replies) -> dict[str, Any]:
    """`acceptance` of copying and of the drafters in `folders`, by name."""
    report = {"copy": acceptance("copy", replies, lambda r, _: replay(CopyDrafter(), r), False)}

    # Of the replies in which much is left open; a forward of each takes a second.
    code = {name: [found for found in replies[name] if found[0] == "code"] for name in SAMPLINGS}
    own_choices: dict[Reply, mx.array] = {}

    def itself(reply: Reply, seed: int) -> Count:
        if reply not in own_choices:
            own_choices[reply] = own_logits(target, reply)
        return drafted_by_itself(own_choices[reply], reply, seed)

    report["itself"] = acceptance("itself", code, itself, True)
    seen: dict[tuple[object, ...], mx.array] = {}
    for folder in folders:
        model = load_drafter(
            folder,
            hidden_size=target.embed(mx.array([0])).shape[-1],
            vocab_size=target.head(target.embed(mx.array([0]))).shape[-1],
            num_layers=len(target.model.layers),
            bits=None,
            progress=lambda *_: None,
        )
        taps = model.config.target_layer_ids
        target.tap(taps)

        def count(
            reply: Reply, seed: int, model: DFlashModel = model, taps: tuple[int, ...] = taps
        ) -> Count:
            key = (taps, reply.prompt, reply.tokens)
            if key not in seen:
                seen[key] = seen_by_drafters(target, reply)
            return replay(dflash(target, model, reply, seed), reply, seen[key])

        report[folder.name] = acceptance(folder.name, replies, count, True)
    return report


def evaluate(given: argparse.Namespace) -> dict[str, Any]:
    """The report of one target and its drafters."""
    options = EngineOptions(model=str(given.model.resolve()), draft="copy", audit=False)
    loaded = load(options, lambda *_: None)
    # Decoding takes long and tells the same whatever the drafters, so what it gave is kept.
    if given.answers.exists():
        kept = msgspec.json.decode(given.answers.read_bytes(), type=Answers)
    else:
        corpus = collect(given.wheels)
        texts = {}
        for name in ("held_out_packages", "held_out_stdlib"):
            rows = windows(getattr(corpus, name), loaded.codec.encode, given.windows)
            nats, right = loss_and_accuracy(loaded.model, rows)
            texts[name] = {
                "nats_a_token": round(nats, 4),
                "next_token_right": round(right, 4),
                "tokens": len(rows) * WINDOW,
            }
            print(name, texts[name], flush=True)
        held_out = [*corpus.held_out_packages, *corpus.held_out_stdlib]
        scores, replies = asyncio.run(answers(options, held_out, given))
        kept = Answers(texts=texts, scores=scores, replies=replies)
        given.answers.write_bytes(msgspec.json.encode(kept))
    target = bind(loaded.model, loaded.config)
    return {
        **kept.texts,
        "scores": kept.scores,
        "tokens_a_round": all_acceptance(target, given.drafters, kept.replies),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--wheels", type=Path, required=True)
    options.add_argument("--model", type=Path, required=True)
    options.add_argument("--drafters", type=Path, nargs="*", default=[])
    options.add_argument("--answers", type=Path, required=True, help="kept for the next run")
    options.add_argument("--out", type=Path, required=True, help="the JSON to write")
    options.add_argument("--windows", type=int, default=12, help="of 512 tokens")
    options.add_argument("--tasks", type=int, default=30, help="scored ones of each kind")
    options.add_argument("--drafted", type=int, default=6, help="replies a drafter is tried on")
    options.add_argument("--code", type=int, default=24, help="those that continue code")
    given = options.parse_args()
    began = time.monotonic()
    report = evaluate(given)
    report["seconds"] = round(time.monotonic() - began)
    given.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
