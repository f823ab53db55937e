from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from engine import EngineClient, GenerateRequest
from engine.testing import FakeEngine
from sidecar.jobs.acceptance_benchmark import (
    CODE,
    OWN,
    REWRITE,
    SAMPLINGS,
    SHARED,
    Acceptance,
    Candidate,
    figures,
    loops,
)
from sidecar.jobs.coding_prompts import CodingPrompt

PROMPTS = [CodingPrompt(name=f"p{n}", regime="new code", text=f"prompt {n}") for n in range(3)]


def row(drafter: str, sampling: str, noise: str, tokens: int, **facts: Any) -> Acceptance:
    given = {"text": CODE, "looping": False, "replies": 1, "rounds": 100, "accepted": tokens - 100}
    return Acceptance(
        drafter=drafter, sampling=sampling, noise=noise, tokens=tokens, **(given | facts)
    )


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ([7] * 48, True),
        (list(range(16)) * 3, True),
        ([0, *[7] * 48], True),
        (list(range(17)) * 3, False),
        ([7] * 47 + [8], False),
        ([7] * 47, False),
        (list(range(60)), False),
    ],
)
def test_looping_is_repeating_a_short_run(end: list[int], expected: bool) -> None:
    assert loops(tuple(end)) is expected


def by_noise(request: GenerateRequest) -> Mapping[str, Any]:
    own = request.draft_seed is not None
    return {"rounds": 10 if own else 5, "accepted": 1 if own else 6}


async def counted(engine: FakeEngine, drafter: str, text: str = CODE) -> list[Acceptance]:
    client = EngineClient(engine)
    client.start()
    await client.ready()
    candidate = Candidate("d", client, drafter, text, PROMPTS)
    steps: list[None] = []
    rows = await candidate.measure(60, lambda: steps.append(None))
    await client.stop()
    assert len(steps) == candidate.steps
    return rows


async def test_a_trained_drafter_is_counted_greedy_and_sampled_with_either_noise() -> None:
    engine = FakeEngine("a reply of code", facts=by_noise)
    rows = await counted(engine, "dflash")
    assert [(row.sampling, row.noise) for row in rows] == [
        ("greedy", ""),
        ("T=0.7", SHARED),
        ("T=0.7", OWN),
        ("T=1.0", SHARED),
        ("T=1.0", OWN),
    ]
    # 16 tokens a reply with its end, 15 of them decoded; three prompts.
    assert {(row.tokens, row.replies) for row in rows} == {(45, 3)}
    assert [row.tokens_per_round for row in rows] == [3.0, 3.0, 1.5, 3.0, 1.5]
    assert [row.drafts_per_round for row in rows] == [1.2, 1.2, 0.1, 1.2, 0.1]
    assert {request.drafters for request in engine.seen} == {("dflash",)}
    assert [request.sampling for request in engine.seen[:3]] == [SAMPLINGS["greedy"]] * 3
    assert [request.seed for request in engine.seen] == [0, 1, 2] * 5
    own = [request for request in engine.seen if request.draft_seed is not None]
    assert len(own) == 6
    assert all(request.draft_seed != request.seed for request in own)


async def test_copying_has_no_noise() -> None:
    rows = await counted(FakeEngine("x", facts=by_noise), "copy", REWRITE)
    assert [(row.sampling, row.noise, row.text) for row in rows] == [
        (sampling, "", REWRITE) for sampling in SAMPLINGS
    ]


async def test_replies_that_loop_are_counted_apart() -> None:
    def reply(request: GenerateRequest) -> str:
        return "na" * 40 if request.seed == 1 else "no loop"

    rows = await counted(FakeEngine(reply, facts=by_noise), "copy")
    assert [(row.looping, row.replies, row.tokens) for row in rows[:2]] == [
        (False, 2, 14),
        (True, 1, 59),
    ]


def test_figures_are_of_code_that_does_not_loop_and_of_the_better_drafter() -> None:
    rows = [
        row("dflash v1", "greedy", "", 160),
        row("dflash v1", "T=0.7", SHARED, 159),
        row("dflash v2", "greedy", "", 250),
        row("dflash v2", "greedy", "", 700, looping=True),
        row("dflash v2", "T=0.7", SHARED, 175),
        row("dflash v2", "T=0.7", OWN, 110),
        row("copy", "greedy", "", 900, text=REWRITE),
    ]
    found = figures(rows)
    assert found["accepted_per_round_code_v1"] == 1.6
    assert found["accepted_per_round_code_v2"] == 2.5
    assert found["sampled_over_greedy_acceptance"] == 0.7
    assert found["sampled_over_greedy_drafts"] == 0.5
    assert found["shared_over_own_noise_acceptance"] == pytest.approx(1.591)
    assert found["shared_over_own_noise_drafts"] == 7.5
    assert len(found["acceptance"]) == len(rows)


def test_figures_of_what_was_not_measured_are_none() -> None:
    found = figures([row("copy", "greedy", "", 300, text=REWRITE)])
    assert found.pop("acceptance") != []
    assert set(found.values()) == {None}
