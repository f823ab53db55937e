from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from choice_oracle import choose_row
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.decoding.sampling import History, choose, gumbel, margins
from engine.errors import RequestError
from engine.messages import Sampling

EVERY_SAMPLING = [
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=1.0, top_p=0.95, top_k=20),
    Sampling(temperature=0.7, top_p=0.8),
    Sampling(temperature=1.3, min_p=0.05),
    Sampling(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
    Sampling(repetition_penalty=1.5, frequency_penalty=-0.5, logit_bias=((3, 4.0), (5, -100.0))),
]


def random_logits(rows: int, vocab: int, seed: int = 0, scale: float = 3.0) -> mx.array:
    values = np.random.default_rng(seed).normal(size=(rows, vocab)) * scale
    return mx.array(values.astype(np.float32))


@st.composite
def samplings(draw: st.DrawFn) -> Sampling:
    return Sampling(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.5])),
        top_k=draw(st.sampled_from([0, 1, 2, 7, 40, 1000])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.01])),
        min_p=draw(st.sampled_from([0.0, 0.02, 0.5, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.7])),
        presence_penalty=draw(st.sampled_from([0.0, 0.6, -1.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.4, -0.3])),
        logit_bias=draw(st.sampled_from([(), ((0, -100.0),), ((1, 100.0), (2, 1.5))])),
    )


@settings(max_examples=200, deadline=None)
@given(
    sampling=samplings(),
    vocab=st.sampled_from([4, 33, 64, 101]),
    rows=st.integers(1, 6),
    seed=st.integers(-(2**63), 2**64),
    start=st.integers(0, 2**40),
    # A coarse grid makes many exact ties.
    grid=st.sampled_from([None, 1.0]),
    data=st.data(),
)
def test_choice_equals_the_oracle(
    sampling: Sampling,
    vocab: int,
    rows: int,
    seed: int,
    start: int,
    grid: float | None,
    data: st.DataObject,
) -> None:
    values = np.asarray(random_logits(rows, vocab, seed % 1000)).copy()
    if grid is not None:
        values = np.round(values / grid) * grid
    token = st.integers(0, vocab - 1)
    prompt = data.draw(st.lists(token, max_size=6))
    output = data.draw(st.lists(token, max_size=6))
    drafts = data.draw(st.lists(token, min_size=rows - 1, max_size=rows - 1))
    allowed = np.ones((rows, vocab), dtype=bool)
    for row in range(rows):
        allowed[row, data.draw(st.lists(token, max_size=2))] = False
    history = History(prompt)
    history.commit(output)
    positions = range(start, start + rows)
    chosen = choose(
        mx.array(values), positions, sampling, seed, history, drafts, mx.array(allowed)
    ).tolist()
    noise = np.asarray(gumbel(seed, positions, mx.arange(vocab)))
    for row in range(rows):
        expected, clear = choose_row(
            values[row],
            sampling,
            noise[row],
            prompt,
            output + drafts[:row],
            allowed[row],
        )
        assert chosen[row] == expected or clear < 1e-4


@pytest.mark.parametrize("sampling", EVERY_SAMPLING)
@pytest.mark.parametrize("vocab", [64, 77, 4096])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_rows_do_not_depend_on_each_other(sampling: Sampling, vocab: int, dtype: mx.Dtype) -> None:
    rows = 16
    logits = random_logits(rows, vocab, seed=vocab).astype(dtype)
    drafts = [int(d) for d in np.random.default_rng(1).integers(0, vocab, size=rows - 1)]
    history = History([3, 4, 5])
    history.commit([7, 7])
    positions = range(100, 100 + rows)
    whole = choose(logits, positions, sampling, 42, history, drafts)
    gaps = margins(logits, positions, sampling, 42, history, drafts)
    serial = history.copy()
    for row in range(rows):
        one = choose(logits[row : row + 1], [100 + row], sampling, 42, serial)
        gap = margins(logits[row : row + 1], [100 + row], sampling, 42, serial)
        assert one.item() == whole[row].item()
        assert gap.item() == gaps[row].item()
        if row < rows - 1:
            serial.commit([drafts[row]])


@pytest.mark.parametrize("sampling", EVERY_SAMPLING)
def test_any_number_of_rows_chooses_the_same(sampling: Sampling) -> None:
    logits = random_logits(16, 50)
    drafts = list(range(15))
    whole = choose(logits, range(16), sampling, 9, History(), drafts).tolist()
    for rows in (2, 3, 5, 8):
        part = choose(logits[:rows], range(rows), sampling, 9, History(), drafts[: rows - 1])
        assert part.tolist() == whole[:rows]


def test_greedy_takes_the_lowest_id_on_a_tie() -> None:
    logits = mx.array([[1.0, 7.0, 7.0, 0.0], [0.0, -0.0, 0.0, -0.0]])
    assert choose(logits, [0, 1], Sampling()).tolist() == [1, 0]


def test_top_k_keeps_the_lowest_ids_of_a_tie() -> None:
    logits = mx.zeros((400, 100))
    sampling = Sampling(temperature=1.0, top_k=3)
    chosen = choose(logits, range(400), sampling, 1).tolist()
    assert set(chosen) == {0, 1, 2}


def test_top_p_counts_the_mass_that_top_k_kept() -> None:
    # Of [.4 .3 .2 .1], top-k 2 leaves [4/7 3/7]: 0.5 is reached by the first token alone, while
    # without top-k it takes two.
    logits = mx.broadcast_to(mx.log(mx.array([0.4, 0.3, 0.2, 0.1])), (300, 4))
    both = choose(logits, range(300), Sampling(temperature=1.0, top_k=2, top_p=0.5), 3).tolist()
    alone = choose(logits, range(300), Sampling(temperature=1.0, top_p=0.5), 3).tolist()
    assert set(both) == {0}
    assert set(alone) == {0, 1}


def test_min_p_is_relative_to_the_best_token() -> None:
    logits = mx.broadcast_to(mx.log(mx.array([0.5, 0.3, 0.15, 0.05])), (400, 4))
    chosen = choose(logits, range(400), Sampling(temperature=1.0, min_p=0.25), 3).tolist()
    assert set(chosen) == {0, 1, 2}


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=1.0), 12),
        (Sampling(temperature=1.0, top_k=5), 5),
        (Sampling(temperature=2.0, top_k=12, top_p=0.9), None),
    ],
)
def test_samples_follow_the_filtered_softmax(sampling: Sampling, kept: int | None) -> None:
    """Chi-square over 40,000 draws at consecutive positions; the bound is p = 1e-6."""
    draws, vocab = 40_000, 12
    row = np.random.default_rng(5).normal(size=vocab).astype(np.float32)
    logits = mx.broadcast_to(mx.array(row), (draws, vocab))
    counts = np.bincount(np.asarray(choose(logits, range(draws), sampling, 77)), minlength=vocab)
    p = np.exp(row.astype(np.float64) / sampling.temperature)
    p /= p.sum()
    order = np.argsort(-p)
    if kept is None:
        kept = int(np.searchsorted(np.cumsum(p[order]), sampling.top_p) + 1)
    p[order[kept:]] = 0.0
    p /= p.sum()
    assert counts[p == 0].sum() == 0
    expected = draws * p[p > 0]
    statistic = float(((counts[p > 0] - expected) ** 2 / expected).sum())
    freedom = kept - 1
    # Wilson-Hilferty: the 1 - 1e-6 quantile of chi-square.
    cube = 1 - 2 / (9 * freedom) + 4.753 * math.sqrt(2 / (9 * freedom))
    assert statistic < freedom * cube**3


def test_noise_is_standard_gumbel_and_keyed_by_everything() -> None:
    noise = np.asarray(gumbel(1, range(300), mx.arange(300)))
    assert noise.shape == (300, 300)
    assert abs(noise.mean() - 0.5772) < 0.02
    assert abs(noise.std() - math.pi / math.sqrt(6)) < 0.02
    assert np.isfinite(noise).all()
    other_seed = np.asarray(gumbel(2, range(300), mx.arange(300)))
    huge_seed = np.asarray(gumbel(1 + 2**40, range(300), mx.arange(300)))
    for a, b in [
        (noise, other_seed),
        (noise, huge_seed),
        (noise[1:], noise[:-1]),
        (noise[:, 1:], noise[:, :-1]),
        (noise[1:, :-1], noise[:-1, 1:]),
        (noise, noise.T),
    ]:
        upper = np.triu_indices(min(a.shape), k=1) if b is noise.T else ...
        assert abs(np.corrcoef(a[upper].ravel(), b[upper].ravel())[0, 1]) < 0.02


def test_noise_is_the_same_for_any_subset() -> None:
    noise = gumbel(-5, range(7, 12), mx.arange(1000))
    ids = mx.array([999, 0, 31, 31])
    assert mx.array_equal(gumbel(-5, range(7, 12), ids), noise[:, ids])
    assert mx.array_equal(gumbel(-5, [9], mx.arange(1000)), noise[2:3])


def test_noise_is_pinned() -> None:
    """A change here changes every sampled reply of every seed: say so in the changelog."""
    pinned = gumbel(1234, [0, 2**33], mx.array([0, 1, 4095]))
    assert np.allclose(np.asarray(pinned), PINNED, rtol=1e-6)


PINNED = [[-0.7160891, 0.25656199, 0.28018692], [0.60872567, 0.88421172, 0.72946984]]


@pytest.mark.parametrize("temperature", [1e-300, 1e-6, 1e-3])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = random_logits(8, 100, scale=10)
    cold = choose(logits, range(8), Sampling(temperature=temperature), 4)
    assert cold.tolist() == choose(logits, range(8), Sampling()).tolist()


def test_a_huge_temperature_is_near_uniform() -> None:
    logits = mx.broadcast_to(random_logits(1, 10), (5000, 10))
    counts = np.bincount(np.asarray(choose(logits, range(5000), Sampling(temperature=100.0), 4)))
    assert counts.min() > 350


@pytest.mark.parametrize("sampling", EVERY_SAMPLING)
def test_unusable_rows_are_marked_and_leave_the_others_alone(sampling: Sampling) -> None:
    logits = np.asarray(random_logits(4, 70)).copy()
    good = choose(mx.array(logits), range(4), sampling, 5, History([1])).tolist()
    logits[0, 9] = math.nan
    logits[1] = -math.inf
    logits[2, 9] = math.inf
    assert choose(mx.array(logits), range(4), sampling, 5, History([1])).tolist() == [
        -1,
        -1,
        -1,
        good[3],
    ]


@pytest.mark.parametrize("sampling", EVERY_SAMPLING)
def test_tokens_the_model_rules_out_are_never_chosen(sampling: Sampling) -> None:
    logits = np.full((64, 100), -math.inf, dtype=np.float32)
    logits[:, [7, 50]] = 0.0
    chosen = choose(mx.array(logits), range(64), sampling, 5, History()).tolist()
    assert set(chosen) <= {7, 50}


@pytest.mark.parametrize("sampling", EVERY_SAMPLING)
def test_allowed_binds_each_row_by_itself(sampling: Sampling) -> None:
    logits = random_logits(4, 90)
    free = choose(logits, range(4), sampling, 5, History()).tolist()
    allowed = np.ones((4, 90), dtype=bool)
    allowed[1] = np.arange(90) == 61
    allowed[2] = False
    bound = choose(logits, range(4), sampling, 5, History(), allowed=mx.array(allowed)).tolist()
    assert bound == [free[0], 61, -1, free[3]]


@pytest.mark.parametrize("sampling", EVERY_SAMPLING)
@pytest.mark.parametrize("vocab", [77, 4096])
def test_masked_rows_do_not_depend_on_each_other(sampling: Sampling, vocab: int) -> None:
    logits = random_logits(8, vocab, seed=vocab).astype(mx.bfloat16)
    allowed = mx.array(np.random.default_rng(2).random((8, vocab)) < 0.1)
    whole = choose(logits, range(8), sampling, 42, History(), [3] * 7, allowed)
    gaps = margins(logits, range(8), sampling, 42, History(), [3] * 7, allowed)
    serial = History()
    for row in range(8):
        one = slice(row, row + 1)
        alone = (logits[one], [row], sampling, 42, serial, (), allowed[one])
        assert choose(*alone).item() == whole[row].item()
        assert margins(*alone).item() == gaps[row].item()
        serial.commit([3])


def test_logit_bias_forces_and_bans() -> None:
    logits = random_logits(50, 40)
    force = Sampling(temperature=1.0, logit_bias=((11, 100.0),))
    assert set(choose(logits, range(50), force, 5).tolist()) == {11}
    favourite = mx.zeros((50, 40)).at[:, 11].add(20.0)
    ban = Sampling(temperature=1.0, logit_bias=((11, -100.0),))
    assert 11 not in choose(favourite, range(50), ban, 5).tolist()


def test_logit_bias_outside_the_vocabulary_is_the_callers_fault() -> None:
    with pytest.raises(RequestError, match="token 40 is outside the vocabulary of 40") as caught:
        choose(random_logits(1, 40), [0], Sampling(logit_bias=((40, 1.0),)))
    assert caught.value.field == "logit_bias"


def test_the_logits_are_left_as_they_were() -> None:
    logits = random_logits(2, 40)
    before = np.asarray(logits).copy()
    history = History([1, 2])
    for sampling in EVERY_SAMPLING:
        mx.eval(choose(logits, range(2), sampling, 5, history, [3]))
    assert np.array_equal(np.asarray(logits), before)


def test_margins_are_the_top_two_gap() -> None:
    logits = mx.array([[1.0, 4.0, 2.5], [0.0, 0.0, -1.0]])
    assert margins(logits, [0, 1], Sampling()).tolist() == [1.5, 0.0]
    alone = Sampling(temperature=1.0, top_k=1)
    assert margins(logits, [0, 1], alone, 3).tolist() == [math.inf, math.inf]
    sampled = margins(logits, [0, 1], Sampling(temperature=2.0), 3)
    scores = logits / 2.0 + gumbel(3, [0, 1], mx.arange(3))
    ranked = mx.sort(scores, axis=-1)
    assert mx.allclose(sampled, ranked[:, 2] - ranked[:, 1], atol=1e-5)


def test_a_position_is_asked_for_every_row() -> None:
    with pytest.raises(ValueError, match="2 rows of logits, 1 positions"):
        choose(random_logits(2, 4), [0], Sampling())


def test_a_history_copy_goes_its_own_way() -> None:
    history = History([1])
    twin = history.copy()
    twin.commit([2, 2])
    ids, seen, times = history.rows([], 1)
    assert (ids.tolist(), seen.tolist(), times.tolist()) == ([1], [[True]], [[0.0]])
    ids, seen, times = twin.rows([5, 2], 3)
    assert ids.tolist() == [1, 2, 5]
    assert seen.tolist() == [[True, True, False], [True, True, True], [True, True, True]]
    assert times.tolist() == [[0, 2, 0], [0, 2, 1], [0, 3, 1]]
