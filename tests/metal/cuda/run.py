"""Run the Metal kernels' bodies on a CUDA GPU and check them: ``python tests/metal/cuda/run.py``.

Needs a CUDA GPU and `pip install cupy-cuda13x` (or 12x) beside Pillion; nothing else does. Each
kernel is run at sizes of real models, several times, with the compiler allowed to fuse and not: the
values against the reference, and the bits of rows together against rows alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx

sys.path.insert(0, str(Path(__file__).parent))

from cuda_gpu import CudaGpu

from metal import gated_delta, verify_attention, verify_matmul

REPEATS = 3
Check = tuple[str, bool]


def products(gpu: CudaGpu) -> Iterator[Check]:
    """verify_matmul and verify_gather."""
    options = {"compiler": gpu.metal_kernel}
    for k, n, group_size, bits, dtype in (
        (5120, 6144, 64, 4, mx.bfloat16),
        (4096, 1000, 32, 8, mx.float16),
        (1056, 4099, 32, 4, mx.float32),
    ):
        shape = {"group_size": group_size, "bits": bits}
        w, scales, biases = mx.quantize(mx.random.normal((n, k), key=mx.random.key(1)), **shape)
        matrix = w, scales.astype(dtype), biases.astype(dtype)
        x = mx.random.normal((16, k), key=mx.random.key(2)).astype(dtype)
        alone = mx.concatenate(
            [
                verify_matmul.verify_matmul(x[i : i + 1], *matrix, **shape, **options)
                for i in range(16)
            ]
        )
        expected = verify_matmul.reference(x, *matrix, **shape)
        off = mx.abs(alone.astype(mx.float32) - expected).max() / mx.abs(expected).max()
        name = f"verify_matmul {k} -> {n}, {bits} bits, {dtype}"
        yield f"{name}: values, off by {float(off):.1e}", float(off) < 1e-2
        for tiling in verify_matmul.TILINGS:
            for rows in (2, 5, 8, 16):
                same = all(
                    _same(
                        verify_matmul.verify_matmul(
                            x[:rows], *matrix, **shape, tiling=tiling, **options
                        ),
                        alone[:rows],
                    )
                    for _ in range(REPEATS)
                )
                yield f"{name}: {rows} rows as alone, {tiling}", same
    yield from _experts(options)


def _experts(options: dict[str, object]) -> Iterator[Check]:
    experts, n, k, slots = 32, 768, 2048, 64
    shape = {"group_size": 64, "bits": 4}
    w, scales, biases = mx.quantize(
        mx.random.normal((experts, n, k), key=mx.random.key(3)), **shape
    )
    x = mx.random.normal((slots // 8, k), key=mx.random.key(4))
    indices = mx.random.randint(0, experts, (slots,), key=mx.random.key(5)).astype(mx.uint32)
    got = verify_matmul.verify_gather(x, w, scales, biases, indices, **shape, **options)
    for slot, expert in enumerate(indices.tolist()):
        matrix = w[expert], scales[expert], biases[expert]
        row = slot // 8
        one = verify_matmul.verify_matmul(x[row : row + 1], *matrix, **shape, **options)
        if not _same(one, got[slot : slot + 1]):
            yield f"verify_gather: slot {slot} as alone", False
            return
    yield f"verify_gather: {slots} slots as alone", True


def attention(gpu: CudaGpu) -> Iterator[Check]:
    """verify_attention."""
    for heads, key_heads, width in ((24, 4, 256), (32, 8, 128), (14, 2, 64)):
        shape = verify_attention.Shape(heads, key_heads, width)
        for keys in (300, 1200, 8192):
            for _ in range(REPEATS):
                differs = verify_attention.differs(
                    shape, mx.bfloat16, keys, compiler=gpu.metal_kernel
                )
            yield f"verify_attention {shape}, {keys} keys: rows as alone {differs}", not differs


def recurrence(gpu: CudaGpu) -> Iterator[Check]:
    """gated_delta: the tape's state, and rows behind it, against rows one by one."""
    for sizes in ((16, 48, 128, 128), (2, 4, 64, 64)):
        shape = gated_delta.Shape(*sizes)
        rows, state = gated_delta.random_rows(shape, mx.bfloat16, 16)

        def single(row: int, before: mx.array, rows: gated_delta.Rows = rows):
            one = gated_delta.part(rows, slice(row, row + 1))
            return gated_delta.gated_delta(*one, before, compiler=gpu.metal_kernel)[:2]

        for _ in range(REPEATS):
            differs = gated_delta.differs(rows, state, single, compiler=gpu.metal_kernel)
        yield f"gated_delta {shape}: rows and tape as one by one {differs}", not differs


def _same(one: mx.array, other: mx.array) -> bool:
    return bool(mx.array_equal(one, other).item())


def main() -> int:
    """Print every check; 0 if all held, 1 if one did not, 4 without a CUDA GPU."""
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except (ImportError, RuntimeError) as error:
        print(f"no CUDA GPU can be used: {error}", file=sys.stderr)
        return 4
    failed = count = 0
    kinds: tuple[Callable[[CudaGpu], Iterator[Check]], ...] = (products, attention, recurrence)
    for contract in (True, False):
        for kind in kinds:
            for what, held in kind(CudaGpu(contract)):
                count += 1
                failed += not held
                print(f"{'ok' if held else 'FAILED':6} {what}, fused {contract}", flush=True)
    print(f"{count} checks, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
