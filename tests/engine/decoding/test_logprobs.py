"""Log-probabilities are a softmax's, and the likeliest tokens those of a full sort."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from engine.decoding.logprobs import logprobs

VOCABULARY = 50
RNG = np.random.default_rng(7)
# With many equal scores, and tokens that are impossible.
ROWS = np.round(RNG.normal(size=(6, VOCABULARY)) * 2) / 2
ROWS[:, ::7] = -np.inf


@pytest.mark.parametrize("likely", [0, 1, 5, 20, VOCABULARY, VOCABULARY + 3])
def test_they_are_what_a_full_sort_says(likely):
    chosen = ROWS.argmax(axis=1)
    found = logprobs(mx.array(ROWS, mx.float32), mx.array(chosen), likely)
    exact = ROWS - np.log(np.exp(ROWS).sum(axis=1, keepdims=True))
    for row, token, one in zip(exact, chosen, found, strict=True):
        order = sorted(range(VOCABULARY), key=lambda other: (-row[other], other))[:likely]
        assert (one.token, [other for other, _ in one.likely]) == (token, order)
        assert one.logprob == pytest.approx(row[token], abs=1e-5)
        assert [score for _, score in one.likely] == pytest.approx(list(row[order]), abs=1e-5)
