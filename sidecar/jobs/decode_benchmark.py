"""Decode speed of one model three ways, side by side in one run: target-only, speculative, and
mlx_lm on the same weights and prompts."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from engine import (
    BaselineReply,
    BaselineRequest,
    EngineClient,
    EngineError,
    EngineOptions,
    Finished,
    GenerateRequest,
    RenderedPrompt,
    baseline_command,
)
from sidecar.jobs.coding_prompts import PROMPTS

TASKS = {
    "new code": ("median", "retry"),
    "rewrite this file with a rename": ("rename_total", "rename_jobs"),
    "tool call": ("open_file", "find_uses"),
    "chat": ("explain", "advice"),
}

TARGET_ONLY, MLX_LM = "target-only", "mlx_lm.stream_generate"

# Replies are lines of JSON; a thousand token ids fit many times over.
_LINE_BYTES = 1 << 22


class Run(Struct, frozen=True, kw_only=True):
    """One greedy reply. seconds: from its first token to its last. rounds: target forwards
    meanwhile."""

    tokens: tuple[int, ...]
    seconds: float
    rounds: int


class Row(Struct, frozen=True, kw_only=True):
    """One system on one task.

    tok_s: median over the repeats, of all the task's prompts together; prefill and the first token
    do not count. exact: every reply equals the target-only one, token for token.
    """

    system: str
    task: str
    tok_s: float
    tokens_per_round: float
    exact: bool
    tokens: int
    tok_s_repeats: tuple[float, ...]


class Baseline(Protocol):
    """Another implementation, measured beside ours."""

    async def generate(self, prompt: Sequence[int], max_tokens: int) -> Run:
        """A greedy reply of another implementation."""


class MlxLm:
    """mlx_lm in a process of its own; use `start` and, whatever happens, `stop`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, options: EngineOptions, environment: Mapping[str, str] | None = None
    ) -> MlxLm:
        """Returns when the model is loaded. Raises EngineError with the reason if it cannot be."""
        process = await asyncio.create_subprocess_exec(
            *baseline_command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
            env=environment,
            # Ctrl-C is for the verb, which then ends this process.
            start_new_session=True,
        )
        baseline = cls(process)
        try:
            await baseline._ask(options)
        except BaseException:
            await baseline.stop()
            raise
        return baseline

    async def generate(self, prompt: Sequence[int], max_tokens: int) -> Run:
        reply = await self._ask(BaselineRequest(prompt=tuple(prompt), max_tokens=max_tokens))
        return Run(tokens=reply.tokens, seconds=reply.decode_ms / 1e3, rounds=len(reply.tokens) - 1)

    async def stop(self) -> None:
        """Idempotent."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _ask(self, message: Struct) -> BaselineReply:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            await self._process.stdin.drain()
            line = await self._process.stdout.readline()
        except ConnectionError:
            line = b""
        if not line:
            code = await self._process.wait()
            raise EngineError(f"the mlx_lm process ended with exit code {code}")
        reply = msgspec.json.decode(line, type=BaselineReply)
        if reply.error:
            raise EngineError(f"mlx_lm: {reply.error}")
        return reply


class DecodeBenchmark:
    """Repeats are interleaved, so that a machine that slows down slows every system alike."""

    def __init__(self, client: EngineClient, baseline: Baseline, *, max_tokens: int) -> None:
        self._client = client
        self._baseline = baseline
        self._max_tokens = max_tokens
        drafters = "+".join(client.status().drafters) or "no drafter"
        self.systems = (TARGET_ONLY, f"speculative({drafters})", MLX_LM)

    def steps(self, repeat: int) -> int:
        """How often `measure` calls `advance`; one more round than counted warms up."""
        return (repeat + 1) * len(self.systems) * len(TASKS)

    async def measure(self, repeat: int, advance: Callable[[], None]) -> list[Row]:
        """Rows by task and then system."""
        prompts = {task: await self._render(names) for task, names in TASKS.items()}
        runs: dict[tuple[str, str], list[list[Run]]] = {}
        for _ in range(repeat + 1):
            for task in TASKS:
                for system in self.systems:
                    replies = [await self._reply(system, prompt) for prompt in prompts[task]]
                    runs.setdefault((task, system), []).append(replies)
                    advance()
        return [self._row(task, system, runs) for task in TASKS for system in self.systems]

    def _row(self, task: str, system: str, runs: Mapping[tuple[str, str], list[list[Run]]]) -> Row:
        truth = [run.tokens for run in runs[task, TARGET_ONLY][0]]
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

    async def _render(self, names: Sequence[str]) -> list[RenderedPrompt]:
        by_name = {prompt.name: prompt for prompt in PROMPTS}
        return [await by_name[name].variant(0).render(self._client) for name in names]

    async def _reply(self, system: str, prompt: RenderedPrompt) -> Run:
        if system == MLX_LM:
            return await self._baseline.generate(prompt.tokens, self._max_tokens)
        request = GenerateRequest(
            id=self._client.new_id("bench"),
            prompt=prompt.tokens,
            boundaries=prompt.boundaries,
            max_tokens=self._max_tokens,
            draft=system != TARGET_ONLY,
        )
        async with self._client.generate(request) as reply:
            finished: Finished = await reply.finished()
        return Run(tokens=finished.tokens, seconds=finished.decode_ms / 1e3, rounds=finished.rounds)


def _decoded(replies: Sequence[Run]) -> int:
    """Tokens that decoding made: the first of each reply comes from its prefill."""
    return sum(len(run.tokens) - 1 for run in replies)


def _tokens_per_second(replies: Sequence[Run]) -> float:
    seconds = sum(run.seconds for run in replies)
    return _decoded(replies) / seconds if seconds else 0.0
