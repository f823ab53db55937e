"""How likely the model found what was chosen, and what else."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engine.messages import TokenLogprob


def logprobs(logits: mx.array, chosen: mx.array, likely: int) -> list[TokenLogprob]:
    """Each row's log-probability of its token, in float32, and the `likely` most probable ones.

    logits: (M, vocabulary), as the model has them. chosen: (M,). Equal ones are in order of id.
    """
    wide = logits.astype(mx.float32)
    scores = np.array(wide - mx.logsumexp(wide, axis=-1, keepdims=True))
    return [
        TokenLogprob(
            int(token),
            float(row[token]),
            tuple((int(other), float(row[other])) for other in _best(row, likely)),
        )
        for row, token in zip(scores, np.array(chosen), strict=True)
    ]


def _best(row: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Ids of the `count` highest scores. Only these are sorted: a whole vocabulary takes longer
    than a small model's forward."""
    least = np.partition(row, -count)[-count] if 0 < count < len(row) else -np.inf
    among = np.flatnonzero(row >= least) if count else np.empty(0, np.intp)
    return among[np.argsort(-row[among], kind="stable")][:count]
