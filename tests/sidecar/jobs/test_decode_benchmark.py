from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from engine import EngineClient, EngineError, EngineOptions, GenerateRequest
from engine.testing import EOS, FakeEngine
from sidecar.jobs.coding_prompts import PROMPTS
from sidecar.jobs.decode_benchmark import MLX_LM, TARGET_ONLY, TASKS, DecodeBenchmark, MlxLm, Run

REPLY = "print(1)"
TOKENS = (*REPLY.encode(), EOS)
SPECULATIVE = "speculative(copy)"


class ScriptedBaseline:
    """Answers `tokens` to every prompt; each reply takes longer than the one before."""

    def __init__(self, tokens: tuple[int, ...] = TOKENS) -> None:
        self.prompts: list[tuple[int, ...]] = []
        self._tokens = tokens

    async def generate(self, prompt: Sequence[int], max_tokens: int) -> Run:
        self.prompts.append(tuple(prompt))
        return Run(
            tokens=self._tokens[:max_tokens],
            seconds=float(len(self.prompts)),
            rounds=len(self._tokens) - 1,
        )


def facts(request: GenerateRequest) -> Mapping[str, Any]:
    """A second a reply; drafting takes half the rounds and half the time."""
    return {"decode_ms": 500.0, "rounds": 4} if request.draft else {"decode_ms": 1000.0}


async def measured(
    engine: FakeEngine, baseline: ScriptedBaseline, repeat: int = 2
) -> dict[tuple[str, str], Any]:
    client = EngineClient(engine)
    client.start()
    await client.ready()
    benchmark = DecodeBenchmark(client, baseline, max_tokens=50)
    steps: list[None] = []
    rows = await benchmark.measure(repeat, lambda: steps.append(None))
    await client.stop()
    assert len(steps) == benchmark.steps(repeat)
    assert len(rows) == len(TASKS) * 3
    return {(row.task, row.system): row for row in rows}


def test_tasks_name_prompts() -> None:
    assert {name for names in TASKS.values() for name in names} <= {p.name for p in PROMPTS}


async def test_every_system_gets_every_prompt_in_turn() -> None:
    engine, baseline = FakeEngine(REPLY, facts=facts), ScriptedBaseline()
    rows = await measured(engine, baseline)
    for task in TASKS:
        plain, drafted, other = (rows[task, s] for s in (TARGET_ONLY, SPECULATIVE, MLX_LM))
        # 9 tokens, the first of them from prefill.
        assert (plain.tok_s, plain.tokens_per_round, plain.tokens) == (8.0, 1.0, 18)
        assert (drafted.tok_s, drafted.tokens_per_round) == (16.0, 2.0)
        assert other.tokens_per_round == 1.0
        assert plain.exact
        assert drafted.exact
        assert other.exact
        assert len(plain.tok_s_repeats) == 2
    # Two prompts a task, three repeats (one warms up), interleaved by task and system.
    assert [request.draft for request in engine.seen] == [False, False, True, True] * 12
    assert len(baseline.prompts) == 24
    assert baseline.prompts[:2] == [request.prompt for request in engine.seen[:2]]
    assert all(request.sampling.greedy and request.max_tokens == 50 for request in engine.seen)


async def test_the_median_of_the_repeats_counts_and_the_warm_up_does_not() -> None:
    rows = await measured(FakeEngine(REPLY, facts=facts), ScriptedBaseline(), repeat=3)
    row = rows["new code", MLX_LM]
    # Replies 9 and 10, 17 and 18, 25 and 26 of the baseline: 16 tokens in 19, 35 and 51 seconds.
    assert row.tok_s_repeats == pytest.approx((16 / 19, 16 / 35, 16 / 51), abs=0.01)
    assert row.tok_s == pytest.approx(16 / 35, abs=0.01)


async def test_other_tokens_are_said_to_be_other() -> None:
    lying = FakeEngine(lambda request: "lie" if request.draft else REPLY, facts=facts)
    rows = await measured(lying, ScriptedBaseline((1, 2, 3)))
    for task in TASKS:
        assert rows[task, TARGET_ONLY].exact
        assert not rows[task, SPECULATIVE].exact
        assert not rows[task, MLX_LM].exact


async def test_target_only_that_changes_between_repeats_is_not_exact() -> None:
    calls: list[GenerateRequest] = []

    def reply(request: GenerateRequest) -> str:
        calls.append(request)
        return REPLY if len(calls) < 20 else "other"

    rows = await measured(FakeEngine(reply, facts=facts), ScriptedBaseline())
    assert not rows["new code", TARGET_ONLY].exact


async def test_a_reply_of_one_token_is_no_division_by_zero() -> None:
    rows = await measured(FakeEngine("", facts={"decode_ms": 0.0, "rounds": 0}), ScriptedBaseline())
    assert rows["chat", TARGET_ONLY].tok_s == 0.0
    assert rows["chat", TARGET_ONLY].tokens_per_round == 0.0


async def test_mlx_lm_that_cannot_load_says_why() -> None:
    with pytest.raises(EngineError, match=r"mlx_lm: .*no-such-folder"):
        await MlxLm.start(EngineOptions(model="./no-such-folder"))


async def test_mlx_lm_that_dies_is_noticed() -> None:
    baseline = await MlxLm.start(EngineOptions())
    try:
        run = await baseline.generate(tuple(range(20, 40)), 5)
        assert len(run.tokens) == 5
        assert run.rounds == 4
        assert run.seconds > 0
        await baseline.stop()
        with pytest.raises(EngineError, match="ended with exit code"):
            await baseline.generate((20, 21), 3)
    finally:
        await baseline.stop()
