"""How many tokens a round of speculative decoding commits, by replaying replies of the target.

A draft is accepted iff it equals the target's choice, so with the reply known the rounds follow
without decoding: the drafter sees the hidden states of one forward over prompt and reply, guesses
behind each anchor, and moves on by what was right and one more token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from engine.decoding.sampling import choose
from engine.drafters.copy import CopyDrafter
from engine.drafters.dflash import DFlashModel
from engine.drafters.dflash_drafter import DFlashDrafter
from engine.messages import Sampling
from engine.targets.target import Target

MOST_DRAFTS = 7  # of a block of 8; copying gets no more
LOOP_WINDOW, LONGEST_LOOP = 32, 12


@dataclass(frozen=True)
class Reply:
    """What the target answered, and how its tokens were chosen."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    sampling: Sampling
    seed: int

    @property
    def loops(self) -> bool:
        """Whether its end repeats one short run of tokens."""
        end = self.tokens[-LOOP_WINDOW:]
        return len(end) == LOOP_WINDOW and any(
            end[period:] == end[:-period] for period in range(1, LONGEST_LOOP + 1)
        )


@dataclass
class Count:
    """tokens: committed in `rounds`; a reply's first token comes from its prefill."""

    tokens: int = 0
    rounds: int = 0

    def add(self, other: Count) -> None:
        self.tokens += other.tokens
        self.rounds += other.rounds

    @property
    def per_round(self) -> float | None:
        return round(self.tokens / self.rounds, 3) if self.rounds else None


def seen_by_drafters(target: Target, reply: Reply) -> mx.array:
    """The tapped rows of prompt and reply but for its last token, from one forward."""
    target.prefill([*reply.prompt, *reply.tokens[:-1]], target.new_caches())
    hidden = target.take_hidden()
    mx.eval(hidden)
    return hidden


def dflash(target: Target, model: DFlashModel, reply: Reply, noise_seed: int) -> DFlashDrafter:
    """A drafter for `reply`. Its own seed makes the drafter share the verifier's noise."""
    return DFlashDrafter(
        model, embed=target.embed, head=target.head, sampling=reply.sampling, seed=noise_seed
    )


def replay(
    drafter: CopyDrafter | DFlashDrafter, reply: Reply, hidden: mx.array | None = None
) -> Count:
    """Rounds of `reply` under a fresh drafter; hidden: `seen_by_drafters`, for one that reads."""
    text = [*reply.prompt, *reply.tokens]
    at, rounds = len(reply.prompt) + 1, 0
    if hidden is not None and isinstance(drafter, DFlashDrafter):
        drafter.observe(hidden[: at - 1])
    drafter.commit(text[:at])
    while at < len(text):
        guessed = drafter.propose(min(MOST_DRAFTS, len(text) - at))
        kept = min(matching(guessed, text[at:]) + 1, len(text) - at)
        if hidden is not None and isinstance(drafter, DFlashDrafter):
            drafter.observe(hidden[at - 1 : at - 1 + kept])
        drafter.commit(text[at : at + kept])
        at, rounds = at + kept, rounds + 1
    return Count(len(reply.tokens) - 1, rounds)


def own_logits(target: Target, reply: Reply) -> mx.array:
    """The target's logits (tokens - 1, V), float32, of every token of `reply` but the first."""
    text = [*reply.prompt, *reply.tokens[:-1]]
    logits = target.forward(text, target.new_caches())[len(reply.prompt) :].astype(mx.float32)
    mx.eval(logits)
    return logits


def drafted_by_itself(logits: mx.array, reply: Reply, noise_seed: int) -> Count:
    """Rounds of `reply` if the target itself drafted: what no drafter can do better.

    logits: `own_logits`. With the verifier's noise it is always right; with another it shows how
    far the text itself leaves the choice open.
    """
    first = len(reply.prompt) + 1
    positions = range(first, first + logits.shape[0])
    chosen = np.array(choose(logits, positions, reply.sampling, noise_seed)).tolist()
    at, rounds = 0, 0
    true = reply.tokens[1:]
    while at < len(true):
        kept = matching(chosen[at : at + MOST_DRAFTS], true[at:]) + 1
        at, rounds = min(at + kept, len(true)), rounds + 1
    return Count(len(true), rounds)


def matching(guessed: Sequence[int], true: Sequence[int]) -> int:
    """How many leading tokens agree."""
    for index, (guess, token) in enumerate(zip(guessed, true, strict=False)):
        if guess != token:
            return index
    return min(len(guessed), len(true))
