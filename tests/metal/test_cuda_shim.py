"""What the CUDA script would compile: without a CUDA GPU, by clang's CUDA front end alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from emulator.toolchain import compiler

sys.path.insert(0, str(Path(__file__).parent / "cuda"))

from cuda_gpu import CudaGpu, CudaKernel

from metal import gated_delta, verify_attention, verify_matmul

# What NVRTC knows by itself.
PRELUDE = """
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
struct Three { unsigned x, y, z; };
extern __device__ const Three threadIdx, blockIdx, blockDim;
__device__ unsigned __float_as_uint(float);
__device__ float __uint_as_float(unsigned);
__device__ float __fmaf_rn(float, float, float);
__device__ float exp2f(float);
__device__ bool __any_sync(unsigned, int);
template <class T> __device__ T __shfl_sync(unsigned, T, int);
template <class T> __device__ T __shfl_xor_sync(unsigned, T, int);
__device__ int min(int, int);
__device__ int max(int, int);
#pragma clang force_cuda_host_device begin
"""
CHECK = ["-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_80", "-nocudainc", "-nocudalib"]


class Units:
    """Collects the translation units of launches, which return zeros."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def metal_kernel(self, **options: Any) -> Any:
        kernel = CudaGpu().metal_kernel(**options)

        def launch(
            *, inputs: Any, template: Any, grid: Any, threadgroup: Any,
            output_shapes: Any, output_dtypes: Sequence[mx.Dtype],
        ) -> list[mx.array]:  # fmt: skip
            assert isinstance(kernel, CudaKernel)
            dimensions = [(x.dtype, x.ndim) for x in inputs]
            self.texts.append(kernel.unit(dimensions, output_dtypes, template, grid))
            pairs = zip(output_shapes, output_dtypes, strict=True)
            return [mx.zeros(shape, dtype) for shape, dtype in pairs]

        return launch


def units() -> list[str]:
    """Of every kernel there is."""
    made = Units()
    options = {"compiler": made.metal_kernel}
    for bits, dtype in ((4, mx.bfloat16), (8, mx.float16)):
        shape = {"group_size": 32, "bits": bits}
        w, scales, biases = mx.quantize(mx.zeros((2, 9, 64)), **shape)
        x, scales, biases = (a.astype(dtype) for a in (mx.zeros((4, 64)), scales, biases))
        verify_matmul.verify_matmul(x, w[0], scales[0], biases[0], **shape, **options)
        indices = mx.array([0, 1, 1, 0, 1, 1, 0, 0])
        verify_matmul.verify_gather(x, w, scales, biases, indices, **shape, **options)
    heads = mx.zeros((1, 4, 3, 64), mx.bfloat16)
    keys = mx.zeros((1, 2, 20, 64), mx.bfloat16)
    verify_attention.verify_attention(heads, keys, keys, 0.125, **options)
    rows, state = gated_delta.random_rows(gated_delta.Shape(2, 4, 64, 32), mx.bfloat16, 3)
    *_, tape = gated_delta.gated_delta(*rows, state, **options)
    gated_delta.resume(tape, 2, *rows, **options)
    gated_delta.replay(tape, 2, **options)
    return made.texts


@pytest.mark.metal
def test_every_kernel_is_cuda_behind_the_shim():
    texts = units()
    assert len(texts) >= 8
    for text in texts:
        checked = subprocess.run(
            [compiler() or "", *CHECK, "-std=c++17", "-S", "-o-", "-Wno-unknown-pragmas", "-"],
            input=PRELUDE + text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stderr[:2000]


def test_constants_and_bounds_are_written_out():
    kernel = CudaGpu().metal_kernel(
        name="k", input_names=["x", "n"], output_names=["y"], source="y[0] = x[n];"
    )
    text = kernel.unit(
        [(mx.bfloat16, 2), (mx.int32, 0)],
        [mx.float32],
        [("T", mx.float16), ("M", 3), ("Whole", True)],
        (32, 7, 1),
    )
    body = text[text.index('extern "C"') :]
    assert "const bfloat* x, const int* x_shape, const long long* x_strides" in body
    assert "const int* n_at, float* y) {" in body
    assert "const int& n = *n_at;" in body
    assert "using T = half;\nconstexpr int M = 3;\nconstexpr bool Whole = true;\n" in body
    assert "thread_position_in_grid.y >= 7u" in body


def test_without_a_gpu_the_script_says_so():
    script = Path(__file__).parent / "cuda" / "run.py"
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        assert (ran.returncode, ran.stderr[:26]) == (4, "no CUDA GPU can be used: N"[:26])
