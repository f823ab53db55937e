"""Speculative decoding: verify a block of drafts in one target forward, losslessly.

A draft is accepted if and only if it equals the token the target chooses in its place, greedy and
sampled alike, so the reply is the serial one whatever
the drafter says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.decoding.autoregressive import choose_rows, commit, observe
from engine.sequence import SequenceState
from engine.targets.target import Target


def speculative(
    target: Target,
    sequence: SequenceState,
    drafts: Sequence[int],
    allowed: NDArray[np.bool_] | None = None,
) -> None:
    """Verify `drafts` behind the last token and commit what the target agrees with, plus one."""
    logits = target.forward([sequence.tokens[-1], *drafts], sequence.caches)
    chosen = choose_rows(sequence, logits, drafts, allowed)
    sequence.counters.rounds += 1
    taken = commit(sequence, drafts, chosen)
    # `taken` tokens are new; the last of them is the next anchor and not in the caches yet.
    target.roll_back(sequence.caches, len(drafts) + 1, taken)
    observe(target, sequence, taken)
