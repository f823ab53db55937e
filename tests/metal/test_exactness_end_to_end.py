"""A whole model whose products and attention run Metal kernels in the emulator.

With MLX's own kernels the rows of a verify forward have other bits than one-row decoding, with ours
they have the same, and the probe at load tells one from the other.
"""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from emulated_gpu import few, gpu, run_attention, run_stock
from emulator import Machine, mlx_kernels

from engine.decoding.exactness import probe
from engine.gpu.install import install
from engine.gpu.modules import RowKernel
from engine.targets.target import Target, bind
from metal.verify_attention import MOST_ROWS, verify_attention

pytestmark = pytest.mark.metal

VOCABULARY, ASKED = 64, 7
CONFIG = {
    "model_type": "llama",
    "hidden_size": 192,
    "intermediate_size": 224,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def quantised() -> nn.Module:
    module = importlib.import_module("mlx_lm.models.llama")
    mx.random.seed(3)
    model = module.Model(module.ModelArgs.from_dict(CONFIG))
    nn.quantize(model, group_size=32, bits=4)
    mx.eval(model.parameters())
    return model


def stock(machine: Machine) -> Target:
    model = quantised()

    def attention(q: Any, k: Any, v: Any, cache: Any, scale: float, mask: Any) -> mx.array:
        return mlx_kernels.attention(machine, q, k, v, scale=scale, causal=mask == "causal")

    run_stock(model, machine)
    run_attention(model, attention)
    return bind(model, CONFIG)


def ours(machine: Machine) -> Target:
    model = quantised()

    def attention(q: Any, k: Any, v: Any, cache: Any, scale: float, mask: Any) -> mx.array:
        if q.shape[2] > MOST_ROWS:
            return mlx_kernels.attention(machine, q, k, v, scale=scale)
        return verify_attention(q, k, v, scale, compiler=machine.metal_kernel)

    run_attention(model, attention)
    # A prompt chunk of the probe has 8 rows.
    said = install(model, "auto", trials=few(8), device=gpu(machine))
    assert "Metal kernels in 8 modules" in said
    return bind(model, CONFIG)


def differing(target: Target, rows: int) -> float:
    """The share of a forward's logits that have other bits than row by row."""
    tokens = list(range(5, 5 + rows))
    together = target.forward(tokens, target.new_caches())
    caches = target.new_caches()
    alone = mx.stack([target.forward([token], caches)[0] for token in tokens])
    assert mx.allclose(together, alone, rtol=1e-4, atol=1e-4)
    return float((together != alone).mean())


@pytest.mark.parametrize(
    "machine",
    [
        Machine(),
        Machine(sum_order="sequential", contraction="off", schedule=2),
    ],
    ids=["contracted", "not contracted"],
)
def test_rows_of_stock_kernels_differ_and_rows_of_ours_do_not(machine, record_claim):
    theirs, exact = stock(machine), ours(machine)
    # qmv_wide, and qmm_t, which rounds the weights too.
    for rows in (3, 7):
        assert differing(theirs, rows) > 0.1
        held = differing(exact, rows) == 0
        # One claim, about products and attention together.
        record_claim("verify_matmul", f"logits of {rows} rows of a model", held, bits=True)


def test_the_probe_at_load_tells_them_apart(record_claim):
    machine = Machine()
    found = probe(stock(machine), VOCABULARY, 64, ASKED, lambda share: None)
    assert (found.exact, found.width) == (False, 1)
    assert "logits of row 1 differ" in found.reason
    found = probe(ours(machine), VOCABULARY, 64, ASKED, lambda share: None)
    record_claim("verify_matmul", "every width is exact", found.width == ASKED, bits=True)
    # Prompts stay with MLX's matrix kernel, which the probe says too.
    assert not found.prefill
    assert found.reason.endswith(
        "differ from one-row decoding: the caches after a chunk of 48 tokens"
    )


def test_one_row_is_stock_mlx_s_own_where_its_bits_are_the_same():
    """So what a verify forward computes is what a plain decode without our kernels computes."""
    model = quantised()
    install(model, "auto", trials=few(4), device=gpu(Machine()))
    kernels = [module for module in model.modules() if isinstance(module, RowKernel)]
    assert {kernel.served for kernel in kernels} == {frozenset({2, 3, 4})}
