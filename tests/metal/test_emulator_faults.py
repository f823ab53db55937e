"""Kernels with one fault each, and what the emulator says of them; and sound ones, of which it says
nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import pytest
from emulator import KernelFault, Machine
from recording import RecordFault

pytestmark = pytest.mark.metal

PLAIN = Machine()
BACKWARD = Machine(schedule="backward")
RANDOM = Machine(schedule=7)
ADDRESS = Machine(sanitizer="address")
THREAD = Machine(sanitizer="thread")
PORTABLE = Machine(portable_fibers=True)
PORTABLE_ADDRESS = Machine(portable_fibers=True, sanitizer="address")
MEMORY = Machine(sanitizer="memory", check_outputs=False)

GRID = "uint i = thread_position_in_grid.x;"
GROUP = "uint i = thread_position_in_threadgroup.x;"
SHARED = f"threadgroup float s[64]; {GROUP}"
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
REVERSE = f"{SHARED} s[i] = a[i]; {BARRIER} o[i] = s[63 - i];"


@dataclass(frozen=True)
class Case:
    """A kernel of 64 threads with one input and one output, both 64 floats."""

    name: str
    machine: Machine
    kind: str
    source: str
    # Words of the report.
    says: str = ""
    grid: int = 64
    threadgroup: int = 64
    dtype: mx.Dtype = mx.float32
    header: str = ""
    atomic: bool = False

    def run(self) -> mx.array:
        kernel = self.machine.metal_kernel(
            "seeded", ["a"], ["o"], self.source, header=self.header, atomic_outputs=self.atomic
        )
        return kernel(
            inputs=[mx.arange(64).astype(self.dtype)],
            template=[("T", self.dtype)],
            grid=(self.grid, 1, 1),
            threadgroup=(self.threadgroup, 1, 1),
            output_shapes=[(64,)],
            output_dtypes=[self.dtype],
        )[0]

    def fault(self) -> KernelFault | None:
        try:
            self.run()
        except KernelFault as fault:
            return fault
        return None


def case(name: str, machine: Machine, kind: str, *source: str, **more: Any) -> Case:
    return Case(name, machine, kind, "\n".join(source), **more)


NO_BARRIER = REVERSE.replace(BARRIER, "")
SIMD_AS_BARRIER = f"{SHARED} s[i] = a[i]; float z = simd_sum(0.0f); o[i] = s[i ^ 1] + z;"
REUSED = (
    f"{SHARED} float r = 0; for (int k = 0; k < 2; k++) {{ s[i] = a[i] + k; {BARRIER} "
    "r += s[63 - i]; } o[i] = r;"
)
RACES = [
    case("no barrier", PLAIN, "poison", NO_BARRIER),
    case("no barrier, backward", BACKWARD, "poison", NO_BARRIER),
    case("no barrier, random", RANDOM, "poison", NO_BARRIER),
    case("no barrier, watched", THREAD, "race", NO_BARRIER, says="seeded.metal:1"),
    case("barrier of no memory", THREAD, "race", REVERSE.replace("mem_threadgroup", "mem_none")),
    case(
        "barrier of a simdgroup where the threadgroup's is due",
        THREAD,
        "race",
        REVERSE.replace("threadgroup_barrier(", "simdgroup_barrier("),
    ),
    case("simd operation in place of a barrier", THREAD, "race", SIMD_AS_BARRIER),
    case("memory written again while others read it", THREAD, "race", REUSED),
    case(
        "two threadgroups write one element",
        THREAD,
        "race",
        f"{GROUP} o[i] = a[thread_position_in_grid.x]; o[i + 32] = 0;",
        threadgroup=32,
    ),
    case(
        "a threadgroup reads what another wrote",
        THREAD,
        "race",
        f"{GRID} o[i] = a[i]; threadgroup_barrier(mem_flags::mem_device); o[i] += o[i ^ 32];",
        threadgroup=32,
    ),
    case("all lanes write one element", THREAD, "race", f"{GRID} o[i] = 0; o[63] = a[i];"),
    case("a sum without atomics", THREAD, "race", f"{GRID} o[i] = 0; o[i & 31] += a[i];"),
]
BOUNDS = [
    case("read behind an input", ADDRESS, "out of bounds", f"{GRID} o[i] = a[i + 1];"),
    case("read in front of an input", ADDRESS, "out of bounds", f"{GRID} o[i] = a[(int)i - 1];"),
    case("write behind an output", ADDRESS, "out of bounds", f"{GRID} o[i + 1] = a[i];"),
    case(
        "vector read that ends behind an input",
        ADDRESS,
        "out of bounds",
        f"{GRID} o[i] = ((const device float4*)a)[(i + 1) / 4].x;",
    ),
    case(
        "threadgroup array too short",
        ADDRESS,
        "out of bounds",
        f"threadgroup float s[32]; {GROUP} s[i] = a[i]; {BARRIER} o[i] = s[i];",
    ),
    case(
        "threadgroup memory through a pointer",
        ADDRESS,
        "out of bounds",
        f"threadgroup float s[64]; {GROUP} threadgroup float* p = s + i; p[1] = a[i]; {BARRIER} "
        "o[i] = s[i];",
    ),
    case(
        "private array too short",
        ADDRESS,
        "out of bounds",
        f"float s[4]; {GRID} for (int k = 0; k <= 4; k++) s[k] = a[i]; o[i] = s[i & 3];",
    ),
    case("shift by 32", ADDRESS, "undefined behaviour", f"{GRID} o[i] = 1u << (i & 32);"),
    case(
        "integer that overflows",
        ADDRESS,
        "undefined behaviour",
        f"{GRID} int n = 0x7fffffc0 + (int)a[i]; o[i] = n + 1;",
    ),
    case("division by zero", ADDRESS, "undefined behaviour", f"{GRID} o[i] = 7 / (int)i;"),
    case(
        "float that no int can hold",
        ADDRESS,
        "undefined behaviour",
        f"{GRID} o[i] = (int)(a[i] * 1e9f);",
    ),
    case(
        "vector at an odd address",
        ADDRESS,
        "undefined behaviour",
        f"{GRID} o[i] = i > 56 ? 0 : (*(const device float2*)(a + i)).y;",
    ),
    case("write to an input", PLAIN, "compile", f"{GRID} a[i] = 1.0f; o[i] = 0;"),
    case(
        "write to an input by a cast",
        ADDRESS,
        "input",
        f"{GRID} ((device float*)a)[i] = 1.0f; o[i] = 0;",
    ),
]
DIVERGENCE = [
    case(
        "barrier that not all reach",
        PLAIN,
        "divergence",
        f"{GRID} if (i < 40)\n  {BARRIER}\no[i] = a[i];",
        says="seeded.metal:2",
    ),
    case(
        "return before a barrier",
        PLAIN,
        "divergence",
        f"{GRID} if (i >= 40) return; {BARRIER} o[i] = a[i];",
        says="has returned",
    ),
    case(
        "a simdgroup returns before a barrier",
        PLAIN,
        "divergence",
        f"{GRID} o[i] = a[i]; if (i >= 32) return; {BARRIER}",
        says="non-uniform threadgroup_barrier",
    ),
    case(
        "barrier in a loop of uneven length",
        PLAIN,
        "divergence",
        f"{GRID} o[i] = a[i]; for (uint k = 0; k < 1 + i / 32; k++) {BARRIER}",
    ),
    case(
        "two barriers on two branches",
        PLAIN,
        "divergence",
        f"{GRID} o[i] = a[i]; if (i < 32)\n{BARRIER}\nelse\n{BARRIER}",
    ),
    case(
        "simd_sum that not all reach",
        PLAIN,
        "divergence",
        f"{GRID} float v = a[i]; if (i & 1) v = simd_sum(v); o[i] = v;",
        says="simd_sum",
    ),
    case(
        "two simd operations on two branches",
        PLAIN,
        "divergence",
        f"{GRID} float v = a[i]; if (i & 1) v = simd_sum(v);\nelse v = simd_max(v);\no[i] = v;",
    ),
    case(
        "simd_sum in a loop of uneven length",
        PLAIN,
        "divergence",
        f"{GRID} float v = a[i]; for (uint k = 0; k <= (i & 1); k++) v = simd_sum(v); o[i] = v;",
    ),
]
UNWRITTEN = [
    case(
        "shuffle from past the last lane",
        PLAIN,
        "poison",
        f"{GRID} o[i] = simd_shuffle_down(a[i], 1);",
    ),
    case(
        "shuffle from past the quad", PLAIN, "poison", f"{GRID} o[i] = quad_shuffle_down(a[i], 1);"
    ),
    case(
        "shuffle from a lane that is not there",
        PLAIN,
        "poison",
        f"{GRID} o[i] = simd_shuffle_xor(a[i], 16);",
        threadgroup=48,
    ),
    case(
        "element never written", PLAIN, "poison", f"{GRID} if (i != 5) o[i] = a[i];", says="index 5"
    ),
    case(
        "bfloat never written",
        PLAIN,
        "poison",
        f"{GRID} if (i != 5) o[i] = a[i];",
        dtype=mx.bfloat16,
    ),
    case(
        "threadgroup memory read before it is written",
        PLAIN,
        "poison",
        f"{SHARED} if (i != 9) s[i] = a[i]; {BARRIER} o[i] = s[i];",
    ),
    case(
        "matrix that was never loaded",
        PLAIN,
        "poison",
        f"{GRID} simdgroup_matrix<float, 8, 8> m; o[i] = m.thread_elements()[0];",
    ),
    case(
        "variable that one lane never sets",
        MEMORY,
        "uninitialised",
        f"{GRID} float x; if (i != 3) x = a[i]; if (x > 2.0f) o[i] = 1; else o[i] = 0;",
    ),
]
LIMITS = [
    case(
        "33 KiB of threadgroup memory",
        PLAIN,
        "threadgroup memory",
        f"threadgroup float s[8448]; {GROUP} s[i] = a[i]; o[i] = s[i];",
    ),
    case(
        "33 KiB in two arrays",
        PLAIN,
        "threadgroup memory",
        f"threadgroup float s[8000], t[448]; {GROUP} s[i] = t[i] = a[i]; o[i] = s[i];",
    ),
    case("1025 threads", PLAIN, "dispatch", f"{GRID} o[i & 63] = 0;", grid=1025, threadgroup=1025),
    case("no thread", PLAIN, "dispatch", f"{GRID} o[i] = 0;", grid=0),
    case(
        "matrix of half a simdgroup",
        PLAIN,
        "simdgroup matrix",
        f"{GRID} simdgroup_matrix<float, 8, 8> m(1.0f); simdgroup_multiply(m, m, m); "
        "o[i] = m.thread_elements()[0];",
        threadgroup=16,
    ),
    case("double", PLAIN, "compile", f"{GRID} double x = a[i]; o[i] = x;"),
    case(
        "lambda", PLAIN, "compile", f"{GRID} auto f = [&](float x) {{ return x; }}; o[i] = f(a[i]);"
    ),
    case("memory from new", PLAIN, "compile", f"{GRID} float* p = new float[4]; o[i] = p[0];"),
    case(
        "pointer without an address space",
        PLAIN,
        "compile",
        f"{GRID} float x = a[i]; float* p = &x; o[i] = *p;",
        says="'float*' has no address space",
    ),
    case(
        "cast that loses the address space",
        PLAIN,
        "compile",
        f"{GRID} o[i] = ((const float2*)a)[i / 2].x;",
    ),
    case(
        "reference without an address space",
        PLAIN,
        "compile",
        f"{GRID} o[i] = a[i]; twice(o[i]);",
        header="template <typename U> void twice(U & x) { x = 2 * x; }",
    ),
    case(
        "constant of the program that is not in its space",
        PLAIN,
        "compile",
        f"{GRID} o[i] = WIDTH * a[i];",
        header="constexpr int WIDTH = 4;",
    ),
    case("C++'s library", PLAIN, "compile", f"{GRID} o[i] = std::max(a[i], 0.0f);"),
    case(
        "name that no header has",
        PLAIN,
        "compile",
        f"{GRID}\no[i] = absent(a[i]);",
        says="seeded.metal:2",
    ),
]
FAULTS = [*RACES, *BOUNDS, *DIVERGENCE, *UNWRITTEN, *LIMITS]

ATOMIC = f"{GRID} atomic_store_explicit(&o[i], a[i], memory_order_relaxed);"
TWICE = REUSED.replace("r += s[63 - i];", f"r += s[63 - i]; {BARRIER}")
WITHIN_SIMDGROUP = (
    f"{SHARED} s[i] = a[i]; simdgroup_barrier(mem_flags::mem_threadgroup); o[i] = s[i ^ 1];"
)
MATRIX = (
    "simdgroup_matrix<float, 8, 8> m; uint at = 64 * threadgroup_position_in_grid.x; "
    "simdgroup_load(m, a, 8); if (at == 0) simdgroup_store(m, o, 8);"
)
APART = (
    f"{SHARED} uint at = thread_position_in_grid.x; s[i] = a[at]; {BARRIER} "
    "o[at] = s[(i & 16) + 15 - (i & 15)];"
)
SOUND = [
    case("reversed through threadgroup memory", PLAIN, "", REVERSE),
    case("reversed, backward", BACKWARD, "", REVERSE),
    case("reversed, random", RANDOM, "", REVERSE),
    case("reversed, address", ADDRESS, "", REVERSE),
    case("reversed, thread", THREAD, "", REVERSE),
    case("reversed, memory", MEMORY, "", REVERSE),
    case("reversed, portable", PORTABLE, "", REVERSE),
    case("reversed, portable, address", PORTABLE_ADDRESS, "", REVERSE),
    case("written again behind a barrier", THREAD, "", TWICE),
    case("written again behind a barrier, random", RANDOM, "", TWICE),
    case("exchanged within a simdgroup", THREAD, "", WITHIN_SIMDGROUP),
    case("two threadgroups apart", THREAD, "", APART, threadgroup=32),
    case("grid that is no multiple", PLAIN, "", f"{GRID} o[i] = a[i];", threadgroup=48),
    case("grid that is no multiple, address", ADDRESS, "", f"{GRID} o[i] = a[i];", threadgroup=48),
    case("atomics", THREAD, "", ATOMIC, atomic=True),
    case("matrix", ADDRESS, "", MATRIX, threadgroup=32),
    case(
        "address spaces of every kind",
        PLAIN,
        "",
        f"{GRID} thread float x = a[i]; thread float* p = &x; const device T* q = a + i; "
        "o[i] = chosen(p, q, WIDTH) + *(const device T*)q * (float)i;",
        header="constant constexpr int WIDTH = 4; // a float* in a comment\n"
        "template <typename U> float chosen(thread float* p, const device U* q, int w) {\n"
        "  constexpr int twice = 2 * WIDTH; const U all = *p * w; return all * twice + *q; }",
    ),
    # What a run without a sanitizer cannot see: in this order every value is there in time.
    case("a race that one schedule hides", PLAIN, "", SIMD_AS_BARRIER),
]


@pytest.mark.parametrize("seeded", FAULTS, ids=lambda seeded: seeded.name)
def test_a_fault_is_found(seeded: Case, record_fault: RecordFault) -> None:
    fault = seeded.fault()
    found = fault is not None and fault.kind == seeded.kind and seeded.says in str(fault)
    record_fault(found)
    assert found, fault or "nothing was said"


@pytest.mark.parametrize("sound", SOUND, ids=lambda sound: sound.name)
def test_nothing_is_said_of_a_sound_kernel(sound: Case) -> None:
    mx.eval(sound.run())


def test_there_are_enough() -> None:
    assert len(FAULTS) >= 28
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
