"""Attention for decoding and verify: a few query rows at the end of a long context.

    y_i = softmax(scale q_i K^T) V over the keys up to the row's own position

(flash decoding, arXiv:2205.14135 and its split over keys). Up to 64 query rows times heads that
share a key head are in one threadgroup, which reads keys and values once; more of them are in
several, each of which reads them, from memory or from a cache. Stock MLX reads them once up to 8
rows and 32 rows times heads; above, each head reads them.

Exactness: a row's bits depend on its own query and on the keys up to its position, not on how many
rows are asked for together or what is behind it: the context is split at multiples of `BLOCK`
keys, sums are trees and chains in the source, and every multiply-add is an explicit fma. So it
holds in any order of simd_sum and any contraction mode. Single rows have to be computed here too:
the bits are not those of mx.fast.scaled_dot_product_attention. Traffic, and what it is predicted to
gain: README.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx

from metal.chip import Chip
from metal.kernel import Compiler, Kernel

PARTS = Kernel(
    "verify_attention",
    inputs=("q", "k", "v", "scale"),
    outputs=("sums", "tops", "weights"),
    contiguous=False,
)
BLOCKS = Kernel(
    "verify_attention_blocks",
    inputs=("sums", "tops", "weights", "queries", "keys"),
    outputs=("y",),
)
DTYPES = (mx.bfloat16, mx.float16, mx.float32)
WIDTHS = (64, 96, 128, 160, 192, 224, 256)
# Keys that one threadgroup reads: 4 MB partial results at 32k keys, 24 heads of 256 and one row.
BLOCK = 512
MOST_ROWS, MOST_GROUPS = 16, 16
# Rows of a simdgroup, where there are that many, and simdgroups of a threadgroup.
ROWS, SIMDGROUPS = 4, 16


@dataclass(frozen=True)
class Shape:
    """Heads of queries, heads of keys and values, and the width of all."""

    heads: int
    key_heads: int
    width: int

    def __str__(self) -> str:
        return f"{self.heads} heads of {self.width}, {self.key_heads} of keys"


def fits(shape: Shape, dtype: mx.Dtype, chip: Chip | None) -> bool:
    """Whether there is a kernel for up to 16 rows; whether it is worth using, only a race on the
    machine says."""
    return (
        chip is not None
        and dtype in DTYPES
        and shape.width in WIDTHS
        and shape.heads % shape.key_heads == 0
        and shape.heads // shape.key_heads <= MOST_GROUPS
    )


def verify_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    *,
    compiler: Compiler | None = None,
) -> mx.array:
    """Causal attention of the last T of N positions, (B, H, T, D) in the dtype of q.

    q: (B, H, T, D), T up to 16. k, v: (B, H_kv, N, D), of the same dtype; the elements of a row lie
    side by side, everything else may be strided, as slices of a cache are.

    Memory: reads q once, k and v once for each 64 rows times heads of a key head;
    writes and reads (D + 2) floats for each row and block of `BLOCK` keys; writes y.
    """
    batch, heads, queries, width = q.shape
    key_heads, keys = k.shape[1], k.shape[2]
    if not queries <= min(keys, MOST_ROWS):
        raise ValueError(f"{queries} rows of {keys} positions: at most {MOST_ROWS}, and not more")
    together = queries * heads // key_heads
    rows = ROWS if together >= 4 * ROWS else 1 if together < 4 else 2
    simdgroups = -(-together // rows)
    blocks = -(-keys // BLOCK)
    partial = (batch, heads, queries, blocks)
    sums, tops, weights = PARTS.compiled(compiler)(
        inputs=[q, k, v, mx.array(scale * math.log2(math.e), mx.float32)],
        template=[("D", width), ("Rows", rows), ("Block", BLOCK)],
        grid=(32, simdgroups, batch * key_heads * blocks),
        threadgroup=(32, min(simdgroups, SIMDGROUPS), 1),
        output_shapes=[(*partial, width), partial, partial],
        output_dtypes=[mx.float32] * 3,
    )
    (y,) = BLOCKS.compiled(compiler)(
        inputs=[sums, tops, weights, mx.array(queries), mx.array(keys)],
        template=[("OutT", q.dtype), ("D", width), ("Block", BLOCK)],
        grid=(width, batch * heads * queries, 1),
        threadgroup=(width, 1, 1),
        output_shapes=[q.shape],
        output_dtypes=[q.dtype],
    )
    return y


def reference(q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
    """What `verify_attention` computes, in plain MLX ops and float32."""
    queries, keys = q.shape[2], k.shape[2]
    groups = q.shape[1] // k.shape[1]
    key, value = (mx.repeat(x.astype(mx.float32), groups, 1) for x in (k, v))
    scores = (q.astype(mx.float32) * scale) @ key.swapaxes(-1, -2)
    positions = mx.arange(keys - queries, keys)
    scores = mx.where(mx.arange(keys)[None] <= positions[:, None], scores, -mx.inf)
    return (mx.softmax(scores, axis=-1) @ value).astype(q.dtype)


def differs(
    shape: Shape,
    dtype: mx.Dtype,
    keys: int,
    *,
    count: int = MOST_ROWS,
    compiler: Compiler | None = None,
) -> str:
    """What differs on this machine between the last `count` of `keys` positions together and fewer
    of them; empty if nothing does."""
    random = mx.random.split(mx.random.key(keys), 3)
    q = mx.random.normal((1, shape.heads, count, shape.width), key=random[0]).astype(dtype)
    k, v = (
        mx.random.normal((1, shape.key_heads, keys, shape.width), key=key).astype(dtype)
        for key in random[1:]
    )
    scale = shape.width**-0.5
    together = verify_attention(q, k, v, scale, compiler=compiler)
    for rows in range(1, count):
        seen = slice(0, keys - count + rows)
        few = verify_attention(
            q[:, :, :rows], k[:, :, seen], v[:, :, seen], scale, compiler=compiler
        )
        if not mx.array_equal(few, together[:, :, :rows]).item():
            return f"{rows} rows differ from the same among {count}"
    return ""
