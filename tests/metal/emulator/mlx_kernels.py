"""MLX's own Metal kernels, from the headers of the installed wheel: what ours are measured against,
and what a model computes with where no kernel of ours is used."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Literal

import mlx.core as mx

from .machine import Machine
from .signature import TYPES

LOCAL_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
# Overloads for one address space each, which here are one.
SAME_HERE = re.compile(
    r"template <typename T>\s*struct pointer_element<(device|constant|threadgroup) T\*> \{[^}]*\};"
)
FOLDER = "mlx/backend/metal/kernels"
# Headers about types that the emulator has by itself, and complex numbers, whose methods differ by
# address space alone; utils.h needs their name.
REPLACED = ("bf16.h", "bf16_math.h", "complex.h", "logging.h")
COMPLEX = """
using namespace metal;
template <class T>
struct complex_t {
  T real, imag;
  constexpr complex_t(T real = 0, T imag = 0) : real(real), imag(imag) {}
};
typedef complex_t<float> complex64_t;
"""
# Lanes that share a row of the weights in qmv_wide, and vectors that one of its threadgroups takes.
WIDE_LANES = 8
WIDE_VECTORS = 5


@functools.cache
def headers(*names: str) -> str:
    """The text of headers in mlx/backend/metal/kernels, with what they include, once each."""
    seen = {f"{FOLDER}/{name}" for name in REPLACED}

    def included(path: str) -> str:
        if path in seen:
            return ""
        seen.add(path)
        text = (_include_folder() / path).read_text().replace("#pragma once", "")
        text = SAME_HERE.sub("", text)
        return LOCAL_INCLUDE.sub(lambda found: included(found[1]), text)

    return COMPLEX + "\n".join(included(f"{FOLDER}/{name}") for name in names)


def _include_folder() -> Path:
    return Path(mx.__file__).parent / "include"


def quantized_matmul(
    machine: Machine,
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    *,
    group_size: int,
    bits: int,
    kernel: Literal["fast", "wide", "matrix"] | None = None,
    limit: int = 13,
) -> mx.array:
    """`mx.quantized_matmul(..., transpose=True)` of x [..., M, K] by MLX's affine kernels; all rows
    are taken together.

    kernel: qmv_fast (row by row), qmv_wide or qmm_t; by default the one that MLX takes on a GPU of
    generation 15 or later for M rows: fast for one, wide below `limit`, else matrix.
    """
    width, outputs = x.shape[-1], w.shape[0]
    rows = x.size // width
    if kernel is None:
        kernel = "fast" if rows == 1 else "wide" if rows < limit else "matrix"
    typed = f"{TYPES[x.dtype]}, {group_size}, {bits}"
    numbers: list[mx.array | int] = [width, outputs]
    attributes = [
        "threadgroup_position_in_grid",
        "simdgroup_index_in_threadgroup",
        "thread_index_in_simdgroup",
    ]
    if kernel == "fast":
        # Where K is no multiple of 512, MLX has a slower twin.
        fast = width % 512 == 0 and outputs % 8 == 0
        function = f"affine_qmv_fast<{typed}, false>" if fast else f"affine_qmv<{typed}, false>"
        threadgroups, threadgroup = (rows, -(-outputs // 8), 1), (32, 2, 1)
    elif kernel == "wide":
        vectors = -(-rows // -(-rows // WIDE_VECTORS))
        function = f"affine_qmv_wide<{typed}, {vectors}, {WIDE_LANES}, false>"
        at_once = 2 * 32 // WIDE_LANES
        threadgroups, threadgroup = (-(-rows // vectors), -(-outputs // at_once), 1), (32, 2, 1)
        numbers.append(rows)
    else:
        aligned = "false" if outputs % 32 else "true"
        function = f"affine_qmm_t<{typed}, {aligned}, false>"
        threadgroups, threadgroup = (-(-outputs // 32), -(-rows // 32), 1), (32, 2, 2)
        numbers.append(rows)
        attributes.insert(1, "thread_index_in_threadgroup")
    # Shapes and strides are read only for batches of matrices.
    shapes, strides = mx.zeros((1,), mx.int32), mx.zeros((1,), mx.int64)
    unused: list[mx.array | int] = [0, shapes, strides, 0, shapes, strides, strides, strides]
    (result,) = machine.run_function(
        headers("utils.h", "steel/gemm/gemm.h", "quantized_utils.h", "quantized.h"),
        function,
        [w, scales, biases, x, *numbers, *unused],
        {4: ((*x.shape[:-1], outputs), x.dtype)},
        attributes,
        threadgroups,
        threadgroup,
    )
    return result


def attention(
    machine: Machine,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    scale: float,
    causal: bool = True,
) -> mx.array:
    """`mx.fast.scaled_dot_product_attention` by MLX's one-pass kernel for few queries.

    queries [1, heads, length, D], keys and values [1, key heads, positions, D].
    """
    _, heads, length, size = queries.shape
    key_heads, positions = keys.shape[1:3]
    strides = [positions * size, size, positions * size, size]
    mask = mx.zeros((1,), queries.dtype)
    (result,) = machine.run_function(
        headers("utils.h", "sdpa_vector.h"),
        f"sdpa_vector<{TYPES[queries.dtype]}, {size}>",
        [
            *(queries, keys, values, heads // key_heads, positions),
            *(mx.array(stride, mx.uint64) for stride in strides),
            *(scale, mx.zeros((1,), mx.bool_), mask, 0, 0, 0, mask, heads),
        ],
        {3: (queries.shape, queries.dtype)},
        [
            "threadgroup_position_in_grid",
            "threadgroups_per_grid",
            "simdgroup_index_in_threadgroup",
            "thread_index_in_simdgroup",
        ],
        (heads, length, 1),
        (1024, 1, 1),
        constants={22: causal},
    )
    return result


def gated_delta(
    machine: Machine,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array]:
    """The gated delta rule by MLX's chunked kernel: (y [B, T, Hv, Dv], state [B, Hv, Dv, Dk] f32).

    q, k [B, T, Hk, Dk], v [B, T, Hv, Dv], g (the decay itself) and beta [B, T, Hv].
    """
    batch, length, key_heads, key_size = q.shape
    heads, size = v.shape[2:]
    y, after = machine.run_function(
        headers("gated_delta_update.h"),
        f"gated_delta_fused_chunk<{TYPES[q.dtype]}, {key_size}, {size}, {key_heads}, {heads}, 8>",
        [q, k, v, state, g, beta, length],
        {6: (v.shape, v.dtype), 7: (state.shape, mx.float32)},
        [
            "thread_position_in_grid",
            "thread_position_in_threadgroup",
            "thread_index_in_simdgroup",
        ],
        (1, size // 32, batch * heads),
        (32, 4, 1),
    )
    return y, after
