"""How likely the model found what was chosen, and what else."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from engine.messages import TokenLogprob


def logprobs(logits: mx.array, chosen: mx.array, likely: int) -> list[TokenLogprob]:
    """Each row's log-probability of its token, in float32, and the `likely` most probable ones.

    logits: (M, vocabulary), as the model has them. chosen: (M,). Equal ones are in order of id.
    """
    wide = logits.astype(mx.float32)
    scores = np.array(wide - mx.logsumexp(wide, axis=-1, keepdims=True))
    tokens = np.array(chosen)
    best = np.argsort(-scores, axis=-1, kind="stable")[:, :likely]
    return [
        TokenLogprob(
            int(token),
            float(row[token]),
            tuple((int(other), float(row[other])) for other in others),
        )
        for row, token, others in zip(scores, tokens, best, strict=True)
    ]
