"""Every kernel against a slow reference in float64, and every row against itself alone."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from kernel_cases import TYPES, assert_close, assert_same_bits, normal, wide

MOST_ROWS = 33


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("width", "depth"), [(256, 256), (70, 97), (5, 7), (1, 1), (33, 600), (17, 16)]
)
def test_dense(kernels, dtype, width, depth):
    x, w = normal(MOST_ROWS, depth, dtype=dtype), normal(width, depth, seed=1, dtype=dtype)
    together = kernels.dense(x, w)
    assert together.dtype == dtype
    assert_close(together, wide(x) @ wide(w).T)
    for rows in range(1, MOST_ROWS):
        assert_same_bits(kernels.dense(x[:rows], w), together[:rows])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_numbers_that_are_none_stay_in_their_row(kernels, dtype):
    x, w = normal(9, 40, dtype=dtype), normal(20, 40, seed=1, dtype=dtype)
    clean = kernels.dense(x, w)
    x[4, 3], x[7, 5] = float("nan"), float("inf")
    got = kernels.dense(x, w)
    assert mx.isnan(got[4]).all().item()
    assert not mx.isfinite(got[7]).any().item()
    for row in (0, 1, 2, 3, 5, 6, 8):
        assert_same_bits(got[row], clean[row])


def delta_rule(q, k, v, a, b, a_log, dt_bias, state):
    """Gated DeltaNet, arXiv:2412.06464, equation 10, one head and one row at a time."""
    heads, repeat = v.shape[1], v.shape[1] // q.shape[1]
    decay = np.exp(-np.exp(a_log) * np.log1p(np.exp(a + dt_bias)))
    strength = 1 / (1 + np.exp(-b))
    y, state = np.zeros(v.shape), state.copy()
    for t in range(len(q)):
        for head in range(heads):
            key, query = k[t, head // repeat], q[t, head // repeat]
            state[head] *= decay[t, head]
            delta = (v[t, head] - state[head] @ key) * strength[t, head]
            state[head] += np.outer(delta, key)
            y[t, head] = state[head] @ query
    return y, state


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("key_heads", "heads", "key_width", "value_width"),
    [(2, 4, 64, 64), (2, 4, 8, 12), (1, 1, 20, 17), (1, 3, 128, 128)],
)
def test_gated_delta(kernels, dtype, key_heads, heads, key_width, value_width):
    steps = 9
    q, k = (
        (normal(1, steps, key_heads, key_width, seed=i) * key_width**-0.5).astype(dtype)
        for i in range(2)
    )
    v = normal(1, steps, heads, value_width, seed=2, dtype=dtype)
    a, b = (normal(1, steps, heads, seed=3 + i, dtype=dtype) * 3 for i in range(2))
    a_log, dt_bias = normal(heads, seed=5), normal(heads, seed=6, dtype=dtype)
    state = normal(1, heads, value_width, key_width, seed=7)
    y, after = kernels.gated_delta(q, k, v, a, b, a_log, dt_bias, state)
    assert (y.dtype, after.dtype) == (dtype, mx.float32)
    weights = wide(a_log), wide(dt_bias), wide(state)[0]
    expected, expected_state = delta_rule(*(wide(x)[0] for x in (q, k, v, a, b)), *weights)
    assert_close(y[0], expected)
    assert_close(after[0], expected_state)
    for t in range(steps):
        at = slice(t, t + 1)
        step = (x[:, at] for x in (q, k, v, a, b))
        row, state = kernels.gated_delta(*step, a_log, dt_bias, state)
        assert_same_bits(row, y[:, at])
    assert_same_bits(state, after)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [64, 16, 72, 5])
def test_attention(kernels, dtype, width):
    """Grouped heads, a cache with room behind its rows, and rows that came together or alone."""
    rows, length, scale = 19, 211, width**-0.5
    keys, values = (normal(2, 2, 300, width, seed=i, dtype=dtype) for i in range(2))
    queries = normal(2, rows, 4, width, seed=2, dtype=dtype).transpose(0, 2, 1, 3)
    seen = keys[:, :, :length], values[:, :, :length]
    together = kernels.attention(queries, *seen, scale, True)
    q, k, v = wide(queries), *(np.repeat(wide(x), 2, axis=1) for x in seen)
    scores = q @ k.transpose(0, 1, 3, 2) * scale
    hidden = np.arange(length)[None] > np.arange(length - rows, length)[:, None]
    scores[..., hidden] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    assert_close(together, weights / weights.sum(-1, keepdims=True) @ v)
    for row in range(rows):
        upto = length - rows + row + 1
        alone = kernels.attention(
            queries[:, :, row : row + 1], keys[:, :, :upto], values[:, :, :upto], scale, False
        )
        assert_same_bits(alone, together[:, :, row : row + 1])
    shown = mx.array(~hidden)
    assert_same_bits(kernels.attention(queries, *seen, scale, False, shown), together)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [64, 5, 256, 100])
def test_rms_norm(kernels, dtype, width):
    x, gate = (normal(3, 5, width, seed=i, dtype=dtype) for i in range(2))
    weight = normal(width, seed=2, dtype=dtype)
    norm = wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-3)
    assert_close(kernels.rms_norm(x, weight, 1e-3), norm * wide(weight))
    assert_close(kernels.rms_norm(x, None, 1e-3, 0.5), norm * 0.5)
    gated = norm * wide(weight) * wide(gate) / (1 + np.exp(-wide(gate)))
    got = kernels.rms_norm(x, weight, 1e-3, 1.0, gate)
    assert_close(got, gated)
    assert_same_bits(
        kernels.rms_norm(x[1:2, 2:3], weight, 1e-3, 1.0, gate[1:2, 2:3]), got[1:2, 2:3]
    )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("width", "dims"), [(64, 64), (64, 16), (10, 6)])
def test_rope(kernels, dtype, width, dims):
    x = normal(2, 7, 3, width, dtype=dtype).transpose(0, 2, 1, 3)
    got = kernels.rope(x, dims, 1e4, 0.5, 30)
    angles = (np.arange(30, 37) * 0.5)[:, None] * 1e4 ** (-np.arange(dims // 2) / (dims // 2))
    low, high = wide(x)[..., : dims // 2], wide(x)[..., dims // 2 : dims]
    cosine, sine = np.cos(angles), np.sin(angles)
    expected = wide(x)
    expected[..., : dims // 2] = low * cosine - high * sine
    expected[..., dims // 2 : dims] = low * sine + high * cosine
    assert_close(got, expected)
    assert_same_bits(kernels.rope(x[:, :, 4:5], dims, 1e4, 0.5, 34), got[:, :, 4:5])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_convolve_and_swiglu(kernels, dtype):
    x, w = normal(2, 12, 37, dtype=dtype), normal(4, 37, seed=1)
    windows = [wide(x)[:, i : i + 9] * wide(w)[i] for i in range(4)]
    assert_close(kernels.convolve(x, w), sum(windows))
    gate = normal(2, 12, 37, seed=2, dtype=dtype) * 20
    assert_close(kernels.swiglu(gate, x), wide(gate) / (1 + np.exp(-wide(gate))) * wide(x))


def test_shapes_that_do_not_fit_are_refused(kernels):
    x, w = normal(2, 8), normal(3, 8)
    with pytest.raises(ValueError, match="dense"):
        kernels.dense(x, w[:, :4])
    with pytest.raises(ValueError, match="both"):
        kernels.dense(x, w.astype(mx.bfloat16))
    heads = normal(1, 2, 4, 8)
    with pytest.raises(ValueError, match="attention"):
        kernels.attention(heads, heads[:, :, :3], heads[:, :, :3], 1.0, True)
    with pytest.raises(ValueError, match="no sse9"):
        kernels.use("sse9")
