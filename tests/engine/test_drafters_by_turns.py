"""`GenerateRequest.drafters` and `draft_seed`: who drafts, and with which noise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from loops import LoopUnderTest
from tiny_drafters import tiny_drafter
from tiny_models import tiny

from engine.errors import RequestError
from engine.loop import portfolios
from engine.messages import GenerateRequest, Sampling
from engine.targets.target import bind

PROMPT = tuple(range(20, 32)) * 3
FIELDS = {"max_tokens": 24, "ignore_eos": True, "seed": 5}
SAMPLED = Sampling(temperature=0.9, top_p=0.95)


@pytest.fixture
def loop() -> LoopUnderTest:
    model, config = tiny("qwen3")
    target = bind(model, config)
    drafter = tiny_drafter("v1", len(model.layers))
    target.tap(drafter.config.target_layer_ids)
    loop = LoopUnderTest(target, prefix_cache_bytes=0)
    loop.new_portfolio = portfolios(target, drafter)
    return loop


def test_turns_decide_who_drafts_and_change_no_token(loop: LoopUnderTest) -> None:
    plain = loop.reply(PROMPT, draft=False, **FIELDS)
    nobody = loop.reply(PROMPT, drafters=("none",), **FIELDS)
    assert nobody.tokens == plain.tokens
    assert (nobody.accepted, nobody.rejected, nobody.rounds) == (0, 0, 23)
    trained = loop.reply(PROMPT, drafters=("dflash",), **FIELDS)
    assert trained.tokens == plain.tokens
    # A random drafter fills every block, the copy drafter only behind a match.
    drafts = trained.accepted + trained.rejected
    assert drafts > 3 * trained.rounds
    every_other = loop.reply(PROMPT, drafters=("dflash", "none"), **FIELDS)
    assert every_other.tokens == plain.tokens
    assert 0 < every_other.accepted + every_other.rejected < drafts
    copied = loop.reply(PROMPT, drafters=("copy",), **FIELDS)
    assert copied.tokens == plain.tokens
    assert (copied.accepted, copied.rejected) != (trained.accepted, trained.rejected)


def test_noise_of_its_own_changes_drafts_and_no_token(loop: LoopUnderTest) -> None:
    fields = FIELDS | {"sampling": SAMPLED, "drafters": ("dflash",)}
    shared = loop.reply(PROMPT, **fields)
    same = loop.reply(PROMPT, draft_seed=5, **fields)
    own = loop.reply(PROMPT, draft_seed=6, **fields)
    assert own.tokens == shared.tokens == same.tokens
    assert (same.accepted, same.rounds) == (shared.accepted, shared.rounds)
    # What a random drafter and a random target have in common is the noise.
    assert shared.accepted > own.accepted


def test_an_unknown_drafter_is_refused() -> None:
    with pytest.raises(
        RequestError, match=r"drafters: 'mtp' is none of copy, prediction, dflash, none"
    ):
        GenerateRequest(id="a", prompt=PROMPT, drafters=("copy", "mtp"))
