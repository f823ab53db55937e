"""How many tokens a round of speculative decoding commits, by replaying replies of the target.

A draft is accepted iff it equals the target's choice, so with the reply known the rounds follow
without decoding: the drafter sees the hidden states of one forward over prompt and reply, guesses
behind each anchor, and moves on by what was right and one more token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from engine.drafters.copy import CopyDrafter
from engine.drafters.dflash import DFlashModel
from engine.drafters.dflash_drafter import DFlashDrafter
from engine.messages import Sampling
from engine.targets.target import Target

WIDEST_COPY = 7  # as many drafts as a block of 8 has
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


def replay(
    target: Target | None, model: DFlashModel | None, reply: Reply, noise_seed: int
) -> Count:
    """Rounds of `reply` under a drafter bound to `target`, or under copying without either.

    noise_seed: the reply's own seed makes the drafter share the verifier's noise.
    """
    text = [*reply.prompt, *reply.tokens]
    drafter: CopyDrafter | DFlashDrafter = CopyDrafter()
    hidden: mx.array | None = None
    if target is not None and model is not None:
        drafter = DFlashDrafter(
            model,
            embed=target.embed,
            head=target.head,
            sampling=reply.sampling,
            seed=noise_seed,
        )
        target.prefill(text[:-1], target.new_caches())
        hidden = target.take_hidden()
        drafter.observe(hidden[: len(reply.prompt)])
    drafter.commit(text[: len(reply.prompt) + 1])
    at, rounds = len(reply.prompt) + 1, 0
    while at < len(text):
        guessed = drafter.propose(min(WIDEST_COPY, len(text) - at))
        kept = matching(guessed, text[at:]) + 1
        kept = min(kept, len(text) - at)
        if hidden is not None:
            assert isinstance(drafter, DFlashDrafter)
            drafter.observe(hidden[at - 1 : at - 1 + kept])
        drafter.commit(text[at : at + kept])
        at, rounds = at + kept, rounds + 1
    return Count(len(reply.tokens) - 1, rounds)


def matching(guessed: Sequence[int], true: Sequence[int]) -> int:
    """How many leading tokens agree."""
    for index, (guess, token) in enumerate(zip(guessed, true, strict=False)):
        if guess != token:
            return index
    return min(len(guessed), len(true))
