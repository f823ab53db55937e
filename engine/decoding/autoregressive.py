"""Target-only decoding: one row, one token."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engine.decoding.logprobs import logprobs
from engine.decoding.sampling import choose, margins
from engine.decoding.verify import commit_run
from engine.drafters.dflash_drafter import TappedRows
from engine.sequence import SequenceState
from engine.targets.target import Target


def choose_rows(
    sequence: SequenceState,
    logits: mx.array,
    drafts: Sequence[int],
    allowed: NDArray[np.bool_] | None = None,
) -> list[int]:
    """The token each row chooses, given that `drafts` up to it were committed.

    logits: (M, vocabulary), M = len(drafts) + 1. Row i chooses the token at absolute position
    len(sequence.tokens) + i. One synchronisation with the device.
    allowed: (M, n) mask of what each row may choose; no token from n on is.
    """
    sampling = sequence.request.sampling
    first = len(sequence.tokens)
    positions = range(first, first + logits.shape[0])
    mask = None
    if allowed is not None:
        # Logits may be padded beyond the vocabulary.
        padding = logits.shape[-1] - allowed.shape[-1]
        mask = mx.pad(mx.array(allowed), [(0, 0), (0, padding)])
    arguments = (logits, positions, sampling, sequence.seed, sequence.history, drafts, mask)
    chosen = choose(*arguments)
    if sequence.request.margins:
        gaps = margins(*arguments)
        mx.eval(chosen, gaps)
        sequence.margins += np.array(gaps).tolist()
    if sequence.request.logprobs is not None:
        sequence.logprobs += logprobs(logits, chosen, sequence.request.logprobs)
    return [int(token) for token in np.array(chosen)]


def commit(sequence: SequenceState, drafts: Sequence[int], chosen: Sequence[int]) -> int:
    """Commit the drafts that the target chose itself, and its own next token.

    chosen: len(drafts) + 1 tokens from `choose_rows`. Returns how many tokens were committed (the
    reply may end inside the run). Raises EngineError when the model's logits are unusable.
    """
    run = commit_run(drafts, chosen)
    taken = sequence.take(run)
    if sequence.history is not None:
        sequence.history.commit(run[:taken])
    if sequence.drafter is not None:
        sequence.drafter.commit(run[:taken])
    # Rows behind the last committed token chose nothing.
    del sequence.margins[len(sequence.output) :]
    del sequence.logprobs[len(sequence.output) :]
    accepted = min(taken, len(run) - 1)
    sequence.counters.accepted += accepted
    sequence.counters.rejected += len(drafts) - accepted
    return taken


def observe(target: Target, sequence: SequenceState, kept: int) -> None:
    """Show the sequence's drafters the first `kept` rows of the last forward, which stay in the
    caches."""
    if target.tapped and sequence.drafter is not None:
        sequence.drafter.observe(TappedRows(target.take_hidden(), kept))


def autoregressive(
    target: Target,
    sequence: SequenceState,
    drafts: Sequence[int] = (),
    allowed: NDArray[np.bool_] | None = None,
) -> None:
    """Decode one token behind the last one; `drafts` are not looked at."""
    logits = target.forward(sequence.tokens[-1:], sequence.caches)
    chosen = choose_rows(sequence, logits, (), allowed)
    sequence.counters.rounds += 1
    commit(sequence, (), chosen)
    observe(target, sequence, 1)
