"""The target in torch: mlx-lm's `qwen3_5` text model with the same parameter names.

Training runs the gated delta rule in chunks (arXiv:2412.06464) with bfloat16 products and a float32
state; rollouts and tests run the recurrence. Shapes: B rows, T positions, H heads, C chunk length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 64
# Below this many new positions the recurrence is cheaper than a padded chunk.
RECURRENT_UP_TO = 16
Cache = list[list[Any]]


@dataclass(frozen=True)
class TargetShape:
    """Sizes, with the names of the config keys."""

    hidden_size: int = 256
    intermediate_size: int = 704
    num_hidden_layers: int = 8
    vocab_size: int = 4096
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    linear_num_value_heads: int = 4
    linear_num_key_heads: int = 2
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    full_attention_interval: int = 4
    rms_norm_eps: float = 1e-6
    rope_theta: float = 100000.0
    partial_rotary_factor: float = 0.25
    max_position_embeddings: int = 4096


class RMSNorm(nn.Module):
    """Plain weights, computed in float32."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def rope(x: Tensor, positions: Tensor, width: int, theta: float) -> Tensor:
    """Rotate the first `width` of the last axis of x [B, H, T, d]; positions [T] or [B, T]."""
    frequencies = theta ** (-torch.arange(0, width, 2).float() / width)
    angles = positions.float()[..., None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    if cos.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    left, right, rest = x[..., : width // 2], x[..., width // 2 : width], x[..., width:]
    return torch.cat([left * cos - right * sin, left * sin + right * cos, rest], -1)


def recurrent_delta(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The rule step by step, the oracle of `chunked_delta`.

    q, k, v [B, T, H, D] float32; log_decay, beta [B, T, H]; state [B, H, Dk, Dv].
    Returns outputs [B, T, H, Dv] and the state after the last step.
    """
    if state is None:
        state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    outputs = []
    for t in range(q.shape[1]):
        state = state * log_decay[:, t, :, None, None].exp()
        key = k[:, t, :, None]
        error = (v[:, t, :, None] - key @ state) * beta[:, t, :, None, None]
        state = state + key.mT * error
        outputs.append((q[:, t, :, None] @ state)[:, :, 0])
    return torch.stack(outputs, 1), state


class ChunkStates(torch.autograd.Function):
    """The part of the chunked rule that runs over chunks in order, with its own backward.

    lower [N, R, C, C] strictly lower; v, k, k_out [N, R, C, D] scaled; decay [N, R, 1, 1] of a
    whole chunk; state [R, Dk, Dv] float32. Products are in the dtype of `v`.
    Returns the state before each chunk [N, R, Dk, Dv], the corrected values [N, R, C, Dv], and the
    last state (float32, outside the graph).
    """

    @staticmethod
    def forward(
        context: Any, lower: Tensor, v: Tensor, k: Tensor, k_out: Tensor, decay: Tensor, state: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        eye = torch.eye(lower.shape[-1], dtype=lower.dtype).expand(lower.shape)
        inverse = torch.linalg.solve_triangular(lower, eye, upper=False, unitriangular=True)
        inverse = inverse.to(v.dtype)
        values, keys = inverse @ v, inverse @ k
        states = v.new_empty(*k.shape[:2], k.shape[-1], v.shape[-1])
        for n in range(len(v)):
            states[n] = state
            values[n] -= keys[n] @ states[n]
            state = decay[n] * state + (k_out[n].mT @ values[n]).float()
        context.save_for_backward(inverse, v, k, keys, k_out, decay, states, values)
        context.mark_non_differentiable(state)
        return states, values, state

    @staticmethod
    def backward(context: Any, *grads: Any) -> Any:
        """Gradients of all inputs but the first state."""
        inverse, v, k, keys, k_out, decay, states, values = context.saved_tensors
        d_states, d_values = grads[0], grads[1].clone()
        d_after = torch.empty_like(states)
        carry = torch.zeros(states.shape[1:], dtype=torch.float32)
        d_decay = torch.empty_like(decay)
        for n in reversed(range(len(v))):
            d_after[n] = carry
            d_decay[n] = (carry * states[n]).sum((-2, -1), keepdim=True)
            d_values[n] += k_out[n] @ d_after[n]
            carry = decay[n] * carry + (d_states[n] - keys[n].mT @ d_values[n]).float()
        d_k_out = values @ d_after.mT
        d_keys = -(d_values @ states.mT)
        d_v, d_k = inverse.mT @ d_values, inverse.mT @ d_keys
        d_inverse = d_values @ v.mT + d_keys @ k.mT
        d_lower = -(inverse.mT @ d_inverse @ inverse.mT).float().tril(-1)
        return d_lower, d_v, d_k, d_k_out, d_decay, None


def chunk_inputs(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """What `ChunkStates` takes but the state, and what `_chunk_outputs` takes: q and scores."""
    rows, length, heads, _ = q.shape
    chunks = length // CHUNK

    def split(x: Tensor) -> Tensor:
        x = x.reshape(rows, chunks, CHUNK, heads, -1).permute(1, 0, 3, 2, 4)
        return x.reshape(chunks, rows * heads, CHUNK, -1)

    q, k, v, beta = split(q), split(k), split(v), split(beta)
    decay = split(log_decay)[..., 0].cumsum(-1)
    # Decay only falls, so the clamp changes nothing but the unused half, which could overflow.
    between = (decay[..., :, None] - decay[..., None, :]).clamp(max=0).exp().tril()
    k_low, since = k.to(dtype), decay.exp()[..., None]
    lower = (beta * (k_low @ k_low.mT).float() * between).tril(-1)
    scores = ((q.to(dtype) @ k_low.mT).float() * between).to(dtype)
    until = (decay[..., -1:] - decay).exp()[..., None]
    return (
        lower,
        (v * beta).to(dtype),
        (k * (beta * since)).to(dtype),
        (k * until).to(dtype),
        decay[..., -1].exp()[..., None, None],
        (q * since).to(dtype),
        scores,
    )


def _chunk_outputs(q: Tensor, states: Tensor, scores: Tensor, values: Tensor, rows: int) -> Tensor:
    out = (q @ states).float() + (scores @ values).float()
    chunks, grouped, length, width = out.shape
    heads = grouped // rows
    out = out.view(chunks, rows, heads, length, width).permute(1, 0, 3, 2, 4)
    return out.reshape(rows, chunks * length, heads, width)


def chunked_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor]:
    """`recurrent_delta`, by chunks: the same result up to the rounding of `dtype`."""
    length = q.shape[1]
    if padding := -length % CHUNK:
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, padding)) for x in (q, k, v))
        log_decay, beta = (F.pad(x, (0, 0, 0, padding)) for x in (log_decay, beta))
    rows, heads = q.shape[0], q.shape[2]
    *inputs, q_scaled, scores = chunk_inputs(q, k, v, log_decay, beta, dtype)
    if state is None:
        state = q.new_zeros(rows, heads, q.shape[3], v.shape[3])
    states, values, last = ChunkStates.apply(*inputs, state.reshape(rows * heads, *state.shape[2:]))
    out = _chunk_outputs(q_scaled, states, scores, values, rows)
    return out[:, :length], last.view(state.shape)


class GatedDeltaNet(nn.Module):
    """The recurrent mixer: projections, a short causal convolution, the gated delta rule."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.key_heads, self.value_heads = shape.linear_num_key_heads, shape.linear_num_value_heads
        self.key_dim, self.value_dim = shape.linear_key_head_dim, shape.linear_value_head_dim
        self.keys, self.values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        self.kernel = shape.linear_conv_kernel_dim
        width, channels = shape.hidden_size, 2 * self.keys + self.values
        self.in_proj_qkv, self.in_proj_z = linear(width, channels), linear(width, self.values)
        self.in_proj_b, self.in_proj_a = (linear(width, self.value_heads) for _ in range(2))
        self.conv1d = nn.Conv1d(channels, channels, self.kernel, groups=channels, bias=False)
        step = torch.exp(torch.empty(self.value_heads).uniform_(math.log(0.001), math.log(0.1)))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.A_log = nn.Parameter(torch.empty(self.value_heads).uniform_(1, 16).log())
        self.norm = RMSNorm(self.value_dim, shape.rms_norm_eps)
        self.out_proj = linear(self.values, width)

    def project(self, x: Tensor, history: Tensor | None) -> tuple[Tensor, ...]:
        """q, k, v [B, T, H, D], log decay and beta [B, T, H], the gate, and the last inputs."""
        rows, length, _ = x.shape
        qkv, gate = self.in_proj_qkv(x).float(), self.in_proj_z(x)
        beta = self.in_proj_b(x).float().sigmoid()
        log_decay = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        if history is None:
            history = qkv.new_zeros(rows, self.kernel - 1, qkv.shape[-1])
        inputs = torch.cat([history, qkv], 1)
        weight = self.conv1d.weight[:, 0]
        mixed = inputs[:, :length] * weight[:, 0]
        for tap in range(1, self.kernel):
            mixed = mixed + inputs[:, tap : tap + length] * weight[:, tap]
        q, k, v = F.silu(mixed).split([self.keys, self.keys, self.values], -1)
        repeats = self.value_heads // self.key_heads

        def unit(t: Tensor) -> Tensor:
            t = t.reshape(rows, length, self.key_heads, self.key_dim)
            t = t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6)
            return t.repeat_interleave(repeats, 2)

        v = v.reshape(rows, length, self.value_heads, self.value_dim)
        q = unit(q) * self.key_dim**-0.5
        return q, unit(k), v, log_decay, beta, gate, inputs[:, -(self.kernel - 1) :]

    def finish(self, y: Tensor, gate: Tensor) -> Tensor:
        y = self.norm(y) * F.silu(gate.view(y.shape).float())
        return self.out_proj(y.flatten(2))


class Attention(nn.Module):
    """Attention with an output gate and partly rotated heads."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.shape = shape
        width, dim = shape.hidden_size, shape.head_dim
        self.q_proj = linear(width, 2 * shape.num_attention_heads * dim)
        self.k_proj = linear(width, shape.num_key_value_heads * dim)
        self.v_proj = linear(width, shape.num_key_value_heads * dim)
        self.o_proj = linear(shape.num_attention_heads * dim, width)
        self.q_norm, self.k_norm = (RMSNorm(dim, shape.rms_norm_eps) for _ in range(2))

    def forward(self, x: Tensor, cache: list[Any] | None = None) -> Tensor:
        shape, (rows, length, _) = self.shape, x.shape
        dim, rotary = shape.head_dim, int(shape.head_dim * shape.partial_rotary_factor)
        q, gate = self.q_proj(x).view(rows, length, shape.num_attention_heads, 2 * dim).chunk(2, -1)
        past = 0 if cache is None or cache[0] is None else cache[0].shape[2]
        positions = torch.arange(past, past + length)
        k = self.k_norm(self.k_proj(x).view(rows, length, -1, dim)).transpose(1, 2)
        q = rope(self.q_norm(q).transpose(1, 2), positions, rotary, shape.rope_theta)
        k = rope(k, positions, rotary, shape.rope_theta)
        v = self.v_proj(x).view(rows, length, -1, dim).transpose(1, 2)
        if cache is not None:
            if past:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[0], cache[1] = k, v
        groups = shape.num_attention_heads // shape.num_key_value_heads
        q = q.to(v.dtype) * dim**-0.5
        k, v = (x.to(v.dtype).repeat_interleave(groups, 1) for x in (k, v))
        # Plain products: torch's fused attention is slower here, forwards and backwards.
        scores = (q @ k.mT).float()
        seen = torch.ones(length, past + length, dtype=torch.bool).tril(past)
        out = scores.masked_fill(~seen, -1e9).softmax(-1).to(v.dtype) @ v
        out = out.transpose(1, 2) * gate.float().sigmoid()
        return self.o_proj(out.flatten(2))


class SwiGLU(nn.Module):
    """The feed-forward part."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(width, inner), linear(width, inner)
        self.down_proj = linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One mixer, recurrent or attention, and a feed-forward part, each behind a norm."""

    def __init__(self, shape: TargetShape, recurrent: bool) -> None:
        super().__init__()
        self.recurrent = recurrent
        if recurrent:
            self.linear_attn = GatedDeltaNet(shape)
        else:
            self.self_attn = Attention(shape)
        eps, width = shape.rms_norm_eps, shape.hidden_size
        self.input_layernorm = RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = SwiGLU(width, shape.intermediate_size)

    def forward(self, x: Tensor, cache: list[Any] | None = None) -> Tensor:
        if not self.recurrent:
            return attention_layer(self, x, cache)
        if cache is None:
            q, k, v, log_decay, beta, gate = project(self, x)
            *inputs, q, scores = chunk_inputs(q, k, v, log_decay, beta, torch.bfloat16)
            state = inputs[0].new_zeros(inputs[0].shape[1], inputs[2].shape[-1], q.shape[-1])
            states, values, _ = ChunkStates.apply(*inputs, state)
            return after_states(self, x, q, states, scores, values, gate)
        normed = self.input_layernorm(x)
        q, k, v, log_decay, beta, gate, cache[0] = self.linear_attn.project(normed, cache[0])
        rule = recurrent_delta if x.shape[1] <= RECURRENT_UP_TO else chunked_delta
        y, cache[1] = rule(q, k, v, log_decay, beta, cache[1])
        return feed_forward(self, x + self.linear_attn.finish(y, gate))


def feed_forward(layer: Any, x: Tensor) -> Tensor:
    return x + layer.mlp(layer.post_attention_layernorm(x))


def attention_layer(layer: Any, x: Tensor, cache: list[Any] | None) -> Tensor:
    return feed_forward(layer, x + layer.self_attn(layer.input_layernorm(x), cache))


def project(layer: Any, x: Tensor) -> tuple[Tensor, ...]:
    """The first part of a recurrent layer: see `GatedDeltaNet.project`."""
    heads: tuple[Tensor, ...] = layer.linear_attn.project(layer.input_layernorm(x), None)[:6]
    return heads


def after_states(
    layer: Any, x: Tensor, q: Tensor, states: Tensor, scores: Tensor, values: Tensor, gate: Tensor
) -> Tensor:
    """The rest of a recurrent layer."""
    y = _chunk_outputs(q, states, scores, values, x.shape[0])
    return feed_forward(layer, x + layer.linear_attn.finish(y, gate))


def compile_layers() -> None:
    """Fuse the element-wise work of training: twice as fast here, after minutes of compiling."""
    here: dict[str, Callable[..., Any]] = globals()
    # `project` and `chunk_inputs` must stay apart: fused, torch 2.13 makes NaN gradients of them.
    for name in ("attention_layer", "project", "chunk_inputs", "after_states"):
        here[name] = torch.compile(here[name], dynamic=False)


class Target(nn.Module):
    """Token ids [B, T] to final hidden rows [B, T, hidden]; `logits` goes on to the vocabulary."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        interval = shape.full_attention_interval
        self.layers = nn.ModuleList(
            Layer(shape, (i + 1) % interval != 0) for i in range(shape.num_hidden_layers)
        )
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        for name, weight in self.named_parameters():
            if "embed" in name:
                nn.init.normal_(weight, std=0.02)
            elif "conv1d" in name:
                nn.init.normal_(weight, std=0.3)
            elif weight.dim() == 2:
                last = name.split(".")[-2] in ("o_proj", "out_proj", "down_proj")
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5 * (0.1 if last else 1.0))

    def empty_cache(self) -> Cache:
        return [[None, None] for _ in self.layers]

    def forward(
        self, ids: Tensor, cache: Cache | None = None, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Also returns the residual stream after layers `taps`: [B, T, len(taps) * hidden]."""
        x, tapped = self.embed_tokens(ids).float(), []
        for i, layer in enumerate(self.layers):
            x = layer(x, None if cache is None else cache[i])
            if i in taps:
                tapped.append(x)
        return self.norm(x), torch.cat(tapped, -1) if taps else None

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed_tokens.weight)
