"""``python -m metal.layer_traffic``: what `gated_delta` and `verify_attention` read, write and
compute in the layers of Qwen3.8-27B beside stock MLX, and what follows for a chip. A prediction:
nothing here was timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from metal.traffic import BANDWIDTH_SHARE, GPUS, ISSUE_SHARE, Gpu

# Recurrent layers and their heads; attention layers and theirs. 16-bit activations.
RECURRENT, KEY_HEADS, VALUE_HEADS, WIDTH = 48, 16, 48, 128
ATTENTION, HEADS, KV_HEADS, HEAD_WIDTH = 16, 24, 4, 256
STATE = 4 * VALUE_HEADS * WIDTH**2


class Work(NamedTuple):
    """Bytes read and written; instructions of one lane, in millions."""

    moved: float
    instructions: float


def seconds(gpu: Gpu, work: Work) -> float:
    """The longer of memory and arithmetic."""
    moving = work.moved / (BANDWIDTH_SHARE * 1e9 * gpu.bandwidth)
    return max(moving, 1e6 * work.instructions / (ISSUE_SHARE * 1e12 * gpu.tflops / 2))


def rerun(rows: int, keep: int) -> Work:
    """A round of one recurrent layer: the kept rows of the last one again, then `rows`."""
    return Work(4 * STATE + _a_row() * (rows + keep), _steps(rows + keep))


def resumed(rows: int, keep: int) -> Work:
    """The same round from the tape."""
    delta = 4 * VALUE_HEADS * WIDTH
    kept = keep * (delta + 2 * KEY_HEADS * WIDTH)
    # A kept row takes a product, a multiply-add and its key for each element of the state.
    again = keep * VALUE_HEADS * WIDTH**2 * 4 / 1e6
    return Work(2 * STATE + (_a_row() + delta) * rows + kept, _steps(rows) + again)


def _a_row() -> float:
    """Bytes of q, k, v and y."""
    return 2 * (2 * KEY_HEADS + 2 * VALUE_HEADS) * WIDTH


def _steps(rows: int) -> float:
    """A product, three multiply-adds, key and query widened, and a quarter for the sums."""
    return rows * VALUE_HEADS * WIDTH**2 * 8.25 / 1e6


def stock_attention(rows: int, keys: int) -> Work:
    """MLX: each row by itself up to 8 rows and 32 of a key head, then products of matrices."""
    cache, lane = 4 * KV_HEADS * HEAD_WIDTH * keys, HEAD_WIDTH // 32
    if rows <= 8 and rows * HEADS // KV_HEADS <= 32:
        # Keys and values loaded and widened, two products, simd_sum, two exponentials, a rescale.
        each = 4 * lane + 2 * lane + 10 + 10 + lane
        return Work(cache, 32 * rows * HEADS * keys * each / 1e6)
    # Scores are written, read and written by the softmax, and read; tiles have 32 rows.
    scores = 4 * 2 * HEADS * rows * keys
    padded = -(-rows // 32) * 32
    return Work(cache + scores, 2 * padded * HEADS * keys * HEAD_WIDTH / 1e6)


def our_attention(rows: int, keys: int) -> Work:
    """Both passes of `verify_attention`."""
    cache, lane = 4 * KV_HEADS * HEAD_WIDTH * keys, HEAD_WIDTH // 32
    partial = 2 * 4 * HEADS * rows * -(-keys // 512) * (HEAD_WIDTH + 2)
    shared = 4 if rows * HEADS // KV_HEADS >= 16 else 2
    # Two products; a butterfly and a softmax, of eight keys at a time; loads, shared by rows.
    each = 2 * lane + 4 + 5 + 2 + 4 * lane / shared
    return Work(cache + partial, 32 * rows * HEADS * keys * each / 1e6)


def _print(title: str, columns: list[str], cell: Callable[[Gpu, int], str]) -> None:
    print(f"| {title} | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for gpu in GPUS:
        print(f"| {gpu.name} | {' | '.join(cell(gpu, i) for i in range(len(columns)))} |")


def main() -> None:
    """Print the tables of README.md."""
    rounds = [(4, 2), (8, 3), (8, 5), (16, 6)]
    shapes = [(1, 8192), (5, 8192), (8, 8192), (1, 32768), (5, 32768), (8, 32768), (16, 32768)]

    def a_round(gpu: Gpu, index: int) -> str:
        works = rerun(*rounds[index]), resumed(*rounds[index])
        before, after = (1e3 * RECURRENT * seconds(gpu, work) for work in works)
        return f"{before:.2f} → {after:.2f}"

    def attention(gpu: Gpu, index: int) -> str:
        works = stock_attention(*shapes[index]), our_attention(*shapes[index])
        before, after = (1e3 * ATTENTION * seconds(gpu, work) for work in works)
        return f"{before:.1f} → {after:.1f}"

    print("Predicted, not measured: ms, stock MLX → ours.\n")
    _print("48 recurrent layers", [f"{keep} of {rows} rows" for rows, keep in rounds], a_round)
    print()
    names = [f"{rows} × {keys // 1024}k" for rows, keys in shapes]
    _print("16 attention layers, rows × keys", names, attention)


if __name__ == "__main__":
    main()
