"""A drafter's parts on kernels: what they compute stays, and what does not fit is left alone."""

from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from kernel_cases import MISSING, TYPES, assert_close, normal, wide

sys.path.insert(0, str(Path(__file__).parents[1] / "drafters"))

from drafter_models import HIDDEN, config, drafter_folder, load

import engine.cpu.install as installing
from engine.cpu.draft_layers import DraftAttention, DraftConvolution, DraftMlp, DraftSelector
from engine.cpu.install import install
from engine.drafters.dflash import DFlashModel

pytestmark = pytest.mark.skipif(bool(MISSING), reason="the kernels are not built here")


@pytest.fixture(autouse=True)
def every_kernel_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "slower", lambda kernel: "")


def kinds(model: DFlashModel) -> set[type]:
    return {type(module) for _, module in model.named_modules()}


def hidden_rows(model: DFlashModel) -> mx.array:
    """Of a block behind a context that came in two parts."""
    caches = model.new_caches()
    context = normal(1, 23, HIDDEN, seed=3)
    model.append(context[:, :20], caches)
    model.append(context[:, 20:], caches)
    return model(normal(1, 6, HIDDEN, seed=4), caches)


@pytest.mark.parametrize("version", [1, 2])
def test_a_block_is_what_stock_mlx_makes_of_it(tmp_path, version):
    folder = drafter_folder(tmp_path, config(version))
    expected = hidden_rows(load(folder))
    model = load(folder)
    install(model, "auto")
    both = {DraftAttention, DraftMlp}
    assert kinds(model) >= (both if version == 1 else both | {DraftConvolution, DraftSelector})
    got = hidden_rows(model)
    assert mx.allclose(got, expected, atol=2e-3)
    assert not mx.array_equal(got, expected)


def test_a_window_that_is_full_is_left_to_stock_mlx(tmp_path):
    windowed = config(1, layer_types=["sliding_attention"] * 2, sliding_window=16)
    folder = drafter_folder(tmp_path, windowed)
    expected = hidden_rows(load(folder))
    model = load(folder)
    install(model, "auto")
    assert mx.allclose(hidden_rows(model), expected, atol=2e-3)


def test_the_candidates_are_those_of_a_sort(kernels):
    x = mx.round(normal(7, 300) * 4)
    x[2, 5], x[3, 7] = float("nan"), float("-inf")
    scores, ids = kernels.best(x, 16)
    for row in (0, 1, 3, 4, 5, 6):
        order = np.lexsort((np.arange(300), -wide(x)[row]))[:16]
        np.testing.assert_array_equal(np.array(ids)[row], order)
        np.testing.assert_array_equal(wide(scores)[row], wide(x)[row][order])
    assert 5 not in np.array(ids)[2]
    with pytest.raises(ValueError, match="best"):
        kernels.best(x, 301)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("group", [16, 5])
def test_own_convolve(kernels, dtype, group):
    steps, taps, channels = 5, 3, group * 4
    x = normal(1, steps, channels, dtype=dtype)
    base = normal(2, taps, channels, seed=1, dtype=dtype)
    own = normal(1, steps, 2, taps, 4, seed=2, dtype=dtype)
    for side in range(2):
        expected = np.zeros((steps, channels))
        for t in range(steps):
            for tap in range(min(taps, t + 1)):
                weight = wide(base)[side, tap] + np.repeat(wide(own)[0, t, side, tap], group)
                expected[t] += weight * wide(x)[0, t - tap]
        assert_close(kernels.own_convolve(x, base, own, side)[0], expected)
    with pytest.raises(ValueError, match="own_convolve"):
        kernels.own_convolve(x, base, own, 2)
