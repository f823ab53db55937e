"""One sequence's drafter: in step whatever was drafted, restored from any snapshot."""

from __future__ import annotations

import random

import mlx.core as mx
import numpy as np
import pytest
from drafter_models import HIDDEN, VOCABULARY, Borrowed, config, drafter_folder, load
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters import dflash_drafter
from engine.drafters.dflash_drafter import ContextRows
from engine.drafters.drafter import Offer
from engine.messages import Sampling

KINDS = {
    "v1 full": config(1),
    "v1 mixed": config(
        1, layer_types=["sliding_attention", "full_attention"], sliding_window=9, is_causal=None
    ),
    "v2 sliding": config(2, layer_types=["sliding_attention"] * 2, sliding_window=9),
}
ROWS = 60


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafter")
    return load(drafter_folder(folder / "d", KINDS[request.param]))


def tokens(count: int) -> list[int]:
    return [random.Random(i).randrange(VOCABULARY) for i in range(count)]


def watched(model, splits, drafting=lambda end: False):
    """A drafter that has seen ROWS rows in pieces of these lengths."""
    drafter = Borrowed().drafter(model)
    drafter.commit(tokens(1))
    for start, end in zip([0, *splits], [*splits, ROWS], strict=True):
        drafter.observe(Borrowed().rows(start, end))
        drafter.commit(tokens(end + 1)[start + 1 :])
        if drafting(end):
            drafter.propose(5)
    return drafter


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_split_of_the_rows_gives_the_same_drafts(model, data):
    splits = sorted(data.draw(st.sets(st.integers(1, ROWS - 1), max_size=12)))
    drafted = data.draw(st.sets(st.integers(1, ROWS)))
    split = watched(model, splits, lambda end: end in drafted)
    assert split.propose(5) == watched(model, []).propose(5)


def test_proposing_changes_nothing(model):
    drafter = watched(model, [20, 40])
    first = drafter.propose(5)
    shorter = drafter.propose(2)
    assert drafter.propose(5) == first
    assert drafter.propose(2) == shorter
    assert drafter.length == ROWS


def test_at_most_one_block_is_drafted(model):
    drafter = watched(model, [])
    assert len(drafter.propose(100)) == model.config.block_size - 1
    assert [len(drafter.propose(limit)) for limit in (-1, 0, 1, 3)] == [0, 0, 1, 3]


def test_nothing_is_drafted_before_the_first_token(model):
    assert Borrowed().drafter(model).propose(5) == []


def test_a_drafter_out_of_step_says_so(model):
    drafter = watched(model, [])
    drafter.commit([1, 2])
    with pytest.raises(ValueError, match="context for 60 of 63 tokens"):
        drafter.propose(5)


@pytest.mark.parametrize("length", [ROWS, 55])
def test_a_restored_drafter_drafts_the_same(model, length):
    snapshot = watched(model, [7, 30]).rows(length)
    assert snapshot.end == length
    restored = Borrowed().drafter(model)
    restored.commit(tokens(length))
    restored.restore(snapshot)
    assert restored.length == length
    restored.observe(Borrowed().rows(length, ROWS))
    restored.commit(tokens(ROWS + 1)[length:])
    reach = model.config.reach
    if reach is None or length == ROWS:
        assert restored.propose(5) == watched(model, []).propose(5)
    assert len(restored.propose(5)) == 5


def test_a_snapshot_s_rows_wait_until_there_is_time_for_them(model):
    snapshot = watched(model, [7, 30]).rows(ROWS - 5)
    drafters = [Borrowed().drafter(model) for _ in range(2)]
    for late, drafter in enumerate(drafters):
        drafter.commit(tokens(ROWS + 1))
        drafter.restore(snapshot)
        drafter.observe(Borrowed().rows(ROWS - 5, ROWS))
        if late:
            drafter.catch_up()
            assert drafter.offer(5).behind == ROWS - snapshot.start
            drafter.read_on()
            assert drafter.offer(5).behind == 0
    assert drafters[0].propose(5) == drafters[1].propose(5)


def test_a_snapshot_holds_as_many_rows_as_a_layer_can_see(model):
    drafter = watched(model, [13, 14])
    reach = model.config.reach or ROWS
    rows = drafter.rows(ROWS)
    assert rows.rows.shape == (1, reach, HIDDEN)
    assert rows.start == ROWS - reach
    expected = model.project(Borrowed().rows(ROWS - reach, ROWS))
    np.testing.assert_allclose(np.array(rows.rows), np.array(expected), atol=1e-5)


def test_a_snapshot_is_not_changed_by_what_comes_later(model):
    drafter = watched(model, [13])
    rows = drafter.rows(ROWS)
    before = np.array(rows.rows)
    drafter.observe(Borrowed().rows(100, 140))
    assert np.array_equal(before, np.array(rows.rows))


def test_a_context_may_begin_late_and_empty(model):
    """After a prefix hit that no drafter had watched."""
    drafter = Borrowed().drafter(model)
    drafter.commit(tokens(50))
    drafter.restore(ContextRows.empty(50))
    assert drafter.length == 50
    assert (drafter.rows(50).start, drafter.rows(50).end) == (50, 50)
    drafter.observe(Borrowed().rows(50, 58))
    drafter.commit(tokens(59)[50:])
    late = drafter.propose(5)
    assert len(late) == 5
    if model.config.reach == 8:
        # Eight rows are all that its layers see.
        expected = Borrowed().drafter(model)
        expected.commit(tokens(59))
        expected.observe(Borrowed().rows(0, 58))
        assert late == expected.propose(5)


def test_a_prefix_shorter_than_what_is_held_has_no_rows(model):
    drafter = watched(model, [])
    early = drafter.rows(0)
    assert (early.start, early.end) == (0, 0)


def test_long_prompts_reach_the_layers_in_pieces(model, monkeypatch):
    def prompted():
        drafter = Borrowed().drafter(model)
        for start in (0, 100, 200):
            drafter.observe(Borrowed().rows(start, start + 100))
        drafter.commit(tokens(301))
        return drafter

    at_once = prompted()
    assert at_once.offer(5).behind == 300
    monkeypatch.setattr(dflash_drafter, "MOST_WAITING", 90)
    in_pieces = prompted()
    assert in_pieces.offer(5).behind == 0
    assert in_pieces.propose(5) == at_once.propose(5)


def test_an_idle_drafter_only_keeps_rows_until_it_catches_up(model):
    drafter = watched(model, [])
    at_once = watched(model, [])
    drafter.catch_up()
    for position in range(drafter.length, drafter.length + 3):
        for one in (drafter, at_once):
            one.observe(Borrowed().rows(position, position + 1))
            one.commit(tokens(position + 2)[position + 1 :])
    assert drafter.offer(5) == Offer("dflash", 5, behind=3)
    drafter.catch_up()
    assert drafter.offer(5).behind == 0
    assert drafter.propose(5) == at_once.propose(5)


def test_damaged_weights_draft_no_token_that_is_none(tmp_path):
    model = load(drafter_folder(tmp_path / "d", config(1)))
    model.norm.weight = model.norm.weight * float("nan")
    for sampling in (Sampling(), Sampling(temperature=1.0, top_p=0.9)):
        drafter = Borrowed().drafter(model, sampling)
        drafter.observe(Borrowed().rows(0, 4))
        drafter.commit(tokens(5))
        assert drafter.propose(5) == []


def test_the_targets_dtype_does_not_matter(tmp_path):
    model = load(drafter_folder(tmp_path / "d", config(2)))
    borrowed = Borrowed()
    drafter = borrowed.drafter(model)
    seen = []

    def head(hidden: mx.array) -> mx.array:
        seen.append(hidden.dtype)
        return borrowed.head(hidden)

    drafter._embed = lambda ids: borrowed.embed(ids).astype(mx.bfloat16)
    drafter._head = head
    drafter.observe(borrowed.rows(0, 4).astype(mx.bfloat16))
    drafter.commit(tokens(5))
    assert len(drafter.propose(5)) == 5
    assert seen == [mx.bfloat16]
    assert drafter.rows(4).rows.dtype == mx.float32
