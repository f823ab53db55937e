from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from engine import EngineClient, GenerateRequest
from engine.testing import EOS, FakeEngine
from sidecar.jobs.coding_prompts import PROMPTS
from sidecar.jobs.decode_benchmark import TARGET_ONLY, TASKS, DecodeBenchmark, Ours
from sidecar.jobs.peers import Run

REPLY = "print(1)"
TOKENS = (*REPLY.encode(), EOS)
COPY, OTHER = "speculative(copy)", "other"


class ScriptedPeer:
    """Answers `tokens` to every prompt; each reply takes longer than the one before."""

    name = OTHER

    def __init__(self, tokens: tuple[int, ...] = TOKENS) -> None:
        self.asked: list[tuple[tuple[int, ...], int, bool]] = []
        self._tokens = tokens

    async def reply(self, prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool) -> Run:
        self.asked.append((tuple(prompt), max_tokens, ignore_eos))
        return Run(
            tokens=self._tokens[:max_tokens],
            seconds=float(len(self.asked)),
            rounds=len(self._tokens) - 1,
        )


def facts(request: GenerateRequest) -> Mapping[str, Any]:
    """A second a reply; drafting takes half the rounds and half the time."""
    return {"decode_ms": 500.0, "rounds": 4} if request.draft else {"decode_ms": 1000.0}


async def measured(
    engine: FakeEngine, peer: ScriptedPeer, repeat: int = 2, **settings: Any
) -> dict[tuple[str, str], Any]:
    client = EngineClient(engine)
    client.start()
    await client.ready()
    systems = (Ours(TARGET_ONLY, client, None), Ours(COPY, client, ("copy",)), peer)
    benchmark = DecodeBenchmark(systems, max_tokens=50, **settings)
    steps: list[None] = []
    rows = await benchmark.measure(client, repeat, lambda: steps.append(None))
    await client.stop()
    assert len(steps) == benchmark.steps(repeat)
    assert len(rows) == len(TASKS) * 3
    return {(row.task, row.system): row for row in rows}


def test_tasks_name_prompts() -> None:
    assert {name for names in TASKS.values() for name in names} <= {p.name for p in PROMPTS}


async def test_every_system_gets_every_prompt_in_turn() -> None:
    engine, peer = FakeEngine(REPLY, facts=facts), ScriptedPeer()
    rows = await measured(engine, peer)
    for task in TASKS:
        plain, drafted, other = (rows[task, s] for s in (TARGET_ONLY, COPY, OTHER))
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
    assert {request.drafters for request in engine.seen if request.draft} == {("copy",)}
    assert len(peer.asked) == 24
    assert [asked[0] for asked in peer.asked[:2]] == [r.prompt for r in engine.seen[:2]]
    assert all(request.sampling.greedy and request.max_tokens == 50 for request in engine.seen)


@pytest.mark.parametrize("ignore_eos", [False, True])
async def test_the_end_is_ignored_by_all_or_none(ignore_eos: bool) -> None:
    engine, peer = FakeEngine(REPLY, facts=facts), ScriptedPeer()
    await measured(engine, peer, repeat=1, ignore_eos=ignore_eos)
    assert {request.ignore_eos for request in engine.seen} == {ignore_eos}
    assert {asked[1:] for asked in peer.asked} == {(50, ignore_eos)}


async def test_a_rest_comes_before_every_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr("sidecar.jobs.decode_benchmark.asyncio.sleep", rest)
    await measured(FakeEngine(REPLY, facts=facts), ScriptedPeer(), repeat=1, cooldown=9.0)
    assert rests.count(9.0) == 2 * len(TASKS) * 3


async def test_the_median_of_the_repeats_counts_and_the_warm_up_does_not() -> None:
    rows = await measured(FakeEngine(REPLY, facts=facts), ScriptedPeer(), repeat=3)
    row = rows["new code", OTHER]
    # Replies 9 and 10, 17 and 18, 25 and 26 of the peer: 16 tokens in 19, 35 and 51 seconds.
    assert row.tok_s_repeats == pytest.approx((16 / 19, 16 / 35, 16 / 51), abs=0.01)
    assert row.tok_s == pytest.approx(16 / 35, abs=0.01)


async def test_other_tokens_are_said_to_be_other() -> None:
    lying = FakeEngine(lambda request: "lie" if request.draft else REPLY, facts=facts)
    rows = await measured(lying, ScriptedPeer((1, 2, 3)))
    for task in TASKS:
        assert rows[task, TARGET_ONLY].exact
        assert not rows[task, COPY].exact
        assert not rows[task, OTHER].exact


async def test_target_only_that_changes_between_repeats_is_not_exact() -> None:
    calls: list[GenerateRequest] = []

    def reply(request: GenerateRequest) -> str:
        calls.append(request)
        return REPLY if len(calls) < 20 else "other"

    rows = await measured(FakeEngine(reply, facts=facts), ScriptedPeer())
    assert not rows["new code", TARGET_ONLY].exact


async def test_a_reply_of_one_token_is_no_division_by_zero() -> None:
    rows = await measured(FakeEngine("", facts={"decode_ms": 0.0, "rounds": 0}), ScriptedPeer())
    assert rows["chat", TARGET_ONLY].tok_s == 0.0
    assert rows["chat", TARGET_ONLY].tokens_per_round == 0.0
