"""Replaying rounds: what would have been accepted."""

from __future__ import annotations

import numpy as np

from engine.builtin import TARGET
from engine.builtin.train.acceptance import (
    MOST_DRAFTS,
    Count,
    Reply,
    drafted_by_itself,
    matching,
    own_logits,
    replay,
)
from engine.decoding.sampling import choose
from engine.drafters.copy import CopyDrafter
from engine.loading.load import load
from engine.messages import EngineOptions, Sampling
from engine.targets.target import bind


def test_rounds_of_a_copied_reply_match_the_drafter_itself() -> None:
    prompt = tuple(range(100, 140))
    tokens = (*range(5), *range(110, 130), *range(7))
    reply = Reply(prompt, tokens, Sampling(), 0)
    drafter = CopyDrafter()
    drafter.commit([*prompt, tokens[0]])
    rounds, at = 0, 1
    while at < len(tokens):
        kept = matching(drafter.propose(min(7, len(tokens) - at)), tokens[at:]) + 1
        kept = min(kept, len(tokens) - at)
        drafter.commit(tokens[at : at + kept])
        rounds, at = rounds + 1, at + kept
    assert replay(CopyDrafter(), reply) == Count(len(tokens) - 1, rounds)
    assert rounds < len(tokens) - 10


def test_nothing_to_copy_is_a_token_a_round() -> None:
    reply = Reply((1, 2, 3), (4, 5, 6, 7), Sampling(), 0)
    assert replay(CopyDrafter(), reply).per_round == 1.0


def test_matching_counts_leading_tokens() -> None:
    assert matching([1, 2, 9], [1, 2, 3, 4]) == 2
    assert matching([1, 2], [1, 2, 3]) == 2
    assert matching([], [1]) == 0


def test_loops_are_told_from_text() -> None:
    text, period = tuple(range(40)), (5, 6, 7)
    assert Reply((1,), (*text, *period * 12), Sampling(), 0).loops
    assert not Reply((1,), (*period * 12, *text), Sampling(), 0).loops
    assert not Reply((1,), period * 4, Sampling(), 0).loops


def test_with_the_same_noise_a_target_guesses_itself() -> None:
    options = EngineOptions(model=str(TARGET), draft="copy", audit=False)
    loaded = load(options, lambda *_: None)
    target, sampling, seed = bind(loaded.model, loaded.config), Sampling(temperature=1.0), 3
    text = loaded.codec.encode("import os\n\n\ndef names(folder):\n")
    prompt, caches = tuple(text), target.new_caches()
    logits = target.forward(text, caches)[-1:]
    for _ in range(2 * MOST_DRAFTS + 3):
        text.append(int(np.array(choose(logits, [len(text)], sampling, seed))[0]))
        logits = target.forward(text[-1:], caches)
    reply = Reply(prompt, tuple(text[len(prompt) :]), sampling, seed)
    logits = own_logits(target, reply)
    assert drafted_by_itself(logits, reply, seed) == Count(2 * MOST_DRAFTS + 2, 2)
    other = drafted_by_itself(logits, reply, seed + 1)
    assert other.tokens == 2 * MOST_DRAFTS + 2
    assert other.rounds > 4
