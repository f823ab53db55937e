"""Decoder layers whose parts are one operation each, where the model's code is one that is known.

A layer of a small model is dozens of operations of a few microseconds; as two of them (and the
cache's own) it costs a fraction. What is unknown, and every layer whose weights no kernel takes,
keeps running its own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from engine.cpu import extension
from engine.cpu.functions import Named
from engine.cpu.modules import DTYPES, Kernel, QuantizedLinear, narrow
from engine.targets.caches import attention_cache
from engine.targets.gated_delta import RecordingGatedDelta
from engine.targets.recurrent import RecurrentCache

# Decoder layers of the form h = x + mixer(norm(x)), h + mlp(norm(h)), by the class of the layer.
LAYERS = {
    "mlx_lm.models.llama.TransformerBlock",
    "mlx_lm.models.qwen3.TransformerBlock",
    "mlx_lm.models.qwen3_5.DecoderLayer",
}
MLPS = {
    "mlx_lm.models.llama.MLP",
    "mlx_lm.models.qwen3.MLP",
    "mlx_lm.models.qwen3_next.Qwen3NextMLP",
}
# Attention by its class, and whether each head's queries come with a gate.
ATTENTIONS = {
    "mlx_lm.models.llama.Attention": False,
    "mlx_lm.models.qwen3.Attention": False,
    "mlx_lm.models.qwen3_next.Qwen3NextAttention": True,
}
DELTA_NETS = {"mlx_lm.models.qwen3_5.GatedDeltaNet"}


def stock(module: Any) -> Any:
    """A module without the wrapper that runs a kernel in its place."""
    while isinstance(module, Kernel | RecordingGatedDelta):
        module = module.layer if isinstance(module, RecordingGatedDelta) else module.inner
    return module


def name_of(module: Any) -> str:
    kind = type(_named(module))
    return f"{kind.__module__}.{kind.__qualname__}"


def _named(module: Any) -> Any:
    """A module without whatever was put around it."""
    module = stock(module)
    while isinstance(module, Named):
        module = stock(module.inner)
    return module


def is_plain(linear: Any, dtype: mx.Dtype) -> bool:
    """Whether the layers below take these weights."""
    inner = stock(linear)
    if "bias" in inner:
        return False
    if type(inner) is nn.Linear:
        return bool(inner.weight.dtype == dtype)
    return (
        type(inner) is nn.QuantizedLinear
        and inner.bits in (4, 8)
        and inner.group_size in (32, 64, 128)
        and getattr(inner, "mode", "affine") == "affine"
        and bool(inner.scales.dtype == dtype)
    )


def weights_of(linear: Any) -> Any:
    """The extension's handle on a layer's weight, [N, K] or packed with scales and biases."""
    if isinstance(linear, QuantizedLinear):
        return linear.weights
    inner = stock(linear)
    if type(inner) is nn.Linear:
        return extension().Weights([inner.weight])
    scales, biases = narrow(inner.scales, inner.biases)
    return extension().Weights([inner.weight, scales, biases], inner.group_size, inner.bits)


def norm_of(module: Any) -> Any:
    """The extension's handle on an RMSNorm's weight, [H], and epsilon."""
    inner = stock(module)
    return extension().Norm(inner.weight, inner.eps)


def _mlp(norm: Any, mlp: Any) -> Any:
    parts = (weights_of(mlp[name]) for name in ("gate_proj", "up_proj", "down_proj"))
    return extension().Mlp(norm_of(norm), *parts, residual=True)


def _attention(norm: Any, attention: Any) -> Any:
    rope, gated = stock(attention.rope), ATTENTIONS[name_of(attention)]
    heads = getattr(attention, "n_heads", None) or attention.num_attention_heads
    key_heads = getattr(attention, "n_kv_heads", None) or attention.num_key_value_heads
    q, k, v, o = (weights_of(attention[name]) for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    return extension().AttentionLayer(
        norm_of(norm),
        norm_of(attention.q_norm) if "q_norm" in attention else None,
        norm_of(attention.k_norm) if "k_norm" in attention else None,
        q,
        k,
        v,
        o,
        heads=heads,
        key_heads=key_heads,
        width=round(attention.scale**-2),
        rotated=rope.dims,
        base=rope.base,
        rope_scale=rope.scale,
        scale=attention.scale,
        gated=gated,
        causal=True,
        residual=True,
    )


def _delta_net(norm: Any, net: Any) -> Any:
    names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
    taps = _conv(net).weight[:, :, 0].T.astype(mx.float32)
    return extension().DeltaLayer(
        norm_of(norm),
        norm_of(net.norm),
        *(weights_of(net[name]) for name in names),
        [taps, net.A_log, net.dt_bias],
        net.num_k_heads,
        net.num_v_heads,
        net.head_k_dim,
        net.head_v_dim,
    )


def _conv(net: Any) -> Any:
    """Its convolution, which a target has wrapped to record it."""
    conv = net.conv1d
    return stock(getattr(conv, "inner", conv))


@dataclass(frozen=True)
class DeltaTape:
    """inputs: (1, taps - 1 + T, channels). gates: (1, 2, T, heads). state: before the rows."""

    layer: Any
    inputs: mx.array
    gates: mx.array
    state: mx.array

    def replay(self, keep: int) -> tuple[mx.array, mx.array]:
        window, state = self.layer.replay(self.inputs, self.gates, self.state, keep)
        return window, state


class FusedLayer(Kernel):
    """A decoder layer as two operations, where the cache is of the plain kind."""

    # Of the largest value, after a few roundings in a row.
    tolerance: ClassVar[dict[mx.Dtype, float]] = {mx.float32: 1e-4, mx.bfloat16: 3e-2}

    @staticmethod
    def fits(module: nn.Module) -> bool:
        if name_of(module) not in LAYERS or "mlp" not in module:
            return False
        layer = _named(module)
        norms = layer.input_layernorm, layer.post_attention_layernorm
        if not all(type(stock(norm)) is nn.RMSNorm for norm in norms):
            return False
        dtype = stock(norms[0]).weight.dtype
        mixer = layer["linear_attn"] if "linear_attn" in layer else layer["self_attn"]
        return (
            dtype in DTYPES
            and _fits_mlp(layer.mlp, dtype)
            and (_fits_attention(mixer, dtype) or _fits_delta_net(mixer, dtype))
        )

    def bound(self) -> Any:
        layer = _named(self.inner)
        norm = layer.input_layernorm
        self._recurrent = "linear_attn" in layer
        if self._recurrent:
            self._mixer = _delta_net(norm, _named(layer.linear_attn))
            net = _named(layer.linear_attn)
            self._window = (1, net.conv_kernel_size - 1, net.conv_dim)
            self._state = (1, net.num_v_heads, net.head_v_dim, net.head_k_dim)
        else:
            self._mixer = _attention(norm, _named(layer.self_attn))
        self._mlp = _mlp(layer.post_attention_layernorm, _named(layer.mlp))
        self._dtype = stock(norm).weight.dtype
        return self._mlp

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        output: mx.array
        plain = x.shape[0] == 1 and x.dtype == self._dtype and cache is not None
        if plain and self._recurrent and mask is None and type(cache) is RecurrentCache:
            output = self._mlp(self._recur(x, cache))
        elif plain and not self._recurrent and _is_causal(mask, x.shape[1]):
            queries, keys, values, gate = self._mixer.before(x, cache.offset)
            keys, values = cache.update_and_fetch(keys, values)
            output = self._mlp(self._mixer.after(x, queries, keys, values, gate))
        else:
            output = self.inner(x, mask, cache)
        return output

    def _recur(self, x: mx.array, cache: RecurrentCache) -> mx.array:
        window, state = cache[0], cache[1]
        if window is None:
            window = mx.zeros(self._window, x.dtype)
        if state is None:
            state = mx.zeros(self._state, mx.float32)
        output: mx.array
        output, cache[0], cache[1], inputs, gates = self._mixer.forward(x, window, state)
        cache.advance(x.shape[1])
        if cache.recording:
            cache.tape = DeltaTape(self._mixer, inputs, gates, state)
        return output

    def rows(self, count: int) -> mx.array:
        weight = stock(self.inner.input_layernorm).weight
        return mx.random.normal((1, count, weight.shape[0]), key=mx.random.key(count)).astype(
            weight.dtype
        )

    def key(self) -> tuple[Any, ...]:
        shapes = sorted((n, v.shape) for n, v in _arrays(_named(self.inner)))
        return type(self), name_of(self.inner), str(self._dtype), str(shapes)

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        cache: Any = RecurrentCache() if self._recurrent else attention_cache()
        mask = None if self._recurrent or rows.shape[1] == 1 else "causal"
        output: mx.array = module(rows, mask, cache)
        return output


def _is_causal(mask: Any, rows: int) -> bool:
    return mask is None if rows == 1 else isinstance(mask, str) and mask == "causal"


def _arrays(module: nn.Module) -> Sequence[tuple[str, mx.array]]:
    flat: Sequence[tuple[str, mx.array]] = tree_flatten(module.parameters())
    return flat


def _fits_mlp(mlp: Any, dtype: mx.Dtype) -> bool:
    named = _named(mlp)
    return name_of(mlp) in MLPS and all(
        is_plain(named[name], dtype) for name in ("gate_proj", "up_proj", "down_proj")
    )


def _fits_attention(attention: Any, dtype: mx.Dtype) -> bool:
    if name_of(attention) not in ATTENTIONS:
        return False
    named = _named(attention)
    rope = stock(named.rope)
    return (
        type(rope) is nn.RoPE
        and not rope.traditional
        and rope.dims % 2 == 0
        and all(is_plain(named[n], dtype) for n in ("q_proj", "k_proj", "v_proj", "o_proj"))
    )


def _fits_delta_net(net: Any, dtype: mx.Dtype) -> bool:
    if name_of(net) not in DELTA_NETS:
        return False
    named = _named(net)
    names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
    return (
        isinstance(net, RecordingGatedDelta)
        and named.sharding_group is None
        and "bias" not in _conv(named)
        and named.A_log.dtype in DTYPES
        and named.dt_bias.dtype in DTYPES
        and all(is_plain(named[name], dtype) for name in names)
    )
