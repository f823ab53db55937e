"""Compiles the kernels into one extension module, with the compiler that is there.

Standard library only: the build hook of the package runs this file by itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "kernels"
MODULE = Path(__file__).parent / f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
# What the extension is compiled with, besides a compiler.
REQUIREMENTS = ["mlx[cpu]>=0.32.4", "nanobind>=3.1,<3.2"]

# If the compiler contracted products and sums as it likes, a row's bits would depend on its tile.
EXACT = ["-O3", "-ffp-contract=off"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
AVX512_VNNI = [*AVX512, "-mavx512vnni"]
AVX512_BF16 = [*AVX512_VNNI, "-mavx512bf16"]
# By the machine's name, and then the file that is compiled.
INSTRUCTION_SETS: dict[str, dict[str, list[str]]] = {
    "x86_64": {
        "avx2": AVX2,
        "avx2_vnni": [*AVX2, "-mavxvnni"],
        "avx512": AVX512,
        "avx512_vnni": AVX512_VNNI,
        "avx512_bf16": AVX512_BF16,
        "amx": [*AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
    },
    "aarch64": {"neon": []},
}


class BuildError(Exception):
    """Why there are no kernels here; the message says what is missing."""


def compiler() -> str:
    """The C++ compiler to use. Raises BuildError where the kernels cannot be built."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in INSTRUCTION_SETS:
        raise BuildError(
            f"the kernels are for Linux on x86-64 or 64-bit Arm, this is {sys.platform} {machine}"
        )
    named = os.environ.get("CXX")
    found = shutil.which(named) if named else shutil.which("g++") or shutil.which("clang++")
    if found is None:
        raise BuildError(f"no C++ compiler ({named or 'g++ or clang++'}) was found")
    return found


def fingerprint() -> str:
    """Of the sources: a module that was built from others is not used."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def is_built() -> bool:
    """Whether the module is there, from these very sources."""
    return MODULE.exists() and fingerprint().encode() in MODULE.read_bytes()


def build(into: Path = MODULE, *, flags: tuple[str, ...] = ()) -> Path:
    """Compile and link; returns `into`. Takes about half a minute on two processors.

    Raises BuildError with the compiler's own words.
    """
    command = [compiler(), "-std=c++20", "-fPIC", "-fvisibility=hidden", "-g0", *flags]
    mlx, nanobind = _folder("mlx"), _folder("nanobind")
    headers = [
        f"-I{mlx / 'include'}",
        f"-I{nanobind / 'include'}",
        f"-I{nanobind / 'ext/robin_map/include'}",
        f"-I{sysconfig.get_paths()['include']}",
    ]
    # MLX's own module has this domain, which is how the two share `mlx.core.array`.
    binding = [*headers, "-Os", "-DNB_DOMAIN=mlx", "-DNDEBUG", "-fno-strict-aliasing"]
    with tempfile.TemporaryDirectory() as folder:
        compiled = {
            nanobind / "src/nb_combined.cpp": binding,
            SOURCES / "bindings.cpp": [*binding, f'-DSOURCES="{fingerprint()}"'],
            SOURCES / "layers.cpp": binding,
            SOURCES / "drafter.cpp": binding,
        } | {
            SOURCES / f"{name}.cpp": [*EXACT, *own]
            for name, own in INSTRUCTION_SETS[platform.machine()].items()
        }
        objects = {source: Path(folder) / f"{source.stem}.o" for source in compiled}

        def compile_one(source: Path) -> None:
            _run([*command, *compiled[source], "-c", str(source), "-o", str(objects[source])])

        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            list(pool.map(compile_one, compiled))
        linked = Path(folder) / into.name
        libraries = [f"-L{mlx / 'lib'}", "-lmlx"]
        parts = map(str, objects.values())
        _run([*command, "-shared", "-s", *parts, *libraries, "-o", str(linked)])
        partial = into.with_name(f".{into.name}.{os.getpid()}")
        shutil.copyfile(linked, partial)
        partial.replace(into)
    return into


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(f"{package} is not installed: pip install '{package}'")
    return Path(next(iter(spec.submodule_search_locations)))


def _run(command: list[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        lines = [line for line in ran.stderr.splitlines() if "error" in line] or [
            f"exit code {ran.returncode}"
        ]
        raise BuildError(f"{Path(command[0]).name}: {lines[0]}")
