"""The DFlash drafter in torch, for training. Version 2 has convolutions and a selector.

Parameter names and shapes are the published ones, the same as `engine.drafters.dflash`. Many
blocks of one text are computed at once; each sees the text before its anchor and itself.
B texts, T positions, N blocks, K = `block_size` rows a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.builtin.train.model import RMSNorm, SwiGLU, linear, rope


@dataclass(frozen=True)
class DrafterShape:
    """Sizes, with the names of the config keys. selector_rank 0: version 1."""

    hidden_size: int = 256
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 256
    vocab_size: int = 4096
    rms_norm_eps: float = 1e-6
    rope_theta: float = 100000.0
    max_position_embeddings: int = 4096
    num_target_layers: int = 8
    target_layer_ids: tuple[int, ...] = (1, 4, 7)
    block_size: int = 8
    mask_token_id: int = 15
    conv_kernel_size: int = 0
    conv_group_size: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0


FIRST = DrafterShape()
SECOND = DrafterShape(conv_kernel_size=2, conv_group_size=16, selector_rank=24, selector_top_k=16)


class BlockAttention(nn.Module):
    """Rows of many blocks attend to their context and to their own block."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.shape = shape
        width, dim = shape.hidden_size, shape.head_dim
        self.q_proj = linear(width, shape.num_attention_heads * dim)
        self.k_proj, self.v_proj = (
            linear(width, shape.num_key_value_heads * dim) for _ in range(2)
        )
        self.o_proj = linear(shape.num_attention_heads * dim, width)
        self.q_norm, self.k_norm = (RMSNorm(dim, shape.rms_norm_eps) for _ in range(2))

    def keys_and_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Of x [B, L, H] at positions [L] or [B, L]: [B, heads, L, d] each, heads repeated."""
        rows, length, _ = x.shape
        dim, theta = self.shape.head_dim, self.shape.rope_theta
        keys = self.k_norm(self.k_proj(x).view(rows, length, -1, dim)).transpose(1, 2)
        values = self.v_proj(x).view(rows, length, -1, dim).transpose(1, 2)
        repeats = self.shape.num_attention_heads // self.shape.num_key_value_heads
        keys = rope(keys, positions, dim, theta).to(values.dtype)
        return keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)

    def forward(self, x: Tensor, context: Tensor, anchors: Tensor) -> Tensor:
        """x [B, N, K, H]; context [B, T, H]; anchors [B, N] positions. A block sees what is before
        its anchor, and all of itself."""
        shape, (rows, blocks, width, hidden) = self.shape, x.shape
        length = context.shape[1]
        dim, heads = shape.head_dim, shape.num_attention_heads
        positions = (anchors[..., None] + torch.arange(width)).flatten(1)
        flat = x.reshape(rows, blocks * width, hidden)
        context_keys, context_values = self.keys_and_values(context, torch.arange(length))
        keys, values = self.keys_and_values(flat, positions)
        queries = self.q_norm(self.q_proj(flat).view(rows, -1, heads, dim)).transpose(1, 2)
        queries = rope(queries, positions, dim, shape.rope_theta).to(keys.dtype) * dim**-0.5

        def by_block(t: Tensor) -> Tensor:
            return t.reshape(rows, heads, blocks, width, dim)

        outside = (queries @ context_keys.mT).float()
        hidden_from = torch.arange(length) >= anchors[..., None]
        hidden_from = hidden_from.repeat_interleave(width, 1)[:, None]
        outside = outside.masked_fill(hidden_from, -1e9)
        inside = (by_block(queries) @ by_block(keys).mT).float().flatten(2, 3)
        weights = torch.cat([outside, inside], -1).softmax(-1).to(values.dtype)
        out = weights[..., :length] @ context_values
        inner = weights[..., length:].reshape(rows, heads, blocks, width, width) @ by_block(values)
        out = out + inner.reshape(out.shape)
        return self.o_proj(out.transpose(1, 2).reshape(rows, blocks, width, heads * dim))


class GroupedDynamicConv(nn.Module):
    """Causal taps over a block's rows, in front of a sublayer (side 0) and behind it (side 1)."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        taps, groups = shape.conv_kernel_size, shape.hidden_size // shape.conv_group_size
        self.sizes = (2, taps, groups)
        kernel = torch.zeros(2, taps, shape.hidden_size)
        kernel[:, 0] = 1.0
        self.base_kernel = nn.Parameter(kernel)
        self.kernel_projection = linear(shape.hidden_size, 2 * taps * groups)

    def dynamic(self, x: Tensor) -> Tensor:
        return self.kernel_projection(x).float().unflatten(-1, self.sizes)

    def side(self, x: Tensor, dynamic: Tensor, side: int) -> Tensor:
        """x [..., K, H] and dynamic [..., K, 2, taps, groups]; zeros stand before the block."""
        _, taps, groups = self.sizes
        grouped = x.float().unflatten(-1, (groups, -1))
        out = torch.zeros_like(grouped)
        for tap in range(taps):
            kernel = self.base_kernel[side, tap].view(groups, -1)
            kernel = kernel + dynamic[..., side, tap, :, None]
            shifted = F.pad(grouped, (0, 0, 0, 0, tap, 0))[..., : x.shape[-2], :, :]
            out = out + kernel * shifted
        return out.flatten(-2)


class DrafterLayer(nn.Module):
    """Attention and SwiGLU; in version 2 each stands between two convolutions."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.self_attn = BlockAttention(shape)
        self.mlp = SwiGLU(shape.hidden_size, shape.intermediate_size)
        self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(shape.hidden_size, shape.rms_norm_eps) for _ in range(2)
        )
        self.convolved = shape.selector_rank > 0
        if self.convolved:
            self.attention_conv, self.mlp_conv = (GroupedDynamicConv(shape) for _ in range(2))

    def forward(self, x: Tensor, context: Tensor, anchors: Tensor) -> Tensor:
        normed = self.input_layernorm(x)
        if not self.convolved:
            x = x + self.self_attn(normed, context, anchors)
            return x + self.mlp(self.post_attention_layernorm(x))
        conv, dynamic = self.attention_conv, self.attention_conv.dynamic(normed)
        inner = self.self_attn(conv.side(normed, dynamic, 0), context, anchors)
        x = x + conv.side(inner, dynamic, 1)
        normed = self.post_attention_layernorm(x)
        conv, dynamic = self.mlp_conv, self.mlp_conv.dynamic(normed)
        return x + conv.side(self.mlp(conv.side(normed, dynamic, 0)), dynamic, 1)


class CandidateSelector(nn.Module):
    """Adds, to a slot's logits, how well each token follows the one before."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        sizes = (shape.vocab_size, shape.selector_rank)
        self.predecessor_codebook = nn.Parameter(torch.randn(sizes) * 0.3)
        self.successor_codebook = nn.Parameter(torch.zeros(sizes))
        self.hidden_projection = linear(shape.hidden_size, shape.selector_rank)

    def forward(self, hidden: Tensor, before: Tensor) -> Tensor:
        """What to add to the logits [..., V], for hidden [..., H] behind tokens before [...]."""
        left = self.predecessor_codebook[before] * self.hidden_projection(hidden)
        return F.linear(left, self.successor_codebook)


class Drafter(nn.Module):
    """The whole stack; it borrows the embedding and the head of its target."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.hidden_size
        self.fc = linear(len(shape.target_layer_ids) * width, width)
        self.hidden_norm, self.norm = (RMSNorm(width, shape.rms_norm_eps) for _ in range(2))
        self.layers = nn.ModuleList(DrafterLayer(shape) for _ in range(shape.num_hidden_layers))
        for name, weight in self.named_parameters():
            if weight.dim() == 2 and "candidate_selector" not in name:
                last = any(part in name for part in ("o_proj", "down_proj", "kernel_projection"))
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5 * (0.1 if last else 1.0))
        if shape.selector_rank:
            self.candidate_selector = CandidateSelector(shape)

    def forward(self, embed: nn.Embedding, tapped: Tensor, ids: Tensor, anchors: Tensor) -> Tensor:
        """tapped [B, T, taps * H] of the texts; ids, anchors [B, N] tokens and positions.

        Returns rows [B, N, K - 1, H] after the final norm: slot j is of position anchor + 1 + j.
        """
        block = torch.full((*ids.shape, self.shape.block_size), self.shape.mask_token_id)
        block[..., 0] = ids
        x, context = embed(block).float(), self.hidden_norm(self.fc(tapped))
        for layer in self.layers:
            x = layer(x, context, anchors)
        return self.norm(x)[:, :, 1:]
