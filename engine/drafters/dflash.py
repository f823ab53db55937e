"""The DFlash drafter: a block of tokens in one pass over the target's own hidden states.

A small Qwen3-style stack without an embedding or a head of its own. Its context are the target's
residual streams after some layers, projected to one row a committed token; the block behind it is
the last token (the anchor) and mask tokens, and each mask row predicts the token of its own
position. DFlash 2 adds a causal convolution over the block around every sublayer and a candidate
selector over its logits.

Architecture and tensor names: github.com/z-lab/dflash; Chen et al., "DFlash: Block Diffusion for
Flash Speculative Decoding", arXiv:2602.06036.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx
import mlx.nn as nn

from engine.drafters.context_cache import ContextCache
from engine.drafters.dflash_config import DFlashConfig
from engine.drafters.selector import CandidateSelector
from engine.messages import Sampling

Rope = Callable[..., mx.array]
"""(1, heads, rows, head_dim), offset= the first row's absolute position -> the same, rotated."""


class DFlashAttention(nn.Module):
    """Block rows attend to the committed context and to the block."""

    def __init__(self, config: DFlashConfig, layer_type: str, rope: Rope) -> None:
        super().__init__()
        hidden, head, bias = config.hidden_size, config.head_dim, config.attention_bias
        queries, shared = config.num_attention_heads * head, config.num_key_value_heads * head
        self.q_proj = nn.Linear(hidden, queries, bias=bias)
        self.k_proj = nn.Linear(hidden, shared, bias=bias)
        self.v_proj = nn.Linear(hidden, shared, bias=bias)
        self.o_proj = nn.Linear(queries, hidden, bias=bias)
        self.q_norm = nn.RMSNorm(head, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(head, eps=config.rms_norm_eps)
        self._head = head
        self._reach = config.layer_reach(layer_type)
        self._causal = config.causal(layer_type)
        self._rope = rope

    def append(self, context: mx.array, cache: ContextCache) -> None:
        """Commit projected context rows, (1, S, H), to the cache."""
        cache.append(*self._keys_and_values(context, cache.end))

    def __call__(self, x: mx.array, cache: ContextCache) -> mx.array:
        queries = self._rope(self.q_norm(self._heads(self.q_proj(x))), offset=cache.end)
        context, block = len(cache), x.shape[1]
        keys, values = cache.followed_by(*self._keys_and_values(x, cache.end))
        output = mx.fast.scaled_dot_product_attention(
            queries,
            keys,
            values,
            scale=self._head**-0.5,
            mask=block_mask(context, block, self._reach, self._causal),
        )
        output = output.swapaxes(1, 2).reshape(1, block, -1)
        projected: mx.array = self.o_proj(output)
        return projected

    def _keys_and_values(self, x: mx.array, offset: int) -> tuple[mx.array, mx.array]:
        keys = self._rope(self.k_norm(self._heads(self.k_proj(x))), offset=offset)
        return keys, self._heads(self.v_proj(x))

    def _heads(self, x: mx.array) -> mx.array:
        return x.reshape(1, x.shape[1], -1, self._head).swapaxes(1, 2)


def block_mask(context: int, block: int, reach: int | None, causal: bool) -> mx.array | str | None:
    """What `block` rows see of `context` rows and of each other, for MLX's attention: None for
    everything, ``causal``, or (block, context + block) bool.

    Row j of the block is j positions further on, so of a window it sees j context rows less.
    """
    if reach is None or context + block - 1 <= reach:
        return "causal" if causal else None
    row, column = mx.arange(block)[:, None], mx.arange(context + block)[None, :]
    visible = column >= context
    if causal:
        visible = visible & (column <= context + row)
    return visible | ((column < context) & (column >= context - reach + row))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        output: mx.array = self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class GroupedDynamicConv(nn.Module):
    """Causal convolutions over the rows of a block, in front of and behind a sublayer.

    Each channel's kernel is a learned one plus a part that depends on the row and is shared by
    `conv_group_size` channels; both parts of both sides come from the sublayer's normed input.
    base_kernel: (2, taps, H), sides in order (in, out).
    """

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        taps, groups = config.conv_kernel_size, config.hidden_size // config.conv_group_size
        self.base_kernel = mx.zeros((2, taps, config.hidden_size))
        self.kernel_projection = nn.Linear(config.hidden_size, 2 * taps * groups, bias=False)
        self._shape = (2, taps, groups)

    def __call__(self, x: mx.array, sublayer: Callable[[mx.array], mx.array]) -> mx.array:
        """``conv_out(sublayer(conv_in(x)))``. x: (1, rows, H)."""
        dynamic = self.kernel_projection(x).reshape(*x.shape[:2], *self._shape)
        inner = sublayer(self._convolve(x, dynamic, 0))
        return self._convolve(inner, dynamic, 1)

    def _convolve(self, x: mx.array, dynamic: mx.array, side: int) -> mx.array:
        """x: (1, rows, H); dynamic: (1, rows, side, tap, group). Before the first row come zeros:
        the block begins there."""
        _, taps, groups = self._shape
        rows, hidden = x.shape[1:]
        grouped = x.reshape(1, rows, groups, -1)
        output: mx.array | None = None
        for tap in range(taps):
            kernel = self.base_kernel[side, tap].reshape(groups, -1)
            kernel = kernel + dynamic[:, :, side, tap, :, None]
            shifted = mx.pad(grouped, [(0, 0), (tap, 0), (0, 0), (0, 0)])[:, :rows]
            term = kernel * shifted
            output = term if output is None else output + term
        assert output is not None
        return output.reshape(1, rows, hidden)


class DFlashLayer(nn.Module):
    """Attention and MLP, each behind a norm and, in DFlash 2, between two convolutions."""

    def __init__(self, config: DFlashConfig, layer_type: str, rope: Rope) -> None:
        super().__init__()
        self.self_attn = DFlashAttention(config, layer_type, rope)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._convolved = config.has_selector
        if self._convolved:
            self.attention_conv = GroupedDynamicConv(config)
            self.mlp_conv = GroupedDynamicConv(config)

    def __call__(self, x: mx.array, cache: ContextCache) -> mx.array:
        def attend(inner: mx.array) -> mx.array:
            return self.self_attn(inner, cache)

        normed = self.input_layernorm(x)
        x = x + (self.attention_conv(normed, attend) if self._convolved else attend(normed))
        normed = self.post_attention_layernorm(x)
        return x + (self.mlp_conv(normed, self.mlp) if self._convolved else self.mlp(normed))


class Stack(Protocol):
    """A whole draft as one call that is not lazy (`engine.cpu.draft_stack`)."""

    def fits(self, sampling: Sampling) -> bool:
        """Whether it can draft for such a request."""

    def propose(
        self,
        observed: Sequence[tuple[mx.array, int]],
        context: tuple[mx.array, int],
        caches: Sequence[tuple[mx.array, mx.array, int]],
        first: Sequence[int],
        position: int,
        anchor: int,
        masks: int,
        sampling: Sampling,
        seed: int,
    ) -> list[int]:
        """At most `masks` tokens behind `anchor`, which is at `position`.

        observed: tapped rows that are not in the buffers yet, the first so many of each array; they
        are written there, in place, from the index on that comes with each buffer. first: each
        layer's oldest row.
        """


class DFlashModel(nn.Module):
    """The drafter's weights; its parameters have the published names and shapes.

    It holds no state of a sequence: that is `new_caches` and `engine.drafters.dflash_drafter`.
    stack: the same, with its target's head, as a kernel; None where there is none.
    """

    def __init__(self, config: DFlashConfig, rope: Rope) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(
            len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False
        )
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = [DFlashLayer(config, kind, rope) for kind in config.layer_types]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if config.has_selector:
            self.candidate_selector = CandidateSelector(config)
        self.stack: Stack | None = None

    @property
    def dtype(self) -> mx.Dtype:
        """Of activations; what comes from the target is cast to it."""
        dtype: mx.Dtype = self.hidden_norm.weight.dtype
        return dtype

    def new_caches(self, start: int = 0) -> list[ContextCache]:
        """Empty caches in layer order; the first row appended is that of position `start`."""
        return [
            ContextCache(self.config.layer_reach(kind), start) for kind in self.config.layer_types
        ]

    def project(self, hidden: mx.array) -> mx.array:
        """Context rows (1, n, H) of the target's tapped residual streams, (n, taps * H)."""
        rows: mx.array = self.hidden_norm(self.fc(hidden.astype(self.dtype)[None]))
        return rows

    def append(self, context: mx.array, caches: Sequence[ContextCache]) -> None:
        """Commit projected rows, (1, S, H), to every layer's cache."""
        for layer, cache in zip(self.layers, caches, strict=True):
            # Older rows than a layer sees are skipped before they cost a projection.
            rows = context if cache.reach is None else context[:, -cache.reach :]
            cache.skip(context.shape[1] - rows.shape[1])
            layer.self_attn.append(rows, cache)

    def __call__(self, block: mx.array, caches: Sequence[ContextCache]) -> mx.array:
        """Hidden rows after the final norm, (1, B, H), of a block that stands behind the caches.

        block: (1, B, H), the embeddings of the anchor and of masks.
        """
        x = block.astype(self.dtype) * self.config.input_embedding_scale
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache)
        output: mx.array = self.norm(x)
        return output

    def scale_logits(self, logits: mx.array) -> mx.array:
        """What the drafter makes of the target head's output."""
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        if self.config.softcap:
            logits = mx.tanh(logits / self.config.softcap) * self.config.softcap
        return logits
