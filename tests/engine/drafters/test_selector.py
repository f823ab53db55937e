from __future__ import annotations

import itertools
import math
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from drafter_models import config
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.dflash_config import DFlashConfig
from engine.drafters.selector import CandidateSelector, filtered, walk
from engine.messages import Sampling

K, RANK, VOCABULARY, HIDDEN = 3, 2, 7, 8
GREEDY = Sampling()


def selector(top_k: int = K, seed: int = 0) -> CandidateSelector:
    raw = config(
        2,
        {"selector_rank": RANK, "selector_top_k": top_k, "mask_token_id": 0},
        hidden_size=HIDDEN,
        vocab_size=VOCABULARY,
    )
    module = CandidateSelector(DFlashConfig.parse(raw, Path("config.json")))
    rng = np.random.default_rng(seed)
    module.predecessor_codebook = mx.array(rng.normal(size=(VOCABULARY, RANK)), mx.float32)
    module.successor_codebook = mx.array(rng.normal(size=(VOCABULARY, RANK)), mx.float32)
    module.hidden_projection.weight = mx.array(rng.normal(size=(RANK, HIDDEN)), mx.float32)
    return module


def brute_force(module, hidden, logits, anchor: int) -> list[int]:
    """The best candidate of each slot after the one before, computed token by token."""
    before, after = np.array(module.predecessor_codebook), np.array(module.successor_codebook)
    tokens = []
    for row, unary in zip(hidden, logits, strict=True):
        projected = np.array(module.hidden_projection.weight) @ row
        best = sorted(range(VOCABULARY), key=lambda token: (-unary[token], token))[:K]
        scores = [unary[b] + float(np.sum(before[anchor] * projected * after[b])) for b in best]
        anchor = best[int(np.argmax(scores))]
        tokens.append(anchor)
    return tokens


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(0, VOCABULARY - 1))
def test_the_chain_is_the_brute_force_chain(seed, slots, anchor):
    module, rng = selector(seed=seed), np.random.default_rng(seed)
    hidden = rng.normal(size=(slots, HIDDEN)).astype(np.float32)
    logits = rng.normal(size=(slots, VOCABULARY)).astype(np.float32)
    chosen = module.select(mx.array(hidden), mx.array(logits), anchor, range(slots), GREEDY, seed=0)
    assert chosen == brute_force(module, hidden, logits, anchor)


def test_equal_logits_prefer_the_lower_id():
    module = selector()
    module.hidden_projection.weight = mx.zeros((RANK, HIDDEN))
    logits = mx.zeros((2, VOCABULARY)) + mx.array([0, 0, 0, 1.0, 1.0, 1.0, 1.0])
    ids, _ = module.scores(mx.zeros((2, HIDDEN)), logits, 0, GREEDY)
    assert ids.tolist() == [[3, 4, 5]] * 2
    assert module.select(mx.zeros((2, HIDDEN)), logits, 0, range(2), GREEDY, 0) == [3, 3]


def test_rows_of_a_padded_head_are_never_candidates():
    module = selector()
    padded = mx.concatenate([mx.zeros((2, VOCABULARY)), mx.full((2, 4), 100.0)], axis=1)
    ids, _ = module.scores(mx.zeros((2, HIDDEN)), padded, 0, GREEDY)
    assert int(mx.max(ids).item()) < VOCABULARY


def test_logit_bias_moves_the_candidates():
    module = selector()
    logits = mx.arange(VOCABULARY, dtype=mx.float32)[None]
    biased = Sampling(logit_bias=((0, 100.0), (6, -100.0)))
    ids, _ = module.scores(mx.zeros((1, HIDDEN)), logits, 0, biased)
    assert ids.tolist() == [[0, 5, 4]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-30, 30), min_size=1, max_size=16, unique=True),
    st.sampled_from([1.0, 0.9, 0.5, 0.05]),
    st.sampled_from([0, 1, 3, 20]),
    st.sampled_from([0.0, 0.2]),
)
def test_the_filter_is_that_of_a_sorted_row(values, top_p, top_k, min_p):
    row = [value / 7 for value in values]
    sampling = Sampling(temperature=1.0, top_p=top_p, top_k=top_k, min_p=min_p)
    masses = [math.exp(value) for value in row]
    kept, before = set(), 0.0
    for rank, index in enumerate(sorted(range(len(row)), key=lambda i: -row[i])):
        inside = before < top_p * sum(masses) or math.isclose(before, top_p * sum(masses))
        if inside and (not top_k or rank < top_k) and masses[index] >= min_p * max(masses):
            kept.add(index)
        before += masses[index]
    result = np.array(filtered(mx.array([row]), sampling))[0]
    assert {i for i in range(len(row)) if result[i] > -math.inf} == kept


def test_walk_follows_the_table():
    ids = [[10, 11], [20, 21], [30, 31]]
    for table in itertools.product([[0, 0], [0, 1], [1, 0], [1, 1]], repeat=3):
        first = table[0][0]
        second = table[1][first]
        assert walk(ids, table) == [ids[0][first], ids[1][second], ids[2][table[2][second]]]


@pytest.mark.parametrize("top_k", [1, VOCABULARY])
def test_extreme_numbers_of_candidates(top_k):
    module = selector(top_k)
    logits = mx.array(np.random.default_rng(0).normal(size=(4, VOCABULARY)), mx.float32)
    chosen = module.select(mx.zeros((4, HIDDEN)), logits, 1, range(4), GREEDY, 0)
    assert chosen == mx.argmax(logits, axis=-1).tolist()
