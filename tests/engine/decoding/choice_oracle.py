"""The choice rule again, one row at a time, sorted and in float64: slow and easy to read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from engine.messages import Sampling


def choose_row(
    logits: np.ndarray,
    sampling: Sampling,
    noise: np.ndarray,
    prompt: Sequence[int],
    output: Sequence[int],
    allowed: np.ndarray | None = None,
) -> tuple[int, float]:
    """The chosen token and how clear the choice was.

    Clearness is the smallest distance to another outcome: of the two best scores, or of a
    filter's boundary. Float32 may differ from this oracle only where it is tiny.
    """
    x = logits.astype(np.float64).copy()
    for token, bias in sampling.logit_bias:
        x[token] += bias
    for token in {*prompt, *output}:
        penalty = sampling.repetition_penalty
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
    for token, times in Counter(output).items():
        x[token] -= sampling.presence_penalty + sampling.frequency_penalty * times
    if allowed is not None:
        x[~allowed] = -math.inf
    if sampling.greedy:
        return _best(x)
    x = (x - x.max()) / sampling.temperature
    order = sorted(range(len(x)), key=lambda token: (-x[token], token))
    clear = math.inf
    if 0 < sampling.top_k < len(x):
        gap = x[order[sampling.top_k - 1]] - x[order[sampling.top_k]]
        clear = min(clear, gap or math.inf)  # an exact tie is decided by the id
        order = order[: sampling.top_k]
    if sampling.top_p < 1.0:
        mass = np.exp(x[order])
        before = np.cumsum(mass) - mass
        limit = sampling.top_p * mass.sum()
        clear = min(clear, float(np.abs(before[1:] - limit).min(initial=math.inf)))
        order = [
            t for t, above in zip(order, before, strict=True) if above < limit or t == order[0]
        ]
    if sampling.min_p > 0.0:
        floor = math.log(sampling.min_p)
        clear = min(clear, min(abs(x[token] - floor) for token in order))
        order = [token for token in order if x[token] >= floor]
    scores = np.full(len(x), -math.inf)
    scores[order] = x[order] + noise[order]
    token, gap = _best(scores)
    return token, min(clear, gap)


def _best(scores: np.ndarray) -> tuple[int, float]:
    first = int(np.argmax(scores))
    rest = np.delete(scores, first)
    gap = scores[first] - rest.max(initial=-math.inf)
    return first, float(gap) if gap else math.inf
