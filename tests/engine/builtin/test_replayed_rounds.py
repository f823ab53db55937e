"""Replaying rounds: what would have been accepted."""

from __future__ import annotations

from engine.builtin.train.acceptance import Count, Reply, matching, replay
from engine.drafters.copy import CopyDrafter
from engine.messages import Sampling


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
