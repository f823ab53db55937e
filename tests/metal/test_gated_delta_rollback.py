"""Rollback from the tape, in the engine: on the built-in model, kernels in the emulator."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest
from emulator import Machine
from stock_gated_delta import stock_update

from engine import EngineOptions
from engine.decoding.exactness import same_state
from engine.loading.load import load
from engine.prefix_cache.snapshot import take_snapshot
from engine.targets.caches import arrays_of
from engine.targets.gated_delta import RECURRENCE, GatedDeltaTape, RecordingGatedDelta
from engine.targets.gated_delta_tape import KernelTape, TapeKernels
from engine.targets.recurrent import RecurrentCache
from engine.targets.target import Target, bind
from metal.chip import Chip
from metal.gated_delta import gated_delta, part, reference, reference_replay, replay, resume, window

pytestmark = pytest.mark.metal

ROWS = 6
# Rows, and how many stay: all, twice in a row behind a rollback; some; one; single rows in between.
ROUNDS = [(1, 1), (4, 4), (5, 2), (4, 4), (3, 3), (6, 1), (2, 1), (1, 1), (6, 5), (4, 3)]
TOKENS = [(7919 * (i + 1)) % 4096 for i in range(40)]


@pytest.fixture
def target() -> Target:
    loaded = load(EngineOptions(model="builtin"), lambda what, share: None)
    return bind(loaded.model, loaded.config)


def recorded(target: Target) -> list[GatedDeltaTape]:
    """What the built-in model's layers were given in a verify forward behind a prompt."""
    caches = target.new_caches()
    target.prefill(TOKENS[:12], caches)
    mx.eval(target.forward(TOKENS[12 : 12 + ROWS], caches))
    tapes = [cache.tape for cache in caches if isinstance(cache, RecurrentCache)]
    assert len(tapes) == 6
    return tapes


def test_the_tape_says_what_a_re_run_does_on_the_builtin_pair(target, record_claim):
    from mlx_lm.models.gated_delta import compute_g

    compiler = Machine(contraction="on", schedule=8).metal_kernel
    for number, layer in enumerate(recorded(target)):
        q, k, v, a, b, a_log, dt_bias, state = layer.arguments[:8]
        rows = q, k, v, compute_g(a_log, a, dt_bias), mx.sigmoid(b)
        by_ops = reference(*rows, state)[2]
        _, _, tape = gated_delta(*rows, state, compiler=compiler)
        for keep in range(1, ROWS + 1):
            conv_window, expected = layer.replay(keep)
            held = mx.array_equal(reference_replay(by_ops, keep), expected)
            record_claim("mlx operations", f"layer {number}, {keep} rows", bool(held), bits=True)
            again = gated_delta(*part(rows, slice(0, keep)), state, compiler=compiler)[1]
            from_tape = replay(tape, keep, compiler=compiler)
            record_claim(
                "gated_delta_replay",
                f"layer {number} of the built-in model, {keep} rows",
                bool(mx.array_equal(from_tape, again)),
                bits=True,
            )
            assert mx.array_equal(window(layer.conv_input, ROWS, keep), conv_window)
            near = mx.abs(from_tape - expected).max() <= 1e-5 * mx.abs(expected).max()
            record_claim("gated_delta", f"layer {number} of the built-in model", bool(near))
            y, behind = resume(tape, keep, *rows, compiler=compiler)
            restarted = gated_delta(*rows, again, compiler=compiler)
            held = mx.array_equal(y, restarted[0]) and mx.array_equal(behind.state, again)
            record_claim("gated_delta", f"layer {number}, resumed", bool(held), bits=True)


def on_kernels(target: Target, machine: Machine) -> None:
    """As on a Mac: single rows on mlx-lm's kernel, rows that may be taken back on ours."""
    for layer in target.model.layers:
        recorder = getattr(layer, "linear_attn", None)
        if isinstance(recorder, RecordingGatedDelta):
            recorder.run_with({RECURRENCE: stock_update(machine)})
            recorder.kernels = TapeKernels(Chip(16, "s"), machine.metal_kernel)


def test_rounds_through_the_tape_leave_the_caches_of_a_serial_run(target, record_claim):
    on_kernels(target, Machine(contraction="on"))
    rng = random.Random(3)
    serial, logits, states = target.new_caches(), [], []
    for token in TOKENS[:25]:
        logits.append(target.forward([token], serial)[0])
        mx.eval(logits[-1], arrays_of(serial))
        states.append(take_snapshot(serial))
    caches, length = target.new_caches(), 0
    for rows, keep in ROUNDS:
        block = TOKENS[length : length + keep] + [rng.randrange(4096) for _ in range(rows - keep)]
        got = target.forward(block, caches)
        for row in range(keep):
            held = bool(mx.array_equal(got[row], logits[length + row]))
            record_claim("gated_delta", f"logits of row {row} of {rows}", held, bits=True)
        if rows > 1:
            assert all(
                isinstance(cache.tape, KernelTape)
                for cache in caches
                if isinstance(cache, RecurrentCache)
            )
        target.roll_back(caches, rows, keep)
        length += keep
        if keep < rows:
            recurrent = [cache for cache in caches if isinstance(cache, RecurrentCache)]
            assert all(cache.made_of.keep == keep for cache in recurrent)
        held = same_state(target, caches, serial, length, states[length - 1])
        record_claim("gated_delta_replay", f"{keep} of {rows} rows", held, bits=True)


def test_a_forward_starts_from_the_tape_only_where_the_state_is_the_tapes(target):
    on_kernels(target, Machine(contraction="on"))
    caches = target.new_caches()
    target.forward(TOKENS[:4], caches)
    target.roll_back(caches, 4, 2)
    recurrent = [cache for cache in caches if isinstance(cache, RecurrentCache)]
    assert all(cache.made_of.keep == 2 for cache in recurrent)
    other = target.new_caches()
    target.prefill(TOKENS[4:9], other)
    for cache, there in zip(
        recurrent, (c for c in other if isinstance(c, RecurrentCache)), strict=True
    ):
        cache.cache = list(there.cache)
    for cache, there in zip(caches, other, strict=True):
        if not isinstance(cache, RecurrentCache):
            cache.state = there.state
    got = target.forward(TOKENS[20:23], caches)
    assert mx.array_equal(got, target.forward(TOKENS[20:23], other))
    # A single row leaves nothing to start from.
    target.roll_back(caches, 3, 1)
    target.forward(TOKENS[23:24], caches)
    assert all(cache.made_of is None for cache in recurrent)
