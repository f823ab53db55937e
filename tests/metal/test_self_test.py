"""`pillion doctor --metal` with the emulator as the GPU: what is right, wrong, slow and broken."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from emulated_gpu import few, gpu
from emulator import KernelFault, Machine

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from mlx_lm.models.base import scaled_dot_product_attention
from tiny_models import CONFIGS

from engine.errors import EngineError, RequestError
from engine.gpu.cost_grid import rows_worth_timing
from engine.gpu.device import Device
from engine.gpu.examine import MOST_TRIALS, Trials, draws, examine
from engine.gpu.install import install, own_bits
from engine.gpu.modules import RowKernel, kernel_for
from engine.gpu.self_test import self_test
from engine.metal_report import KernelReport
from engine.targets.target import bind
from metal.chip import Chip

ROWS = 3


class Edited:
    """A device whose every kernel has a word changed before it is compiled; what goes wrong is
    raised as MLX raises it."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def __call__(self, *, header: str, source: str, **options: Any) -> Any:
        assert self.old in header + source or options["name"].endswith("_blocks")
        header, source = (text.replace(self.old, self.new) for text in (header, source))
        kernel = Machine().metal_kernel(header=header, source=source, **options)

        def launch(**arguments: Any) -> Sequence[mx.array]:
            try:
                return kernel(**arguments)
            except KernelFault as fault:
                raise RuntimeError(str(fault)) from None

        return launch


class Heads(nn.Module):
    """As much of a layer of mlx-lm's as is asked for its heads."""

    n_heads, n_kv_heads, head_dim = 4, 2, 64

    def __init__(self) -> None:
        super().__init__()
        self.weight = mx.zeros((1,))

    def __call__(self, x: mx.array) -> mx.array:
        output: mx.array = scaled_dot_product_attention(x, x, x, None, 1.0, None)
        return output


def model() -> nn.Module:
    mx.random.seed(1)
    made = nn.Sequential(
        nn.Linear(192, 24, bias=False), nn.Linear(192, 24, bias=False), nn.Linear(64, 8, bias=True)
    )
    nn.quantize(made, group_size=32, bits=4)
    made.layers.append(nn.Linear(8, 8))
    return made


def reports(device: Device) -> tuple[KernelReport, ...]:
    report = self_test(model(), "tiny", trials=few(ROWS), device=device)
    assert (report.device, report.architecture) == ("emulated M4", "applegpu_g16g")
    assert (report.model, report.rows) == ("tiny", ROWS)
    assert report.right is all(kernel.verdict != "wrong" for kernel in report.kernels)
    return report.kernels


@pytest.mark.metal
def test_every_shape_is_tried_once_and_stock_rows_are_told_from_exact_ones():
    one, other = reports(gpu(Machine()))
    assert (one.kernel, one.shape) == ("verify_matmul", "192 -> 24, 4 bits in groups of 32")
    assert (one.modules, other.modules) == (2, 1)
    # MLX's wide kernel has other bits, ours those of its single row.
    assert (one.like_stock, one.stock_exact, one.rows) == (True, (), (2, 3))
    assert one.verdict == other.verdict == "used"
    assert set(one.ours) == set(one.stock) == {1, ROWS}


@pytest.mark.metal
def test_every_kind_of_kernel_is_tried_in_a_model_that_has_them():
    config = copy.deepcopy(CONFIGS["qwen3_5"])
    config["text_config"].update(
        hidden_size=64, num_hidden_layers=2, linear_key_head_dim=32, linear_value_head_dim=32,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64,
    )  # fmt: skip
    module = importlib.import_module("mlx_lm.models.qwen3_5")
    hybrid = module.Model(module.ModelArgs.from_dict(config))
    nn.quantize(hybrid, 32, 4, class_predicate=lambda path, _: path.endswith("in_proj_qkv"))
    target = bind(hybrid, config)
    report = self_test(target.model, "hybrid", trials=few(ROWS), device=gpu(Machine()))
    assert [(kernel.kernel, kernel.modules) for kernel in report.kernels] == [
        ("gated_delta", 1),
        ("verify_attention", 1),
        ("verify_matmul", 1),
    ]
    # MLX's operations on a CPU add the recurrence's sums in another order.
    tape, attention, product = report.kernels
    assert (tape.verdict, tape.detail) == ("stock", "row 1 has other bits than alone")
    assert (attention.verdict, attention.stock_exact) == ("stock", (2, 3))
    assert product.verdict == "used"
    assert report.right
    # It only looked.
    assert not any(isinstance(part, RowKernel) for part in target.model.modules())


@pytest.mark.metal
@pytest.mark.parametrize(
    ("old", "new", "detail"),
    [
        ("return scale * products", "return 1.1f * scale * products", "values are off by"),
        ("return scale * products", "return 1.0f * scael * products", "compile"),
        # The number of rows in the last bits.
        ("const float total = simd_sum(totals[m][r])",
         "const float total = simd_sum(totals[m][r] * (1 + 1e-6f * M))", "rows differ from"),
    ],
)  # fmt: skip
def test_a_kernel_that_is_wrong_is_named_and_not_used(old, new, detail):
    device = replace(gpu(Machine()), compiler=Edited(old, new))
    wrong = reports(device)
    assert {kernel.verdict for kernel in wrong} == {"wrong"}
    assert all(detail in kernel.detail for kernel in wrong)
    made = model()
    said = install(made, "auto", trials=few(ROWS), device=device)
    assert "Metal kernels in 0 modules; not for VerifyLinear 192 -> 24" in said
    assert not [module for module in made.modules() if isinstance(module, RowKernel)]


@pytest.mark.metal
def test_a_wrong_attention_kernel_is_named_and_not_used():
    """Its rows are wrong alike, alone and among others: only stock MLX's values show it."""
    wrong = Edited(
        "weight[r] = fma(weight[r], shrink, shares)",
        "weight[r] = fma(weight[r], shrink, 1.1f * shares)",
    )
    device = replace(gpu(Machine()), compiler=wrong)
    layer = Heads()
    report = self_test(layer, "heads", trials=few(ROWS), device=device)
    assert [each.verdict for each in report.kernels] == ["wrong"]
    assert "values are off by" in report.kernels[0].detail
    said = install(nn.Sequential(layer), "auto", trials=few(ROWS), device=device)
    assert "values are off by" in said


@pytest.mark.metal
def test_small_values_are_compared_too():
    made = model()
    linear = made.layers[0]
    linear.scales, linear.biases = linear.scales * 1e-6, linear.biases * 1e-6
    old = "return scale * products"
    for new, fault in ((old, ""), (old.replace("scale", "1.01f * scale"), "values are off by")):
        device = replace(gpu(Machine()), compiler=Edited(old, new))
        assert examine(kernel_for(linear, device), few(ROWS)).fault.startswith(fault)
        assert bool(examine(kernel_for(linear, device), few(ROWS)).fault) is bool(fault)


@pytest.mark.metal
def test_a_matrix_with_few_outputs_is_tried_with_many_rows():
    seen = set()
    kernel = kernel_for(model().layers[2], gpu(Machine()))
    rows = kernel.rows
    kernel.rows = lambda count, seed=0: seen.add(seed) or rows(count, seed)
    assert examine(kernel, replace(few(2), values=16 * 20)).fault == ""
    assert seen == {*range(20)}
    assert (draws(100_000, 16 * 48), draws(100_000, 16)) == (131, MOST_TRIALS)
    assert draws(1, 16) == 1


@pytest.mark.metal
def test_a_kernel_of_which_stock_mlx_is_an_equal_is_right_and_not_used():
    """Stock MLX on a CPU has rows that do not depend on each other, and other bits than ours."""
    device = replace(gpu(Machine()), stock=lambda module: module)
    one, _ = reports(device)
    assert (one.verdict, one.like_stock, one.stock_exact, one.rows) == ("stock", False, (2, 3), ())
    made = model()
    assert install(made, "auto", trials=few(ROWS), device=device).endswith("in 0 modules")


@pytest.mark.metal
def test_only_kernels_with_bits_of_their_own_show_in_what_is_kept():
    made = model()
    install(made, "auto", trials=few(ROWS), device=gpu(Machine()))
    assert own_bits(made) == "Metal, own bits: none"
    for part in made.modules():
        if isinstance(part, RowKernel) and part.shape.k == 64:
            part.use(frozenset({1, 2, 3}), part.tiling)
    assert own_bits(made).endswith(": VerifyLinear 64 -> 8, 4 bits in groups of 32")


@pytest.mark.metal
def test_a_module_runs_the_kernel_for_few_rows_and_the_stock_module_for_more():
    linear = model().layers[2]
    kernel = kernel_for(linear, replace(gpu(Machine()), stock=lambda module: module))
    assert examine(kernel, few(ROWS)).fault == ""
    kernel.use(frozenset({2, 3}), kernel.tiling)
    x = kernel.rows(4)
    for rows in (1, 2, 3, 4):
        assert mx.allclose(kernel(x[:, :rows]), linear(x[:, :rows]), atol=1e-4)
    # Other types than the weights' are left to stock MLX.
    assert kernel.group_size == 32
    kernel.inner = lambda rows: "stock"
    assert kernel(x[:, :2].astype(mx.bfloat16)) == kernel(x[:, :1]) == kernel(x) == "stock"


def test_no_more_rows_are_tried_than_a_forward_has():
    assert Trials().upto(None) == Trials()
    assert (Trials().upto(1).rows, Trials().upto(1).timed) == (1, (1,))
    assert (Trials().upto(5).rows, Trials().upto(5).timed) == (5, (1, 2, 4, 5))
    assert Trials().upto(64).rows == 16


def test_attention_is_compared_where_stock_mlx_changes_its_kernel():
    tried = Trials()
    compared = [*tried.contexts[:-1], *tried.edges]
    for two_passes in (1024, 4096):
        assert any(keys < two_passes <= keys + tried.rows for keys in compared)
        assert any(keys >= two_passes for keys in compared)


def test_one_switch_turns_all_of_them_off():
    made = model()
    before = [type(module) for module in made.modules()]
    assert install(made, "off", device=gpu(Machine())) == "stock MLX: kernels are turned off"
    assert [type(module) for module in made.modules()] == before
    with pytest.raises(RequestError, match="avx2 cannot be used: MLX computes on a GPU"):
        install(made, "avx2", device=gpu(Machine()))


@pytest.mark.skipif(Device.here() is not None, reason="this machine has Metal")
def test_without_metal_there_is_nothing_to_try():
    with pytest.raises(EngineError, match="there is no Metal here"):
        self_test(model(), "tiny")
    assert install(model(), "auto") == "stock MLX: this GPU is not known"


def test_rows_are_timed_beside_the_steps_of_a_gpu_that_is_known():
    made = model()
    assert rows_worth_timing(made, 16, Chip(16, "g")) == [1, 2, 5, 6, 8, 9, 10, 11, 12, 13, 16]
    kernel = kernel_for(made.layers[0], gpu(Machine()))
    kernel.use(frozenset(range(2, 5)), kernel.tiling)
    made.layers[0] = kernel
    assert {4, 5} <= set(rows_worth_timing(made, 16, Chip(16, "g")))
    if Device.here() is None:
        assert rows_worth_timing(made, 4) is None
