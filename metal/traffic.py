"""``python -m metal.traffic``: bytes and instructions of a forward's quantised products, stock MLX
beside `verify_matmul`, and what follows for a chip. A prediction: nothing here was timed.
"""

from __future__ import annotations

from dataclasses import dataclass

from metal.chip import M1, M2, M3, M4, M5, Chip
from metal.cliffs import product
from metal.verify_matmul import MOST_ROWS, TILINGS, Shape, Tiling


@dataclass(frozen=True)
class Gpu:
    """bandwidth: GB/s, by Apple's data sheets. tflops: float32, two for a multiply-add, as commonly
    given for the number of cores."""

    name: str
    chip: Chip
    bandwidth: float
    tflops: float


GPUS = (
    Gpu("M1", Chip(M1, "g"), 68, 2.6),
    Gpu("M1 Max", Chip(M1, "s"), 400, 10.4),
    Gpu("M2", Chip(M2, "g"), 100, 3.6),
    Gpu("M3", Chip(M3, "g"), 100, 4.1),
    Gpu("M4", Chip(M4, "g"), 120, 4.3),
    Gpu("M4 Pro", Chip(M4, "s"), 273, 9.2),
    Gpu("M4 Max", Chip(M4, "s"), 546, 18.4),
    Gpu("M5", Chip(M5, "g"), 153, 4.8),
)
# Of what the data sheet says: bandwidth as streaming kernels reach it, and instructions such that
# mlx#3839 (M4 Pro, 12288 x 4096, 2.05 and 2.46 single rows for 6 and 8) comes out.
BANDWIDTH_SHARE, ISSUE_SHARE = 0.85, 0.8
# What the matrix kernel costs for up to 32 rows, in single rows (mlx#3852, M4 Pro).
MATRIX_ROWS = 4.5

# Qwen3.8-27B: 48 GatedDeltaNet and 16 attention layers, an MLP in each, and the output layer.
QWEN = {
    Shape(5120, 10240, 64, 4): 48,
    Shape(5120, 6144, 64, 4): 48,
    Shape(5120, 12288, 64, 4): 16,
    Shape(5120, 1024, 64, 4): 32,
    Shape(6144, 5120, 64, 4): 64,
    Shape(5120, 17408, 64, 4): 128,
    Shape(17408, 5120, 64, 4): 64,
    Shape(5120, 248320, 64, 4): 1,
}


def ours(gpu: Gpu, shape: Shape, rows: int, tiling: Tiling = TILINGS[0]) -> float:
    """Seconds of `verify_matmul`: one pass over the weights.

    Instructions a weight: two to unpack it for each tile of rows, 20 for 16 products and their sum,
    and of a row's 16 values load, scale and sum (44), shared by the outputs of a simdgroup.
    """
    tiles = -(-rows // tiling.tile)
    instructions = 2 * tiles + rows * (20 / 16 + 44 / 16 / tiling.results)
    return _seconds(gpu, shape.weight_bytes, instructions * shape.k * shape.n)


def stock(gpu: Gpu, shape: Shape, rows: int) -> float:
    """Seconds of the kernel that MLX takes.

    Instructions a weight: qmv, that of our single row for every row; qmv_wide, three to dequantise
    it in each pass, and two a row, which loads its value for every output.
    """
    made = product(gpu.chip, rows, shape.k, shape.n)
    if made.kernel == "qmm":
        return MATRIX_ROWS * ours(gpu, shape, 1)
    if made.kernel == "qmv":
        return rows * ours(gpu, shape, 1)
    instructions = 3 * made.passes + 2 * rows
    return _seconds(gpu, made.passes * shape.weight_bytes, instructions * shape.k * shape.n)


def _seconds(gpu: Gpu, bytes_read: float, instructions: float) -> float:
    reading = bytes_read / (BANDWIDTH_SHARE * 1e9 * gpu.bandwidth)
    computing = instructions / (ISSUE_SHARE * 1e12 * gpu.tflops / 2)
    return max(reading, computing)


def forward(gpu: Gpu, rows: int) -> tuple[float, float]:
    """Seconds of all quantised products of Qwen3.8-27B: ours, stock."""
    return (
        sum(count * ours(gpu, shape, rows) for shape, count in QWEN.items()),
        sum(count * stock(gpu, shape, rows) for shape, count in QWEN.items()),
    )


def main() -> None:
    counts = (2, 4, 5, 6, 8, 12, MOST_ROWS)
    print("Predicted, not measured: the quantised products of Qwen3.8-27B, 4 bits in groups of 64.")
    print("Single rows that so many rows cost: stock MLX / verify_matmul, and stock through ours.")
    print("| GPU | one row, ms | " + " | ".join(f"{rows} rows" for rows in counts) + " |")
    print("|---|---|" + "---|" * len(counts))
    for gpu in GPUS:
        alone = forward(gpu, 1)[1]
        cells = []
        for rows in counts:
            mine, theirs = forward(gpu, rows)
            cells.append(f"{theirs / alone:.1f} / {mine / alone:.1f}, {theirs / mine:.2f}")
        print(f"| {gpu.name} | {1e3 * alone:.0f} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
