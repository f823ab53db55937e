"""After any mix of rounds, caches are bit-equal to a serial run's."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import mlx.core as mx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_models import EXACT_FAMILIES, FAMILIES, tiny

from engine.decoding.exactness import same_state
from engine.decoding.rollback import can_roll_back, roll_back
from engine.prefix_cache.snapshot import restore, take_rows, take_snapshot
from engine.targets.caches import arrays_of
from engine.targets.target import bind


class Serial:
    """One-row decoding of random tokens, extended as far as a test needs it."""

    def __init__(self, target, rng: random.Random) -> None:
        self.target, self.rng = target, rng
        self.caches = target.new_caches()
        self.tokens: list[int] = []
        self.logits: list[mx.array] = []
        self.recurrent = []

    def extend(self, length: int) -> None:
        while len(self.tokens) < length:
            self.tokens.append(self.rng.randrange(96))
            self.logits.append(self.target.forward(self.tokens[-1:], self.caches)[0])
            mx.eval(self.logits[-1], arrays_of(self.caches))
            self.recurrent.append(take_snapshot(self.caches))


# MLX's CPU back end gathers expert weights in float32 only.
BFLOAT16 = [family for family in FAMILIES if family != "qwen3_next"]


@pytest.mark.parametrize(
    ("family", "dtype"),
    [(f, mx.float32) for f in EXACT_FAMILIES] + [(f, mx.bfloat16) for f in BFLOAT16],
)
def test_rounds_of_every_width_leave_the_caches_of_a_serial_run(family, dtype):
    target = bind(*tiny(family, dtype))
    assert target.speculative
    rng = random.Random(family)
    serial, caches, length = Serial(target, rng), target.new_caches(), 0
    for rows in [*range(2, 17), *(rng.randint(1, 16) for _ in range(10))]:
        keep = rng.randint(1, rows)
        serial.extend(length + keep)
        # The accepted rows are right, the rejected ones are garbage.
        garbage = [rng.randrange(96) for _ in range(rows - keep)]
        block = serial.tokens[length : length + keep] + garbage
        logits = target.forward(block, caches)
        for row in range(keep):
            assert mx.array_equal(logits[row], serial.logits[length + row]), (rows, keep, row)
        target.roll_back(caches, rows, keep)
        length += keep
        assert same_state(target, caches, serial.caches, length, serial.recurrent[length - 1]), (
            rows,
            keep,
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_rejected_rows_would_change_the_state_without_rollback(family):
    """The comparison above can fail: it sees a single garbage row."""
    target = bind(*tiny(family))
    serial = Serial(target, random.Random(1))
    serial.extend(5)
    caches = target.new_caches()
    target.forward([*serial.tokens[:4], 7], caches)
    for cache in caches:
        if hasattr(cache, "offset"):
            cache.offset -= 1
    assert serial.tokens[4] != 7
    if family in ("qwen3_5", "qwen3_next"):
        assert not same_state(target, caches, serial.caches, 4, serial.recurrent[3])
    else:
        assert not same_state(target, caches, serial.caches, 5, serial.recurrent[4])


@pytest.mark.parametrize("family", [*EXACT_FAMILIES, "glm4_moe_lite"])
def test_sequences_that_share_a_snapshot_do_not_see_each_other(family):
    target = bind(*tiny(family))
    tokens = [random.Random(2).randrange(96) for _ in range(12)]

    def fresh(length: int):
        caches = target.new_caches()
        target.prefill(tokens[:4], caches)
        if length > 4:
            target.prefill(tokens[4:length], caches)
        return caches

    attention = [take_rows(fresh(6), 0, 6)]
    kept = {length: take_snapshot(fresh(length)) for length in (4, 6)}
    others = [restore(target, attention, kept[n], n) for n in (4, 6, 4)]
    for other in others:
        target.forward([1, 2, 3, 4], other)
        if target.speculative:
            target.roll_back(other, 4, 2)
        mx.eval(arrays_of(other))
    for length in (4, 6):
        again = restore(target, attention, kept[length], length)
        assert same_state(target, again, fresh(length), length, kept[length])
        logits = target.forward(tokens[length : length + 4], again)
        assert mx.array_equal(logits, target.forward(tokens[length : length + 4], fresh(length)))


def test_no_mlx_lm_class_is_touched():
    from mlx_lm.models import qwen3_5

    before = qwen3_5.GatedDeltaNet.__call__, qwen3_5.gated_delta_update
    model, config = tiny("qwen3_5")
    untouched, _ = tiny("qwen3_5")
    bind(model, config)
    assert before == (qwen3_5.GatedDeltaNet.__call__, qwen3_5.gated_delta_update)
    assert type(untouched.layers[0].linear_attn) is qwen3_5.GatedDeltaNet


def test_binding_changes_no_logits():
    tokens = mx.array([[5, 77, 3, 90, 41, 8]])
    for family in FAMILIES:
        model, config = tiny(family)
        before = model(tokens)
        mx.eval(before)
        target = bind(model, config)
        assert mx.array_equal(target.forward(tokens[0].tolist(), target.new_caches()), before[0])


def test_a_cache_that_cannot_go_back_is_recognised():
    from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

    assert can_roll_back(KVCache())
    assert not can_roll_back(RotatingKVCache(max_size=8))
    assert not can_roll_back(ArraysCache(size=2))


@pytest.mark.parametrize(("rows", "keep"), [(4, 0), (4, 5), (1, 0)])
def test_keeping_no_row_or_too_many_is_refused(rows, keep):
    with pytest.raises(ValueError, match="cannot keep"):
        roll_back([], rows, keep)
