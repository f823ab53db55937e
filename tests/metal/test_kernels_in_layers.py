"""GatedDeltaNet and attention layers take the kernels that are exact and worth it, no others."""

from __future__ import annotations

import itertools
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import pytest
from emulated_gpu import few, gpu
from emulator import Machine, mlx_kernels
from stock_gated_delta import stock_update

from engine import EngineOptions
from engine.cpu.functions import Named
from engine.gpu.attention import Rows, chosen, examine_attention, kernel_attention, shape_of
from engine.gpu.install import install
from engine.gpu.recurrence import examine_tape, use_tape
from engine.loading.load import load
from engine.targets.gated_delta import RECURRENCE, RecordingGatedDelta
from engine.targets.target import Target, bind
from metal.race import served
from metal.verify_attention import Shape

pytestmark = pytest.mark.metal


class WonBy:
    """A clock by which the first of two steps that take turns takes `first` s, the other 1 s."""

    def __init__(self, first: float) -> None:
        self._times = itertools.cycle((0.0, first, 0.0, 1.0))

    def __call__(self) -> float:
        return next(self._times)


@pytest.fixture(scope="module")
def target() -> Target:
    loaded = load(EngineOptions(model="builtin"), lambda what, share: None)
    return bind(loaded.model, loaded.config)


@pytest.fixture
def recorder(target: Target) -> RecordingGatedDelta:
    recorder = target.model.layers[0].linear_attn
    recorder.kernels = None
    return recorder


@pytest.mark.parametrize(
    ("first", "order", "against"),
    [
        (0.5, "ascending", ""),
        (1.0, "ascending", "a re-run takes 1.00 of the time"),
        (0.5, "descending", "has other bits than row by row"),
    ],
)
def test_a_layer_records_on_kernels_that_are_exact_and_faster(recorder, first, order, against):
    recorder.run_with({RECURRENCE: stock_update(Machine(sum_order=order))})
    trials = replace(few(4), clock=WonBy(first))
    said = use_tape(recorder, gpu(Machine()), trials)
    assert said.endswith(against)
    assert bool(said) is bool(against)
    assert (recorder.kernels is not None) is (not against)
    found = examine_tape(recorder, gpu(Machine()), replace(trials, clock=WonBy(first)))
    assert found.fault.endswith(against) if order == "descending" else found.ours == {4: first}


def test_a_layer_without_a_kernel_keeps_to_the_re_run(recorder):
    recorder.layer.head_v_dim = 60
    try:
        assert use_tape(recorder, gpu(Machine()), few(4)) == "there is no kernel"
    finally:
        recorder.layer.head_v_dim = 64
    assert recorder.kernels is None


SHAPE = Shape(4, 2, 64)


def stock_attention(queries, keys, values, cache, scale, mask, sinks=None):
    causal = mask == "causal"
    return mlx_kernels.attention(Machine(), queries, keys, values, scale=scale, causal=causal)


def test_attention_serves_every_number_of_rows_or_none():
    """MLX's own rows are exact up to the end of its vector kernel; ours never have its bits."""
    trials = replace(few(5), clock=WonBy(0.9))
    found = examine_attention(stock_attention, SHAPE, mx.float32, gpu(Machine()), trials)
    assert (found.fault, found.like_stock) == ("", False)
    assert all(found.stock_exact.values())
    assert served(found) == {1, 2, 3, 4, 5}
    trials = replace(trials, clock=WonBy(1.1))
    found = examine_attention(stock_attention, SHAPE, mx.float32, gpu(Machine()), trials)
    assert served(found) == set()
    found = examine_attention(stock_attention, Shape(4, 3, 64), mx.float32, gpu(Machine()), trials)
    assert found.fault == "there is no kernel"


def test_the_edges_are_compared_and_not_timed():
    seen = set()

    def stock(queries, keys, values, **options):
        seen.add(keys.shape[2])
        return stock_attention(queries, keys, values, **options)

    trials = replace(few(2), contexts=(5, 10), edges=(7,), clock=WonBy(0.9))
    found = examine_attention(stock, SHAPE, mx.float32, gpu(Machine()), trials)
    assert found.fault == ""
    # Of what is compared 1 and 2 rows; of the longest context too, which is timed.
    assert seen == {6, 7, 8, 9, 11, 12}


def test_what_the_kernels_do_not_cover_is_stock():
    calls = []

    def stock(queries, keys, values, **options):
        calls.append(options["mask"])
        return queries

    function = kernel_attention(stock, SHAPE, 4, gpu(Machine()))
    rows = Rows.made_up(SHAPE, mx.float32, 12, 6)
    assert not mx.array_equal(rows.run(function, 0, 4), rows.queries[:, :, :4])
    assert calls == []
    rows.run(function, 0, 5)
    shown = mx.ones((2, 14), mx.bool_)
    for mask in (shown, None):
        function(rows.queries[:, :, :2], rows.keys, rows.values, cache=None, scale=0.125, mask=mask)
    assert calls == ["causal", shown, None]


class OwnAttention(nn.Module):
    n_heads, n_kv_heads, head_dim = 4, 2, 64

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(x, x, x, scale=1.0)


def test_the_attention_layers_of_the_builtin_model(target):
    layer = target.model.layers[3].self_attn
    assert shape_of(layer) == SHAPE
    assert shape_of(target.model.layers[0].linear_attn) is None
    assert shape_of(target.model.layers[0].mlp) is None
    assert shape_of(OwnAttention()) is None
    verdicts = {("attention", SHAPE, layer.q_norm.weight.dtype): ""}
    taken = chosen(layer, gpu(Machine()), few(4), verdicts)
    assert isinstance(taken, Named)
    x = mx.random.normal((1, 4, 256), key=mx.random.key(1)).astype(layer.q_norm.weight.dtype)
    expected = layer(x, "causal")
    assert mx.abs(taken(x, "causal") - expected).max() <= 0.01 * mx.abs(expected).max()
    refused = dict.fromkeys(verdicts, "stock MLX is faster")
    assert chosen(layer, gpu(Machine()), few(4), refused) is layer


def test_the_builtin_model_is_exact_on_kernels_of_every_kind(record_claim):
    """Single rows on mlx-lm's recurrence, verify forwards from the tape, attention on ours."""
    loaded = load(EngineOptions(model="builtin"), lambda what, share: None)
    target = bind(loaded.model, loaded.config)
    machine = Machine(contraction="on", schedule=2)
    for layer in target.model.layers:
        if isinstance(recorder := getattr(layer, "linear_attn", None), RecordingGatedDelta):
            recorder.run_with({RECURRENCE: stock_update(machine)})
    said = install(
        target.model, "auto", trials=replace(few(8), clock=WonBy(0.5)), device=gpu(machine)
    )
    assert said.startswith("Metal kernels in 8 modules"), said
    tokens, together, serial = [*range(300, 310)], target.new_caches(), target.new_caches()
    alone = [target.forward([token], serial)[0] for token in tokens]
    # The second forward starts from the first one's tape, three of whose rows stay.
    for start, rows, keep in ((0, 5, 3), (3, 7, 7)):
        logits = target.forward(tokens[start : start + rows], together)
        target.roll_back(together, rows, keep)
        held = bool(mx.array_equal(logits, mx.stack(alone[start : start + rows])))
        for kernel in ("gated_delta", "verify_attention"):
            record_claim(kernel, f"the built-in model, {rows} rows", held, bits=True)
