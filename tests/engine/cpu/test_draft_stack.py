"""A draft as one call: the tokens that the drafter's own modules draft, and the same context."""

from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import pytest
from kernel_cases import MISSING, normal

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_drafters import tiny_drafter
from tiny_models import tiny

import engine.cpu.install as installing
from engine.cpu.draft_stack import fuse
from engine.cpu.install import install
from engine.drafters.context_cache import STEP
from engine.drafters.dflash import DFlashModel
from engine.drafters.dflash_drafter import DFlashDrafter, TappedRows
from engine.messages import Sampling
from engine.targets.target import Target, bind

pytestmark = pytest.mark.skipif(bool(MISSING), reason="the kernels are not built here")

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.8),
    Sampling(temperature=1.0, top_p=0.9, top_k=3, min_p=0.02),
]
WIDTH = 2 * 32


@pytest.fixture(autouse=True)
def every_kernel_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "slower", lambda kernel: "")


def fused_pair(kind: str) -> tuple[Target, DFlashModel]:
    model, config = tiny("qwen3")
    target = bind(model, config)
    drafter = tiny_drafter(kind, len(model.layers))
    for one in (target.model, drafter):
        install(one, "auto")
    fuse(drafter, target)
    return target, drafter


@pytest.fixture(scope="module", params=["v1", "v2"])
def pair(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(installing, "slower", lambda kernel: "")
        return fused_pair(request.param)


def begun(target: Target, model: DFlashModel, sampling: Sampling) -> DFlashDrafter:
    drafter = DFlashDrafter(model, embed=target.embed, head=target.head, sampling=sampling, seed=7)
    drafter.commit(range(13))
    drafter.observe(normal(12, WIDTH, seed=1))
    drafter.catch_up()
    return drafter


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "filtered"])
def test_drafts_and_context_are_those_of_the_modules(pair, sampling, monkeypatch):
    target, model = pair
    stack = model.stack
    assert stack is not None
    ours, theirs = (begun(target, model, sampling) for _ in range(2))
    # Rounds of all widths, across more rows than a buffer holds.
    for number in range(60):
        limit, kept = number % 7 + 1, number % 8 + 1
        monkeypatch.setattr(model, "stack", stack)
        drafts = ours.propose(limit)
        assert ours.propose(limit) == drafts
        monkeypatch.setattr(model, "stack", None)
        if number % 3:
            assert drafts == theirs.propose(limit)
        assert len(drafts) == limit
        hidden = normal(8, WIDTH, seed=number)
        for drafter in (ours, theirs):
            drafter.commit([(7 * number) % 200] * kept)
            drafter.observe(TappedRows(hidden, kept))
    length = ours.length
    assert length > STEP
    known, expected = ours.rows(length), theirs.rows(length)
    assert (known.start, known.end) == (expected.start, expected.end)
    assert mx.allclose(known.rows, expected.rows, atol=1e-5)


def test_a_snapshot_is_not_written_to_afterwards(pair):
    target, model = pair
    drafter = begun(target, model, Sampling())
    drafter.propose(5)
    kept = drafter.rows(12)
    before = mx.array(kept.rows)
    mx.eval(before)
    drafter.commit([1, 2, 3])
    drafter.observe(normal(3, WIDTH, seed=9))
    drafter.propose(5)
    assert mx.array_equal(kept.rows, before)
    # And one that was restored drafts the same.
    again = DFlashDrafter(model, embed=target.embed, head=target.head, sampling=Sampling(), seed=7)
    again.restore(drafter.rows(15))
    again.commit([*range(13), 1, 2, 3])
    assert again.propose(5) == drafter.propose(5)


def test_a_request_with_a_bias_is_drafted_by_the_modules(pair):
    target, model = pair
    biased = Sampling(logit_bias=((11, 100.0),))
    assert begun(target, model, biased).propose(3) == [11, 11, 11]


def test_layers_that_forget_rows_are_left_alone():
    _, model = fused_pair("v1 sliding")
    assert model.stack is None


def test_without_kernels_there_is_no_stack():
    model, config = tiny("qwen3")
    drafter = tiny_drafter("v1", len(model.layers))
    fuse(drafter, bind(model, config))
    assert drafter.stack is None
