"""Products with quantised weights: sums of integers, the same bits wherever they are computed."""

from __future__ import annotations

import functools

import mlx.core as mx
import numpy as np
import pytest
from kernel_cases import (
    KERNELS,
    MISSING,
    SETS,
    TYPES,
    assert_same_bits,
    bits,
    normal,
    wide,
)

MOST_ROWS = 33
# As in kernels/fixed_point.h: integers of x, and below what magnitude a group is not resolved.
MOST, FLOOR = 32639, 2.0**-100


@functools.cache
def packed(width, depth, group, bits, scale_type=mx.bfloat16, seed=0):
    """Words, scales and biases of random weights, and what they stand for in float64."""
    words, scales, biases = mx.quantize(
        normal(width, depth, seed=seed), group_size=group, bits=bits
    )
    scales, biases = scales.astype(scale_type), biases.astype(scale_type)
    numbers = unpacked(words, bits).reshape(width, -1, group)
    weights = numbers * wide(scales)[..., None] + wide(biases)[..., None]
    return (words, scales, biases), weights.reshape(width, depth)


def unpacked(words, bits):
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return (np.array(words)[..., None] >> shifts & (2**bits - 1)).reshape(len(words), -1)


def bound(x, weights, group):
    """How far a result may be off: half a step of each element of x in fixed point, and the
    rounding of the float32 sums. (M, N)."""
    grouped = np.abs(wide(x)).reshape(len(x), -1, group)
    step = np.maximum(grouped.max(-1, keepdims=True), FLOOR) / MOST
    of_x = np.broadcast_to(step / 2 * 1.001, grouped.shape).reshape(len(x), -1)
    size = np.abs(wide(x)) @ np.abs(weights).T
    # The weights' share of a group is split in two terms, which may be larger than their sum.
    rounding = 2.0**-23 * (2 * grouped.shape[1] + 4) * 4
    result = 2.0**-8 if x.dtype == mx.bfloat16 else 0
    return of_x @ np.abs(weights).T + size * (rounding + result) + 1e-37


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("bits_of_weights", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("groups", [1, 2, 9])
def test_rows_and_values(kernels, dtype, bits_of_weights, group, groups):
    x = normal(MOST_ROWS, group * groups, seed=1, dtype=dtype)
    for scale_type in (mx.float32, mx.bfloat16, mx.float16):
        parts, weights = packed(36, group * groups, group, bits_of_weights, scale_type)
        multiply = kernels.Weights(parts, group, bits_of_weights)
        together = multiply(x)
        assert together.dtype == dtype
        assert (np.abs(wide(together) - wide(x) @ weights.T) <= bound(x, weights, group)).all()
    for rows in (*range(1, 18), 31, 32):
        assert_same_bits(multiply(x[:rows]), together[:rows])


@pytest.mark.skipif(bool(MISSING), reason="the kernels are not built here")
@pytest.mark.parametrize("bits_of_weights", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_every_instruction_set_gives_the_same_bits(bits_of_weights, group):
    parts, _ = packed(53, group * 5, group, bits_of_weights)
    multiply = KERNELS.Weights(parts, group, bits_of_weights)
    chosen = KERNELS.used()
    for dtype in TYPES:
        x = normal(19, group * 5, seed=2, dtype=dtype)
        x[3] = x[3] * 1e30
        x[4] = x[4] * 1e-36
        x[5, 7] = float("nan")
        found = {}
        for name in SETS:
            KERNELS.use(name)
            found[name] = [bits(multiply(x[:rows])) for rows in (1, 4, 7, 19)]
        KERNELS.use(chosen)
        for results in found.values():
            for some, others in zip(results, found[SETS[0]], strict=True):
                np.testing.assert_array_equal(some, others)


@pytest.mark.parametrize("bits_of_weights", [4, 8])
def test_integers_of_any_size_are_exact(kernels, bits_of_weights):
    """Where x is integers, the largest of a group is MOST and the weights are integers too, the
    sums are those of integers: of all weights at their largest as well."""
    group, most = 128, 2**bits_of_weights - 1
    rng = np.random.default_rng(3)
    x = rng.integers(-MOST, MOST + 1, (9, group))
    x[:, 5] = MOST
    x[0] = MOST
    x[1] = -MOST
    numbers = rng.integers(0, most + 1, (20, group))
    numbers[0] = most
    per_word = 32 // bits_of_weights
    shifts = np.arange(per_word) * bits_of_weights
    words = (numbers.reshape(20, -1, per_word) << shifts).sum(-1).astype(np.uint32)
    multiply = kernels.Weights(
        [mx.array(words), mx.ones((20, 1)), mx.zeros((20, 1))], group, bits_of_weights
    )
    got = multiply(mx.array(x.astype(np.float32)))
    np.testing.assert_array_equal(np.array(got), (x @ numbers.T).astype(np.float32))


def test_outliers_cost_their_own_group_alone(kernels):
    """As 8-bit activations would lose all but the outlier."""
    parts, weights = packed(40, 128, 32, 4)
    x = normal(3, 128, seed=4)
    x[1, 40] = 3e4
    got = kernels.Weights(parts, 32, 4)(x)
    error = np.abs(wide(got) - wide(x) @ weights.T)
    assert (error <= bound(x, weights, 32)).all()
    assert error[1].max() > error[0].max()
    x[1, 32:64] = 0
    alone = np.abs(wide(kernels.Weights(parts, 32, 4)(x)) - wide(x) @ weights.T)
    assert alone[1].max() < error[1].max() / 50


def test_extremes(kernels):
    """All weights at the ends of their range, group sums that cancel, zeros and tiny numbers."""
    words = mx.array([[0xFFFFFFFF] * 16, [0] * 16, [0xF0F0F0F0] * 16], mx.uint32)
    x = mx.concatenate([mx.full((1, 64), 1e30), mx.full((1, 64), -1e30)], axis=1)
    x = mx.concatenate(
        [x, mx.full((1, 128), 1e-38), mx.zeros((1, 128)), mx.full((1, 128), 1e-44), -x]
    )
    scales, biases = mx.full((3, 4), 1e-3), mx.full((3, 4), -0.5)
    got = wide(kernels.Weights([words, scales, biases], 32, 4)(x))
    weights = mx.dequantize(words, scales, biases, group_size=32, bits=4)
    exact = wide(x) @ wide(weights).T
    np.testing.assert_allclose(got[[0, 4]], exact[[0, 4]], atol=1e30 * 128 * 1e-6)
    # Below the floor a number is zero.
    np.testing.assert_array_equal(got[1:4], 0)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("bits_of_weights", [4, 8])
def test_numbers_that_are_none_stay_in_their_row(kernels, dtype, bits_of_weights):
    parts, _ = packed(40, 96, 32, bits_of_weights)
    multiply = kernels.Weights(parts, 32, bits_of_weights)
    x = normal(21, 96, seed=1, dtype=dtype)
    clean = multiply(x)
    x[4, 3], x[7, 50], x[20, 95] = float("nan"), float("inf"), float("-inf")
    got = multiply(x)
    for row in range(21):
        if row in (4, 7, 20):
            assert mx.isnan(got[row]).all().item()
        else:
            assert_same_bits(got[row], clean[row])


@pytest.mark.parametrize("bits_of_weights", [4, 8])
def test_the_weights_can_be_had_back(kernels, bits_of_weights):
    parts, _ = packed(70, 96, 32, bits_of_weights)
    weights = kernels.Weights(parts, 32, bits_of_weights)
    for own, part in zip(weights.rows(), parts, strict=True):
        assert mx.array_equal(own, part)
    ids = mx.array([[3, 69, 0], [17, 3, -1]])
    for own, part in zip(weights.rows(ids), parts, strict=True):
        assert mx.array_equal(own, part[ids])


def test_weights_that_do_not_fit_are_refused(kernels):
    (words, scales, biases), _ = packed(8, 64, 32, 4)
    for group, bits_of_weights, parts, why in (
        (16, 4, [words, scales, biases], "groups of 32, 64 or 128"),
        (32, 3, [words, scales, biases], "4 or 8 bits"),
        (64, 4, [words, scales, biases], r"w \(N, K"),
        (32, 4, [words, scales, biases[:4]], r"w \(N, K"),
        (32, 4, [words, scales], "one array, or three"),
    ):
        with pytest.raises(ValueError, match=why):
            kernels.Weights(parts, group, bits_of_weights)
    weights = kernels.Weights([words, scales, biases], 32, 4)
    with pytest.raises(ValueError, match=r"x \(\.\.\., K"):
        weights(normal(2, 32))
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        weights(normal(2, 64).astype(mx.float16))
