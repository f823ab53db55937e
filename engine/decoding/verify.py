"""Which drafts of a round are committed: the longest prefix that the target chose itself.

One rule for greedy and sampled decoding, because the choice is a pure function of logits,
position and seed (`engine.decoding.sampling`).
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import EngineError


def accept(drafts: Sequence[int], chosen: Sequence[int]) -> int:
    """How many drafts equal what was chosen in their place.

    chosen: len(drafts) + 1 tokens; ``chosen[i]`` is the target's choice after ``drafts[:i]``.
    """
    if len(chosen) != len(drafts) + 1:
        raise ValueError(f"{len(drafts)} drafts need {len(drafts) + 1} choices, got {len(chosen)}")
    for index, draft in enumerate(drafts):
        if draft != chosen[index]:
            return index
    return len(drafts)


def commit_run(drafts: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """The tokens one round emits: the accepted drafts and the target's own next token.

    Raises EngineError when the round ends in -1, `choose`'s mark for unusable logits. Such a mark
    behind a rejected draft is nobody's business: serial decoding would never have computed it.
    """
    run = list(chosen[: accept(drafts, chosen) + 1])
    if run[-1] < 0:
        raise EngineError(
            "the model's logits hold NaN or infinity, or every token was ruled out: the weights "
            "or the requested dtype are damaged, or logit_bias and masks leave no token"
        )
    return run
