"""At how many rows MLX changes kernels on an Apple GPU: there a forward's cost has its steps.

From MLX 0.32.4 (mlx/backend/metal/quantized.cpp and scaled_dot_product_attention.cpp; where its
source was not at hand, read out of the library's code). Nothing depends on it for being right: it
says which numbers of rows are worth timing, and what stock MLX reads how often.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from metal.chip import M1, M3, M5, Chip

# Rows that one pass of qmv_wide takes.
WIDE = 5
# The vector attention kernel: rows of queries, and rows times heads that share a key.
ATTENTION_ROWS, ATTENTION_HEADS = 8, 32


@dataclass(frozen=True)
class Product:
    """What stock MLX multiplies quantised weights with. passes: how often it reads them, but for
    what a cache still holds. Products of one kernel have rows of the same bits."""

    kernel: str
    passes: int


def vector_limit(chip: Chip, k: int, n: int) -> int:
    """The first number of rows that is a matrix to MLX, with weights of n outputs of k inputs."""
    size = 0 if max(k, n) <= 2048 else 1 if max(k, n) <= 4096 else 2
    if chip.generation >= M5 and chip.size != "d":
        return (33, 25, 13)[size]
    if chip.generation >= M3 and chip.size != "d":
        return (13, 15, 13)[size]
    if chip.generation < M1:
        return (32, 18, 12)[size] if chip.size == "d" else (18, 12, 10)[size]
    if chip.size == "d":
        return (32, 18, 12)[size]
    return (14, 10, 7 if chip == Chip(M1, "s") else 6)[size]


def product(chip: Chip, rows: int, k: int, n: int) -> Product:
    """Of `rows` rows with affine weights of n outputs of k inputs."""
    if rows >= vector_limit(chip, k, n):
        return Product("qmm", 1)
    if k in (64, 128):
        return Product("qmv_quad", rows)
    if rows > 1 and chip.generation >= M3:
        return Product("qmv_wide", -(-rows // WIDE))
    # qmv_fast where K is a multiple of 512, else qmv: each row reads the weights for itself.
    return Product("qmv", rows)


def attention_limit(groups: int) -> int:
    """The first number of rows for which attention leaves the vector kernel; groups: query heads
    that share a key head."""
    return min(ATTENTION_ROWS, ATTENTION_HEADS // groups) + 1


def rows_to_time(
    chip: Chip, weights: Iterable[tuple[int, int]], groups: int, widest: int
) -> list[int]:
    """Numbers of rows, from 1 up to `widest`, between which cost goes on evenly: both sides of
    every step. weights: (k, n) of a model's matrices."""
    steps = {2, attention_limit(groups)}
    for k, n in set(weights):
        steps.add(vector_limit(chip, k, n))
        steps.update(
            rows
            for rows in range(2, widest + 1)
            if _wide_passes(chip, rows, k, n) != _wide_passes(chip, rows - 1, k, n)
        )
    both = {1, widest} | steps | {rows - 1 for rows in steps}
    return sorted(rows for rows in both if 1 <= rows <= widest)


def _wide_passes(chip: Chip, rows: int, k: int, n: int) -> int:
    """Passes that come in steps; those of qmv come with every row."""
    made = product(chip, rows, k, n)
    return made.passes if made.kernel == "qmv_wide" else 0
