"""Kernels in whole models: the numbers stay, the rows are exact, and what is wrong is refused."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from kernel_cases import KERNELS, MISSING, SETS, TYPES, normal

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_models import EXACT_FAMILIES, FAMILIES, LATER, tiny

import engine.cpu.install as installing
from engine.cpu import INSTRUCTION_SETS
from engine.cpu.function_checks import CASES, CheckedFunction
from engine.cpu.functions import names_in
from engine.cpu.install import fault, install, slower
from engine.cpu.layers import FusedLayer
from engine.cpu.modules import DenseLinear, GatedNorm, Kernel, QuantizedHead, QuantizedLinear
from engine.decoding.exactness import probe, same_state
from engine.errors import RequestError
from engine.prefix_cache.snapshot import take_snapshot
from engine.targets.caches import arrays_of
from engine.targets.target import Target, bind

pytestmark = pytest.mark.skipif(bool(MISSING), reason="the kernels are not built here")


@pytest.fixture(autouse=True)
def every_kernel_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is faster on such tiny shapes is a matter of luck."""
    monkeypatch.setattr(installing, "slower", lambda kernel: "")


def with_kernels(family: str, dtype: mx.Dtype = mx.float32, bits: int = 0) -> Target:
    model, config = tiny(family, dtype)
    if bits:
        nn.quantize(
            model,
            group_size=32,
            bits=bits,
            class_predicate=lambda _, part: (
                hasattr(part, "weight")
                and hasattr(part, "to_quantized")
                and part.weight.shape[-1] % 32 == 0
            ),
        )
    target = bind(model, config)
    assert "kernels in" in install(target.model, "auto")
    return target


@pytest.mark.parametrize("family", [*FAMILIES, *LATER])
def test_the_logits_are_those_of_stock_mlx(family):
    tokens = [5, 77, 3, 90, 41, 8]
    stock = bind(*tiny(family))
    target = with_kernels(family)
    expected = stock.forward(tokens, stock.new_caches())
    got = target.forward(tokens, target.new_caches())
    assert mx.allclose(got, expected, rtol=1e-3, atol=1e-4)
    assert not mx.array_equal(got, expected)


@pytest.mark.parametrize(
    ("family", "dtype", "bits"),
    [(family, mx.float32, 0) for family in EXACT_FAMILIES]
    + [("qwen3_5", mx.bfloat16, 0), ("llama", mx.bfloat16, 0), ("llama", mx.bfloat16, 4)]
    + [("llama", mx.float32, 4), ("llama", mx.float32, 8)],
)
def test_rounds_of_every_width_leave_the_caches_of_a_serial_run(family, dtype, bits):
    target = with_kernels(family, dtype, bits)
    rng = random.Random(family)
    serial, caches, length = target.new_caches(), target.new_caches(), 0
    for rows in [2, 3, 4, 5, 6, 7, 8, 9, 16, *(rng.randint(1, 16) for _ in range(4))]:
        keep = rng.randint(1, rows)
        tokens = [rng.randrange(96) for _ in range(rows)]
        logits = target.forward(tokens, caches)
        for row in range(keep):
            alone = target.forward(tokens[row : row + 1], serial)[0]
            assert mx.array_equal(logits[row], alone), (rows, keep, row)
        mx.eval(arrays_of(serial))
        target.roll_back(caches, rows, keep)
        length += keep
        assert same_state(target, caches, serial, length, take_snapshot(serial)), (rows, keep)


@pytest.mark.parametrize("family", ["qwen3_5", "llama"])
def test_the_probe_finds_every_width_and_the_prompt_exact(family):
    exactness = probe(with_kernels(family, mx.bfloat16), 96, 512, 16, lambda share: None)
    assert (exactness.exact, exactness.width, exactness.prefill) == (True, 16, True)


def test_the_reason_says_what_runs(monkeypatch):
    model, config = tiny("qwen3_5")
    said = install(bind(model, config).model, "auto")
    assert said.startswith(("AVX2", "AVX512", "AMX"))
    assert "gated_delta_update, normalize_qk, scaled_dot_product_attention, swiglu" in said
    monkeypatch.setattr(installing, "slower", lambda kernel: "stock MLX is twice as fast")
    model, config = tiny("llama")
    said = install(bind(model, config).model, "auto")
    assert "not for DenseLinear (48, 32) mlx.core.float32: stock MLX is twice as fast" in said
    assert type(model.layers[0].mlp.up_proj) is nn.Linear


@pytest.mark.parametrize("family", ["qwen3_5", "llama", "qwen3"])
def test_layers_of_known_models_are_fused_and_others_run_their_own_code(family):
    target = with_kernels(family)
    assert {type(layer) for layer in target.model.layers} == {FusedLayer}
    layer = target.model.layers[0]
    rows = layer.rows(3)
    # Without a cache the layer's own code runs, which has no state to keep.
    assert mx.allclose(layer(rows, None), layer.inner(rows, None))
    target = with_kernels("nemotron_h")
    assert FusedLayer not in {type(layer) for layer in target.model.layers}


def test_quantised_weights_are_held_once_and_the_stock_module_can_still_run():
    model = nn.Module()
    model.head = nn.QuantizedEmbedding(640, 512, group_size=32, bits=4)
    model.linear = nn.QuantizedLinear(512, 640, bias=False, group_size=32, bits=4)
    ids, x = mx.array([[3, 639], [7, 3]]), normal(3, 512)
    halves = x.astype(mx.bfloat16)
    expected = model.head(ids), model.head.as_linear(halves), model.linear(halves)
    mx.eval(expected)
    held = mx.get_active_memory()
    install(model, "auto")
    kinds = [type(module) for _, module in model.named_modules()]
    assert {QuantizedHead, QuantizedLinear} <= set(kinds)
    got = model.head(ids)
    assert mx.array_equal(got, expected[0])
    # What the kernels hold is not MLX's.
    assert mx.get_active_memory() < held - 640 * 512
    # Another type than the weights' is left to the stock module.
    assert mx.array_equal(model.head.as_linear(halves), expected[1])
    assert mx.array_equal(model.linear(halves), expected[2])


def test_off_changes_nothing():
    model, config = tiny("llama")
    before = [type(module) for _, module in model.named_modules()]
    assert install(bind(model, config).model, "off") == "stock MLX: kernels are turned off"
    assert [type(module) for _, module in model.named_modules()] == before


def test_a_linear_layer_with_a_bias():
    layer = nn.Linear(24, 10)
    x = normal(3, 24)
    assert mx.allclose(DenseLinear(layer)(x), layer(x), atol=1e-5)


def test_an_instruction_set_can_be_forced(kernels):
    for name in SETS:
        assert install(nn.Module(), name).startswith(name.replace("_", "-").upper())
        assert kernels.used() == name
    with pytest.raises(RequestError, match="kernels: sse9 cannot be used: this processor has avx2"):
        install(nn.Module(), "sse9")
    install(nn.Module(), "auto")
    assert kernels.used() == max(SETS, key=INSTRUCTION_SETS.index)


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_functions_are_checked_as_modules_are(name, dtype):
    family = "qwen3_5"
    layers = tiny(family)[0].layers
    parts = [part for layer in layers for _, part in layer.named_modules()]
    stock, kernel = next(found[name] for part in parts if name in (found := names_in(part)))
    assert fault(CheckedFunction(name, stock, kernel, dtype)) == ""

    def scaled(*arguments, **options):
        output = kernel(*arguments, **options)
        return tuple(x * 1.1 for x in output) if isinstance(output, tuple) else output * 1.1

    assert "values are off by" in fault(CheckedFunction(name, stock, scaled, dtype))


def test_a_function_that_fails_is_not_used(monkeypatch):
    monkeypatch.setattr(
        installing, "fault", lambda kernel: "" if isinstance(kernel, Kernel) else "no"
    )
    model, config = tiny("gemma4_text")
    said = install(bind(model, config).model, "auto")
    assert "and for" not in said
    assert "not for scaled_dot_product_attention mlx.core.float32: no" in said


class Wrong(DenseLinear):
    def __call__(self, x: mx.array) -> mx.array:
        return KERNELS.dense(x, self.inner.weight) * 1.001


class Uneven(DenseLinear):
    """Right, but the number of rows can be seen in the bits."""

    def __call__(self, x: mx.array) -> mx.array:
        return KERNELS.dense(x, self.inner.weight) + 1e-6 * (x.shape[1] % 2)


class Broken(DenseLinear):
    def __call__(self, x: mx.array) -> mx.array:
        return KERNELS.dense(x, self.inner.weight[:, :3])


class Slow(DenseLinear):
    def __call__(self, x: mx.array) -> mx.array:
        for _ in range(200):
            y = self.inner(x)
            mx.eval(y)
        return y


def test_kernels_that_are_wrong_uneven_broken_or_slow_are_refused():
    layer = nn.Linear(64, 64, bias=False)
    assert fault(DenseLinear(layer)) == ""
    assert "values are off by" in fault(Wrong(layer))
    assert "differ from the same" in fault(Uneven(layer))
    assert "dense: x" in fault(Broken(layer))
    assert "times as fast" in slower(Slow(layer))


def test_a_module_without_a_call_of_its_own_is_left_alone() -> None:
    assert not GatedNorm.fits(nn.Module())
    assert names_in(nn.Module()) == {}
