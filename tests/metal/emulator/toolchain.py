"""The compiler that kernels are built with on the host, and the cache of what it built."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .fault import KernelFault

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[2] / "build" / "metal-emulator"
COMPILERS = [*(f"clang++-{version}" for version in (21, 20, 19, 18)), "clang++"]
PACKAGES = "clang-19 libclang-rt-19-dev"

KERNEL_FLAGS = [
    "-std=c++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-fno-strict-aliasing",
    "-ferror-limit=5",
    "--rtlib=compiler-rt",
    # Arithmetic in half and bfloat is rounded after every operation, as on the GPU.
    *("-Xclang", "-ffloat16-excess-precision=none", "-Xclang", "-fbfloat16-excess-precision=none"),
    *("-Xclang", "-cl-single-precision-constant"),
    # A fresh checkout of the same text is the same header.
    *("-Xclang", "-fvalidate-ast-input-files-content"),
    *("-Wno-unknown-attributes", "-Wno-ignored-attributes", "-Wno-unknown-pragmas"),
    *("-Wno-pass-failed", "-Wno-unused-value", "-Wno-unused-command-line-argument"),
]
# Half precision and fused multiplication in hardware, where the CPU has them. Not all that it has:
# its own bfloat instructions would flush denormals.
_CPU = Path("/proc/cpuinfo")
if platform.machine() == "x86_64" and _CPU.exists():
    _features = set(_CPU.read_text().split())
    KERNEL_FLAGS += [f"-m{name}" for name in ("avx2", "f16c", "fma") if name in _features]
SANITIZER_FLAGS = {
    "address": [
        "-fsanitize=address,undefined,float-cast-overflow",
        "-fno-sanitize-recover=undefined,float-cast-overflow",
        "-fno-omit-frame-pointer",
    ],
    "thread": ["-fsanitize=thread"],
    # Not optimised: the optimiser hides reads of what was never written.
    "memory": ["-O0", "-fsanitize=memory", "-fsanitize-memory-track-origins"],
}
RUNTIME_FLAGS = ["-std=c++17", "-O2", "-g1", "-fPIC"]


@functools.cache
def compiler() -> str | None:
    """The first of `COMPILERS` that makes a program with a sanitizer and bfloat in it, on Linux."""
    if sys.platform != "linux":
        return None
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None and _works(path):
            return path
    return None


def _works(path: str) -> bool:
    program = "int main(int n, char**) { return (int)((__bf16)1.0f + (_Float16)n) == 9; }"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(program)
        flags = ["--rtlib=compiler-rt", "-fsanitize=thread"]
        command = [path, *flags, str(source), "-o", str(source.with_suffix(""))]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0


@functools.cache
def build(unit: str, *, contraction: str, sanitizer: str | None, portable: bool) -> Path:
    """A translation unit as a shared library, or under a sanitizer as a program.

    portable: whether fibers are the C library's instead of our own.

    What was built before is found by the hash of everything that went into it.
    Raises KernelFault ("compile") with the compiler's words.
    """
    flags = [
        *KERNEL_FLAGS,
        f"-ffp-contract={contraction}",
        *SANITIZER_FLAGS.get(str(sanitizer), []),
    ]
    key = _digest(unit, *flags, str(portable), _toolchain_digest())
    built = CACHE / (key if sanitizer else f"{key}.so")
    if not built.exists():
        parts = [str(part) for part in _runtime(sanitizer, portable)]
        kind = [] if sanitizer else ["-shared"]
        source = CACHE / f"{key}.cpp"
        _write(source, unit)
        header = ["-include-pch", str(_precompiled(flags))]
        _compile([*flags, *header, str(source), *parts, *kind], built)
    return built


def _precompiled(flags: list[str]) -> Path:
    """The language's header, compiled once for each set of flags: most of a small kernel's time."""
    built = CACHE / f"msl-{_digest(*flags, _toolchain_digest())}.pch"
    if not built.exists():
        _compile([*flags, "-x", "c++-header", str(HERE / "msl" / "msl.h")], built)
    return built


def _runtime(sanitizer: str | None, portable: bool) -> list[Path]:
    """Object files of the scheduler, and of the main program where there is one."""
    flags = [*RUNTIME_FLAGS, *(["-DEMULATOR_UCONTEXT=1"] if portable else [])]
    if sanitizer == "thread":
        # Not instrumented: what it does between two lanes must not count as synchronisation.
        flags += ["-DEMULATOR_THREAD=1"]
    elif sanitizer is not None:
        flags += [flag for flag in SANITIZER_FLAGS[sanitizer] if flag.startswith("-fsanitize")]
    sources = ["scheduler.cpp", *(["program.cpp"] if sanitizer else [])]
    objects = []
    for name in sources:
        key = _digest(*flags, _toolchain_digest())
        built = CACHE / f"{name}-{key}.o"
        if not built.exists():
            _compile([*flags, "-c", str(HERE / "runtime" / name)], built)
        objects.append(built)
    return objects


@functools.cache
def _toolchain_digest() -> str:
    texts = [path.read_text() for path in sorted(HERE.glob("*/*.[hc]*")) if path.suffix != ".pyc"]
    return _digest(str(compiler()), *texts)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _compile(arguments: list[str], target: Path) -> None:
    command = compiler()
    if command is None:
        raise KernelFault("compile", f"no clang that can build kernels: install {PACKAGES}")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Under another name until it is whole: other processes share the cache.
    scratch = target.with_name(f"{target.name}.{os.getpid()}")
    outcome = subprocess.run(
        [command, *arguments, "-o", str(scratch)], check=False, capture_output=True, text=True
    )
    if outcome.returncode:
        raise KernelFault("compile", outcome.stderr[:6000])
    scratch.replace(target)
