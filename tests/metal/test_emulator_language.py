"""What the emulator makes of Metal's language: numbers, lanes, matrices, and what is left open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from emulator import Machine, every_machine

pytestmark = pytest.mark.metal

LANES = mx.arange(32).astype(mx.float32)

MAPPINGS = Path("/proc/self/maps")


def run(
    source: str,
    *inputs: mx.array,
    machine: Machine | None = None,
    dtype: mx.Dtype = mx.float32,
    shape: Sequence[int] = (32,),
    grid: tuple[int, int, int] = (32, 1, 1),
    threadgroup: tuple[int, int, int] = (32, 1, 1),
    **more: Any,
) -> mx.array:
    """The output `o` of a body that calls its inputs a, b, c and its thread i."""
    kernel = (machine or Machine()).metal_kernel(
        "language",
        list("abc"[: len(inputs)]),
        ["o"],
        f"uint i = thread_position_in_grid.x; {source}",
        header=more.pop("header", ""),
        atomic_outputs=more.pop("atomic", False),
        ensure_row_contiguous=more.pop("contiguous", True),
    )
    return kernel(
        inputs=inputs,
        output_shapes=[shape],
        output_dtypes=[dtype],
        grid=grid,
        threadgroup=threadgroup,
        **more,
    )[0]


def same(left: mx.array, right: mx.array | np.ndarray[Any, Any]) -> bool:
    return bool(mx.array_equal(left, mx.array(right).astype(left.dtype), equal_nan=True))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_short_floats_round_after_every_operation(dtype: mx.Dtype) -> None:
    mx.random.seed(1)
    a, b, c = (mx.random.normal((512,)).astype(dtype) for _ in range(3))
    source = "o[i] = (a[i] * b[i] + c[i]) / (b[i] - c[i] + 9) + a[i];"
    machine = Machine(contraction="off")
    ours = run(source, a, b, c, machine=machine, dtype=dtype, shape=(512,), grid=(512, 1, 1))
    # NumPy in float, rounded by hand after each operation.
    x, y, z = (np.array(value.astype(mx.float32)) for value in (a, b, c))

    def rounded(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.array(mx.array(value).astype(dtype).astype(mx.float32))

    quotient = rounded(rounded(rounded(x * y) + z) / rounded(rounded(y - z) + 9))
    assert same(ours, rounded(quotient + x))


def test_a_literal_without_suffix_is_a_float() -> None:
    assert same(run("o[i] = a[i] * 0.1 + 0.7;", LANES, machine=Machine(contraction="off")),
                np.arange(32, dtype=np.float32) * np.float32(0.1) + np.float32(0.7))  # fmt: skip


def test_contraction_fuses_or_does_not() -> None:
    a = mx.array(np.float32(1 + 2**-12) * np.ones(32, np.float32))
    source = "o[i] = a[i] * a[i] - (1.0f + 0x1p-11f);"
    exact = np.full(32, 2.0**-24)
    assert same(run(source, a, machine=Machine(contraction="on")), exact)
    assert same(run(source, a, machine=Machine(contraction="off")), np.zeros(32))
    apart = "float p = a[i] * a[i]; o[i] = p - (1.0f + 0x1p-11f);"
    assert same(run(apart, a, machine=Machine(contraction="on")), np.zeros(32))
    assert same(run(apart, a, machine=Machine(contraction="fast")), exact)


def test_denormals_stay_or_are_flushed() -> None:
    tiny = mx.full((32,), 1e-40)
    for flushed in (False, True):
        machine = Machine(flush_denormals=flushed)
        got = run("o[i] = a[i] * 1e30f;", tiny, machine=machine)
        assert bool((got == 0).all()) is flushed


ORDERS = ("ascending", "descending", "sequential")
SCHEDULES = ("forward", "backward", 5)


def test_three_orders_of_a_sum_differ_and_schedules_do_not() -> None:
    mx.random.seed(2)
    a = mx.random.normal((8 * 32,))
    rows = np.array(a).reshape(8, 32).T
    ascending = descending = rows
    while len(ascending) > 1:
        half = len(ascending) // 2
        ascending = ascending[0::2] + ascending[1::2]
        descending = descending[:half] + descending[half:]
    expected = [ascending[0], descending[0], np.add.accumulate(rows)[-1]]
    assert len({sums.tobytes() for sums in expected}) == 3
    for order, sums in zip(ORDERS, expected, strict=True):
        for schedule in SCHEDULES:
            machine = Machine(order, schedule=schedule)
            size = {"grid": (256, 1, 1), "threadgroup": (128, 1, 1), "shape": (8, 32)}
            got = run("o[i] = simd_sum(a[i]);", a, machine=machine, **size)
            assert same(got, np.repeat(sums, 32).reshape(8, 32))


def test_every_machine_is_a_different_one() -> None:
    machines = list(every_machine())
    assert len(set(machines)) == len(machines) == 6
    assert len({machine.schedule for machine in machines}) >= 3


LANE = np.arange(32)
OPERATIONS = {
    "simd_sum(a[i])": np.full(32, 496),
    "simd_product(a[i] < 3 ? a[i] + 1 : 1)": np.full(32, 6),
    "simd_max(a[i])": np.full(32, 31),
    "simd_min(a[i] - 5)": np.full(32, -5),
    "simd_xor((uint)a[i])": np.zeros(32),
    "simd_or((uint)a[i])": np.full(32, 31),
    "simd_and((uint)a[i] | 4)": np.full(32, 4),
    "simd_shuffle(a[i], 31 - i)": LANE[::-1],
    "simd_broadcast(a[i], 7)": np.full(32, 7),
    "simd_broadcast_first(a[i] + 2)": np.full(32, 2),
    "simd_shuffle_xor(a[i], 5)": LANE ^ 5,
    "simd_shuffle_rotate_down(a[i], 3)": (LANE + 3) % 32,
    "simd_shuffle_rotate_up(a[i], 3)": (LANE - 3) % 32,
    "simd_shuffle_and_fill_down(a[i], -1.0f, 30)": np.where(LANE < 2, LANE + 30, -1),
    "simd_shuffle_and_fill_up(a[i], -1.0f, 30)": np.where(LANE >= 30, LANE - 30, -1),
    "simd_prefix_inclusive_sum(a[i])": LANE.cumsum(),
    "simd_prefix_exclusive_sum(a[i])": LANE.cumsum() - LANE,
    "(float)(uint64_t)simd_ballot(a[i] == 3)": np.full(32, 8),
    "simd_all(a[i] >= 0) && !simd_all(a[i] > 0)": np.ones(32),
    "simd_any(a[i] > 30) && !simd_any(a[i] > 31)": np.ones(32),
    "simd_is_first()": LANE == 0,
    "quad_sum(a[i])": LANE // 4 * 16 + 6,
    "quad_max(a[i])": LANE // 4 * 4 + 3,
    "quad_min(a[i])": LANE // 4 * 4,
    "quad_shuffle(a[i], 3 - i % 4)": LANE ^ 3,
    "quad_broadcast(a[i], 2)": LANE // 4 * 4 + 2,
    "quad_shuffle_xor(a[i], 1)": LANE ^ 1,
}


def test_operations_between_lanes() -> None:
    source = "\n".join(
        f"o[{32 * row} + i] = {operation};" for row, operation in enumerate(OPERATIONS)
    )
    got = run(source, LANES, shape=(len(OPERATIONS), 32))
    wrong = {
        name: row.tolist()
        for (name, expected), row in zip(OPERATIONS.items(), got, strict=True)
        if not same(row, np.array(expected, np.float32))
    }
    assert wrong == {}


SCALARS = {
    "rsqrt(a[i] + 1)": lambda x: 1 / np.sqrt(x + 1),
    "exp(-a[i])": lambda x: np.exp(-x),
    "fast::exp2(a[i] / 8)": lambda x: np.exp2(x / 8),
    "precise::log(a[i] + 1)": lambda x: np.log(x + 1),
    "metal::tanh(a[i] / 9)": lambda x: np.tanh(x / 9),
    "pow(a[i], 1.5f)": lambda x: x**1.5,
    "fma(a[i], 3.0f, 1.0f)": lambda x: 3 * x + 1,
    "clamp(a[i], 3.0f, 9.0f)": lambda x: np.clip(x, 3, 9),
    "select(a[i], -1.0f, a[i] > 9)": lambda x: np.where(x > 9, -1, x),
    "max(a[i], NAN) + min(NAN, a[i])": lambda x: 2 * x,
    "sign(a[i] - 4)": lambda x: np.sign(x - 4),
    "popcount((uint)a[i])": lambda x: np.array([bin(int(v)).count("1") for v in x]),
    "clz((uint)a[i])": lambda x: np.array([32 - int(v).bit_length() for v in x]),
    "as_type<float>(as_type<uint>(a[i]) ^ 0x80000000u)": lambda x: -x,
    "extract_bits((uint)a[i], 1, 3)": lambda x: x.astype(int) >> 1 & 7,
    "dot(float4(a[i]), float4(1, 2, 3, 4))": lambda x: 10 * x,
    "(float)half(a[i] / 3)": lambda x: (x / np.float32(3)).astype(np.float16),
    "float2(half2(a[i], 1)).x": lambda x: x,
    "int4(char4(-1, 2, 3, 4)).x": lambda x: np.full_like(x, -1),
    "float2((float4(a[i]) * 2 + float4(1, 2, 3, 4)).yz).x": lambda x: 2 * x + 2,
    "(float)(a[i] == 3.0h)": lambda x: x == 3,
}


def test_functions_of_numbers() -> None:
    source = "\n".join(f"o[{32 * row} + i] = {text};" for row, text in enumerate(SCALARS))
    got = run(source, LANES, shape=(len(SCALARS), 32))
    x = np.arange(32, dtype=np.float32)
    for (name, function), row in zip(SCALARS.items(), np.array(got), strict=True):
        np.testing.assert_allclose(row, function(x), rtol=3e-7, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_matrices_of_a_simdgroup(dtype: mx.Dtype) -> None:
    mx.random.seed(3)
    a, b = (mx.random.randint(-8, 8, (8, 8)).astype(dtype) for _ in range(2))
    source = """
      simdgroup_matrix<T, 8, 8> x, y;
      simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8>(1.0f);
      simdgroup_load(x, a, 8);
      simdgroup_load(y, b, 8, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(sum, x, y, sum);
      simdgroup_store(sum, o, 8);
      simdgroup_float8x8 scaled(2.0f);
      simdgroup_multiply(scaled, sum, scaled);
      simdgroup_store(scaled, o + 64, 8, ulong2(0, 0), true);
    """
    got = run(source, a, b, shape=(2, 8, 8), template=[("T", dtype)])
    product = a.astype(mx.float32) @ b.astype(mx.float32).T + 1
    assert same(got[0], product)
    assert same(got[1], 2 * product.T)


def test_positions_in_a_grid_of_three_dimensions() -> None:
    source = """
      uint3 at = thread_position_in_grid, n = threads_per_grid;
      uint flat = at.x + n.x * (at.y + n.y * at.z);
      uint3 g = threadgroup_position_in_grid, t = thread_position_in_threadgroup;
      uint3 size = dispatch_threads_per_threadgroup;
      bool right = all(g * size + t == at) && all(threads_per_threadgroup <= size)
          && thread_index_in_threadgroup % 32 == thread_index_in_simdgroup
          && thread_index_in_threadgroup / 32 == simdgroup_index_in_threadgroup;
      o[flat] = right ? flat : -1.0f;
    """
    got = run(source, shape=(5 * 7 * 3,), grid=(5, 7, 3), threadgroup=(4, 4, 3))
    assert same(got, np.arange(5 * 7 * 3))


def test_atomics_and_what_an_output_holds_at_first() -> None:
    source = "atomic_fetch_add_explicit(&o[i % 4], a[i], memory_order_relaxed);"
    got = run(source, LANES, shape=(4,), atomic=True, init_value=1.0)
    assert same(got, 1 + np.arange(32).reshape(8, 4).sum(0))


def test_inputs_go_by_their_strides_where_asked() -> None:
    whole = mx.arange(2 * 8 * 6).reshape(2, 8, 6).astype(mx.bfloat16)
    part = whole[:, 2:6, 1:5]
    source = """
      uint x = i % 4, y = i / 4 % 4, z = i / 16;
      o[i] = a[z * a_strides[0] + y * a_strides[1] + x * a_strides[2]];
    """
    for contiguous in (False, True):
        got = run(source, part, contiguous=contiguous, dtype=mx.bfloat16)
        assert same(got.reshape(2, 4, 4), part)
    machine = Machine(sanitizer="address")
    got = run(source, part, contiguous=False, dtype=mx.bfloat16, machine=machine)
    assert same(got.reshape(2, 4, 4), part)


@pytest.mark.skipif(not MAPPINGS.exists(), reason="only Linux lists a process's mappings")
def test_what_ran_keeps_no_stacks() -> None:
    many = {"shape": (1024,), "grid": (1024, 1, 1), "threadgroup": (1024, 1, 1)}
    before = len(MAPPINGS.read_text().splitlines())
    run("o[i] = simd_sum(float(i)) + 1.25;", **many)
    # Those of its library, and a few of whatever else the process did.
    assert len(MAPPINGS.read_text().splitlines()) < before + 64
