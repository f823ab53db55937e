"""The kernel that chooses tokens chooses what MLX's operations choose, on every instruction set."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from kernel_cases import normal

from engine.cpu.choice import choose_kernel, chosen_by
from engine.decoding import sampling as choosing
from engine.decoding.sampling import COLDEST, choose, chosen_by_operations, gumbel, noise_keys
from engine.messages import Sampling

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.2),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(temperature=1.0, top_p=0.01),
    Sampling(temperature=1.5, top_p=0.999, top_k=300),
    Sampling(temperature=0.8, top_k=7),
    Sampling(temperature=1.3, min_p=0.05),
    Sampling(temperature=1.0, top_k=40, top_p=0.95, min_p=0.02),
    Sampling(temperature=1e-9),
]
POSITIONS = range(100, 106)


def kernel_choice(kernels, x, sampling, positions=POSITIONS):
    keys = noise_keys(42, positions)
    return np.array(chosen_by(kernels.choose, x, keys, sampling, COLDEST))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize("vocabulary", [4, 33, 1031])
def test_the_same_tokens(kernels, dtype, vocabulary):
    for scale in (0.5, 4.0):
        x = (normal(len(POSITIONS), vocabulary, seed=vocabulary) * scale).astype(dtype)
        # Equal logits, and tokens that are masked out.
        x[1] = mx.round(x[1])
        x[2, ::3] = -math.inf
        for sampling in SAMPLINGS:
            expected = chosen_by_operations(x, POSITIONS, sampling, 42)
            np.testing.assert_array_equal(kernel_choice(kernels, x, sampling), np.array(expected))


def test_a_row_s_choice_does_not_depend_on_the_others(kernels):
    x = normal(len(POSITIONS), 77) * 3
    for sampling in SAMPLINGS:
        together = kernel_choice(kernels, x, sampling)
        for row, position in enumerate(POSITIONS):
            alone = kernel_choice(kernels, x[row : row + 1], sampling, [position])
            assert alone[0] == together[row]


def test_a_row_without_a_choice_is_marked(kernels):
    x = normal(4, 50)
    x[0, 49], x[1, 3], x[2] = math.nan, math.inf, -math.inf
    for sampling in SAMPLINGS:
        chosen = kernel_choice(kernels, x, sampling, range(4))
        assert chosen[:3].tolist() == [-1, -1, -1]
        assert 0 <= chosen[3] < 50


def test_the_noise_bound_rules_out_no_winner(kernels):
    # All tokens alike: the noise alone decides, so a bound that were too low would show.
    vocabulary, positions = 3001, range(200)
    chosen = kernel_choice(
        kernels, mx.zeros((200, vocabulary)), Sampling(temperature=1.0), positions
    )
    noise = np.array(gumbel(42, positions, mx.arange(vocabulary)))
    np.testing.assert_array_equal(chosen, noise.argmax(axis=1))


def test_choose_asks_the_kernel_and_only_one_that_agrees(kernels, monkeypatch):
    assert choose_kernel() is not None
    monkeypatch.setattr(
        choosing, "choose_kernel", lambda: lambda x, *rest: mx.full((x.shape[0],), 5)
    )
    assert choose(normal(2, 9), [0, 1], Sampling()).tolist() == [5, 5]
    with pytest.raises(ValueError, match="choose"):
        kernels.choose(normal(2, 9), [1])
