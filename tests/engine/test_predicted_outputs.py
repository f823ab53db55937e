"""What a request may say and ask about its tokens: a prediction, and their log-probabilities."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from engine import Chunk, EngineClient, Finished, GenerateRequest, TokenLogprob

pytestmark = pytest.mark.slow


async def answered(engine: EngineClient, **fields: Any) -> tuple[Finished, list[TokenLogprob]]:
    """A short greedy reply, and what was said about its tokens."""
    prompt = await engine.chat([{"role": "user", "content": "Write add(a, b)."}])
    request = GenerateRequest(id=engine.new_id(), prompt=prompt.tokens, max_tokens=24)
    logprobs: list[TokenLogprob] = []
    async for event in engine.generate(msgspec.structs.replace(request, **fields)):
        if isinstance(event, Chunk):
            logprobs += event.logprobs
        if isinstance(event, Finished):
            return event, logprobs
    raise AssertionError("a reply ends with Finished")


@pytest.mark.parametrize("drafter", ["copy", "prediction"])
async def test_a_right_prediction_is_drafted_from_the_first_token_on(
    builtin_engine: EngineClient, drafter: str
) -> None:
    plain, _ = await answered(builtin_engine, drafters=(drafter,))
    told, _ = await answered(builtin_engine, drafters=(drafter,), prediction=plain.tokens)
    assert told.tokens == plain.tokens
    # Fifteen drafts a round are the most that the built-in pair verifies.
    assert told.rounds <= math.ceil(len(plain.tokens) / 15) < plain.rounds
    assert told.rejected == 0


@pytest.mark.parametrize("policy", ["surplus", "always", "switch"])
async def test_a_wrong_prediction_changes_nothing(
    builtin_engine: EngineClient, policy: str
) -> None:
    plain, _ = await answered(builtin_engine)
    half = len(plain.tokens) // 2
    for prediction in (plain.tokens[::-1], (*plain.tokens[:half], 1, *plain.tokens[half + 2 :])):
        told, _ = await answered(builtin_engine, prediction=prediction, policy=policy, seed=1)
        assert told.tokens == plain.tokens


async def test_log_probabilities_are_the_same_with_and_without_drafts(
    builtin_engine: EngineClient,
) -> None:
    drafted, one = await answered(builtin_engine, logprobs=3)
    plain, other = await answered(builtin_engine, logprobs=3, draft=False)
    assert drafted.rounds < plain.rounds
    assert one == other
    assert [about.token for about in one] == list(drafted.tokens)
    for about in one:
        # Greedy: the most probable one was taken.
        assert about.likely[0] == (about.token, about.logprob)
        assert about.logprob <= 0
        assert sum(math.exp(logprob) for _, logprob in about.likely) <= 1 + 1e-6
