"""mlx-lm's layers of experts on the kernel: sorted or not, as for stock MLX, row for row."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import pytest
from emulated_gpu import few, gpu
from emulator import Machine
from mlx_lm.models.switch_layers import SwitchGLU

from engine.cpu.install import replace_parts
from engine.gpu.device import Device
from engine.gpu.examine import examine
from engine.gpu.modules import VerifySwitch, experts_a_token, kernel_for
from engine.gpu.self_test import self_test

pytestmark = pytest.mark.metal

EXPERTS = 12


def layer() -> nn.Module:
    mx.random.seed(2)
    made = SwitchGLU(64, 96, EXPERTS)
    nn.quantize(made, group_size=32, bits=4)
    return made


def device() -> Device:
    # MLX's own gather on a CPU is what slots are compared with.
    return replace(gpu(Machine()), stock=lambda module: module)


def on_kernels(made: nn.Module, top: int) -> list[VerifySwitch]:
    kernels = []

    def choose(module: nn.Module) -> nn.Module:
        kernel = kernel_for(module, device(), top)
        kernels.append(kernel)
        return kernel or module

    replace_parts(made, choose)
    return [kernel for kernel in kernels if kernel is not None]


# From 64 slots on they are sorted, and then have no rows any more.
@pytest.mark.parametrize(("rows", "top"), [(1, 2), (5, 2), (9, 8), (7, 10), (16, 10)])
def test_a_layer_of_experts_is_that_of_stock_mlx(rows, top, record_claim):
    x = mx.random.normal((1, rows, 64), key=mx.random.key(rows))
    picks = mx.argsort(mx.random.uniform(shape=(1, rows, EXPERTS), key=mx.random.key(3)))
    indices = picks[..., :top].astype(mx.uint32)
    expected = layer()(x, indices)
    made = layer()
    kernels = on_kernels(made, top)
    assert [type(kernel) for kernel in kernels] == [VerifySwitch] * 3
    for kernel in kernels:
        kernel.use(frozenset({1, rows}), kernel.tiling)
    got = made(x, indices)
    held = got.shape == expected.shape and mx.allclose(got, expected, rtol=1e-3, atol=1e-4)
    record_claim("verify_gather", f"{rows} rows of {top} experts", held)
    alone = [made(x[:, i : i + 1], indices[:, i : i + 1]) for i in range(rows)]
    held = mx.array_equal(got, mx.concatenate(alone, axis=1))
    record_claim("verify_gather", f"{rows} rows of {top} experts as alone", held, bits=True)
    # Nothing is left to the stock module.
    for kernel in kernels:
        kernel.inner = replace_call(kernel.inner)
    assert mx.array_equal(made(x, indices), got)


def replace_call(inner: nn.Module) -> nn.Module:
    class Unused(type(inner)):
        def __call__(self, *arguments, **options):
            raise AssertionError("the stock module was called")

    unused = Unused(64, 32, 1, bias=False, group_size=32)
    unused.update(inner.parameters())
    unused.bits, unused.group_size = inner.bits, inner.group_size
    return unused


def test_experts_are_examined_like_other_products_and_many_rows_stay_stock():
    kernel = kernel_for(layer().gate_proj, device(), 2)
    findings = examine(kernel, few(3))
    assert findings.fault == ""
    assert findings.stock_exact == {2: True, 3: True}
    kernel.use(frozenset({2, 3}), kernel.tiling)
    kernel.inner = lambda x, indices, sorted_indices: "stock"
    assert kernel(mx.zeros((1, 4, 1, 1, 64)), mx.zeros((1, 4, 2), mx.uint32)) == "stock"
    assert kernel(mx.zeros((1, 3, 1, 2, 64)), mx.zeros((1, 3, 2), mx.uint32)) == "stock"


@pytest.mark.parametrize("name", ["top_k", "num_experts_per_tok"])
def test_how_many_experts_a_token_takes_is_asked_of_the_block(name):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            setattr(self, name, 10)
            self.switch_mlp = layer()

    inside, outside = Block(), layer()
    tops = experts_a_token(nn.Sequential(inside, outside))
    switch = inside.switch_mlp.gate_proj
    assert len(tops) == 3
    assert kernel_for(switch, device(), tops[id(switch)]).top == 10
    # Where nobody says it, slots that are sorted would not tell how many rows there are.
    assert kernel_for(outside.gate_proj, device(), tops.get(id(outside.gate_proj))) is None
    reports = self_test(nn.Sequential(inside, outside), "", trials=few(2), device=device()).kernels
    assert [(each.kernel, each.modules) for each in reports] == [
        ("verify_gather", 2),
        ("verify_gather", 1),
    ]
