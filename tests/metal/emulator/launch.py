"""Runs a built kernel: in this process, or under a sanitizer in one of its own."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import struct
import subprocess
import tempfile
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .fault import KernelFault, from_report

# Mirrors emulator::Schedule and emulator::SumOrder.
SCHEDULES = ("forward", "backward", "random")
SUM_ORDERS = ("ascending", "descending", "sequential")
# A sanitized run of what is tested takes seconds.
PATIENCE_S = 600

Buffers = list[NDArray[np.generic]]


class Dispatch(ctypes.Structure):
    """Mirrors emulator::Dispatch."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("threadgroup", ctypes.c_uint32 * 3),
        ("schedule", ctypes.c_uint32),
        ("sum_order", ctypes.c_uint32),
        ("flush_denormals", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
    )


class Counts(ctypes.Structure):
    """Mirrors emulator::Counts: what a run did."""

    _fields_ = (
        ("lane_switches", ctypes.c_uint64),
        ("exchanges", ctypes.c_uint64),
        ("barriers", ctypes.c_uint64),
        ("threadgroup_bytes", ctypes.c_uint64),
    )


class Library:
    """A kernel's shared library; its scheduler runs one grid at a time."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._turn = threading.Lock()

    def run(self, dispatch: Dispatch, buffers: Buffers) -> Counts:
        """Raises KernelFault."""
        pointers = (ctypes.c_void_p * len(buffers))(*(buffer.ctypes.data for buffer in buffers))
        error = ctypes.create_string_buffer(4096)
        counts = Counts()
        with self._turn:
            failed = self._library.emulator_run(
                self._library.emulator_entry,
                pointers,
                ctypes.byref(dispatch),
                error,
                ctypes.c_size_t(len(error)),
                ctypes.byref(counts),
            )
        if failed:
            kind, _, message = error.value.decode().partition(": ")
            raise KernelFault(kind, message)
        return counts


@functools.cache
def library(path: Path) -> Library:
    """The library at `path`, loaded once."""
    return Library(path)


def run_program(path: Path, dispatch: Dispatch, buffers: Buffers) -> Counts:
    """Runs a sanitized kernel; writeable buffers are updated. Raises KernelFault."""
    with tempfile.TemporaryDirectory() as folder:
        given, returned = Path(folder, "given"), Path(folder, "returned")
        with given.open("wb") as file:
            file.write(bytes(dispatch) + struct.pack("Q", len(buffers)))
            for buffer in buffers:
                file.write(struct.pack("Q", buffer.nbytes) + buffer.tobytes())
        try:
            outcome = subprocess.run(
                [path, given, returned],
                check=False,
                capture_output=True,
                text=True,
                env={**os.environ, **_sanitizer_options()},
                timeout=PATIENCE_S,
            )
        except subprocess.TimeoutExpired as late:
            raise KernelFault("crash", f"still running after {PATIENCE_S} s") from late
        if outcome.returncode:
            raise from_report(outcome.stderr, outcome.returncode)
        content = returned.read_bytes()
    offset = ctypes.sizeof(Counts)
    for buffer in buffers:
        if buffer.flags.writeable:
            flat = np.frombuffer(content, buffer.dtype, buffer.size, offset)
            buffer[...] = flat.reshape(buffer.shape)
        elif content[offset : offset + buffer.nbytes] != buffer.tobytes():
            raise KernelFault("input", "the kernel wrote to one of its inputs")
        offset += buffer.nbytes
    return Counts.from_buffer_copy(content)


@functools.cache
def _sanitizer_options() -> dict[str, str]:
    """Settings of the sanitizers; lines of the kernel are named where something can read them."""
    names = ("llvm-symbolizer", "llvm-symbolizer-19", "addr2line")
    symbolizer = next(filter(None, map(shutil.which, names)), None)
    common = f"external_symbolizer_path={symbolizer}" if symbolizer else "symbolize=0"
    return {
        "ASAN_OPTIONS": f"{common}:detect_leaks=0:detect_stack_use_after_return=0",
        "MSAN_OPTIONS": common,
        "TSAN_OPTIONS": f"{common}:exitcode=66",
        "UBSAN_OPTIONS": f"{common}:print_stacktrace=1",
    }
