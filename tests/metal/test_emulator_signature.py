"""The function that the emulator writes around a kernel's body is the one that MLX writes."""

from __future__ import annotations

import re
from pathlib import Path

import mlx.core as mx
import pytest
from emulator.signature import ATTRIBUTES, TYPES, signature

Capture = pytest.CaptureFixture[str]
ALL_ATTRIBUTES = "\n".join(f"(void){name};" for name in ATTRIBUTES)


def by_mlx(
    path: Path,
    captured: Capture,
    source: str,
    inputs: list[mx.array],
    outputs: list[mx.Dtype],
    template: list[tuple[str, object]],
    atomic: bool,
) -> str:
    """The text that MLX prints when a call is traced, with the function's name cut to "probe"."""
    kernel = mx.fast.metal_kernel(
        name="probe",
        input_names=[f"in{index}" for index in range(len(inputs))],
        output_names=[f"out{index}" for index in range(len(outputs))],
        source=source,
        atomic_outputs=atomic,
    )

    def call(*arrays: mx.array) -> tuple[mx.array, ...]:
        return tuple(
            kernel(
                inputs=list(arrays),
                template=template,
                grid=(1, 1, 1),
                threadgroup=(1, 1, 1),
                output_shapes=[(4,)] * len(outputs),
                output_dtypes=outputs,
                verbose=True,
            )
        )

    mx.export_function(str(path), call, *inputs)
    printed = captured.readouterr().out
    (text,) = re.findall(r"```\n(.*?)```", printed, re.DOTALL)
    return re.sub(r"custom_kernel_probe\w*", "probe", str(text))


# With shapes there is an attribute: without any, MLX 0.32 closes the list of parameters too early.
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(
    ("source", "template"),
    [
        ("", []),
        (ALL_ATTRIBUTES, [("T", mx.bfloat16)]),
        (
            "in0_shape[0]; in1_strides; in2_ndim; in3_shape; // in4_shape thread_position_in_grid",
            [("N", 3), ("B", True)],
        ),
        (
            "in1_shape in1_strides in1_ndim thread_index_in_simdgroup",
            [("T", mx.float16), ("N", -1), ("U", mx.uint8)],
        ),
        ("thread_position_in_grid.x; simd_lane; threads_per_simdgroup", [("B", False)]),
    ],
)
def test_the_signature_is_word_for_word_that_of_mlx(
    tmp_path: Path, capfd: Capture, source: str, template: list[tuple[str, object]], atomic: bool
) -> None:
    shapes: list[tuple[int, ...]] = [(), (2,), (7,), (8,), (2, 3), (4, 4), (0,)]
    inputs = [
        mx.zeros(shapes[index % len(shapes)], dtype) for index, dtype in enumerate([*TYPES] * 2)
    ]
    outputs = [mx.float32, mx.uint32] if atomic else [*TYPES]
    theirs = by_mlx(tmp_path / "traced", capfd, source, inputs, outputs, template, atomic)
    ours = signature(
        "probe",
        source,
        [(f"in{index}", array) for index, array in enumerate(inputs)],
        [(f"out{index}", dtype) for index, dtype in enumerate(outputs)],
        template,
        atomic,
    )
    assert theirs[: len(ours.head)].splitlines() == ours.head.splitlines()
    if template:
        assert f"decltype(probe{ours.template_arguments}) " in theirs
