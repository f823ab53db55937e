"""doors -> sidecar -> engine (facade only) -> engine internals -> metal -> mlx."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from source_tree import PACKAGES, ROOT, below, files, imports, package_of, parsed, text, violations

import engine

MODEL_LIBRARIES = ("mlx", "mlx_lm", "transformers", "torch")
SERVERS = (
    "socket",
    "socketserver",
    "http",
    "starlette",
    "uvicorn",
    "uvloop",
    "pygls",
    "lsprotocol",
    "typer",
    "rich",
)
MLX_LM_FOLDERS = ("engine/targets", "engine/loading", "engine/text")
# Programs that train the shipped model: they use the engine, and nothing of ours uses them.
TRAINING = "engine/builtin/train"
# The asyncio side of the engine, and what is built on it.
ASYNCIO_FILES = {"engine/client.py", "engine/worker.py"}
# Decisions: plain numbers in, plain numbers out, so that they can be tested without a model.
PURE = (
    "engine.audit",
    "engine.decoding.acceptance",
    "engine.decoding.cost_curve",
    "engine.decoding.costs",
    "engine.decoding.drafting",
    "engine.decoding.looks",
    "engine.decoding.plans",
    "engine.decoding.policies",
    "engine.decoding.rollback",
    "engine.decoding.surplus",
    "engine.decoding.verify",
    "engine.drafters.copy",
    "engine.drafters.drafter",
    "engine.prefix_cache.cache_folder",
    "engine.prefix_cache.disk_index",
    "engine.prefix_cache.disk_tier",
    "engine.prefix_cache.memory_tier",
    "engine.prefix_cache.messages",
    "engine.prefix_cache.prefix_cache",
    "engine.prefix_cache.radix_tree",
    "engine.prefix_cache.record",
    "engine.replay.simulation",
    "engine.scheduler",
    "engine.sequence",
    "engine.text.healing",
    "engine.text.regimes",
    "engine.text.stop",
)
HEAVY = (*MODEL_LIBRARIES, "huggingface_hub", "tokenizers", "numpy", "uvicorn", "pygls")


def sidecar_violations(tree: ast.Module, package: str = "sidecar") -> list[str]:
    """sidecar knows the engine's facade and nothing behind it."""
    wrong = []
    for line, name in imports(tree, package):
        if below(name, *MODEL_LIBRARIES, "metal"):
            wrong.append(f"{line}: imports {name}")
        if below(name, "engine") and name != "engine":
            exported = name.removeprefix("engine.")
            if exported not in engine.__all__:
                wrong.append(f"{line}: {name} is not in the facade")
    return wrong


def engine_violations(tree: ast.Module, path: str, package: str = "engine") -> list[str]:
    """engine knows token ids, not sockets; mlx_lm stays in the folders that may see it."""
    wrong: list[str] = []
    if path.startswith(TRAINING):
        return wrong
    for line, name in imports(tree, package):
        if below(name, "engine.builtin.train"):
            wrong.append(f"{line}: {name} is not for the daemon")
        if below(name, "sidecar", *SERVERS):
            wrong.append(f"{line}: imports {name}")
        if below(name, "asyncio") and path not in ASYNCIO_FILES:
            wrong.append(f"{line}: asyncio belongs in {', '.join(ASYNCIO_FILES)}")
        if below(name, "mlx_lm", "transformers") and not path.startswith(MLX_LM_FOLDERS):
            wrong.append(f"{line}: {name} may be imported in {', '.join(MLX_LM_FOLDERS)} only")
    return wrong


def metal_violations(tree: ast.Module, package: str = "metal") -> list[str]:
    """metal imports the standard library, numpy, mlx and itself."""
    allowed = sys.stdlib_module_names | {"mlx", "numpy", "metal"}
    return [
        f"{line}: imports {name}"
        for line, name in imports(tree, package)
        if name.split(".")[0] not in allowed or below(name, "mlx_lm")
    ]


def test_sidecar_imports_only_the_facade() -> None:
    def rule(path: Path) -> list[str]:
        return sidecar_violations(parsed(path), package_of(path))

    assert violations(files("sidecar"), rule) == {}


def test_engine_knows_no_sockets() -> None:
    def rule(path: Path) -> list[str]:
        return engine_violations(parsed(path), path.as_posix(), package_of(path))

    assert violations(files("engine"), rule) == {}


def test_metal_imports_nothing_of_ours() -> None:
    def rule(path: Path) -> list[str]:
        return metal_violations(parsed(path), package_of(path))

    assert violations(files("metal"), rule) == {}


@pytest.mark.parametrize(
    "source",
    [
        "import mlx.core as mx",
        "def late():\n    from mlx_lm import load",
        "from engine.messages import Chunk",
        "from engine import messages",
        "import engine.client",
        "import metal",
    ],
)
def test_the_sidecar_rule_bites(source: str) -> None:
    assert sidecar_violations(ast.parse(source))


def test_the_sidecar_rule_lets_the_facade_through() -> None:
    assert sidecar_violations(ast.parse("import engine\nfrom engine import Chunk")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from sidecar.config import Config",
        "import socket",
        "import asyncio",
        "from mlx_lm.models import cache",
        "from engine.builtin.train import corpus",
    ],
)
def test_the_engine_rule_bites(source: str) -> None:
    path = "engine/decoding/speculative.py"
    assert engine_violations(ast.parse(source), path, "engine.decoding")


def test_the_engine_rule_lets_mlx_lm_into_its_folders() -> None:
    tree = ast.parse("from mlx_lm.models import qwen3")
    assert engine_violations(tree, "engine/targets/dense.py") == []


@pytest.mark.parametrize("source", ["import engine", "from sidecar import cli", "import mlx_lm"])
def test_the_metal_rule_bites(source: str) -> None:
    assert metal_violations(ast.parse(source))


# Run by the build back end, when Pillion is packaged.
BUILD = {Path("engine/cpu/build_hook.py")}
# Run by the Python of a peer's own environment, which has what they import.
PEERS = {
    Path("engine/targets/official_dflash.py"),
    Path("engine/targets/peer_dflash.py"),
    Path("sidecar/jobs/race/llama_server.py"),
}


def test_what_is_imported_is_declared_and_explained() -> None:
    """Nothing comes along by luck, nothing is installed for nothing, and each has its reason."""
    project = tomllib.loads(text(Path("pyproject.toml")))["project"]
    declared = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]}
    distributions = importlib.metadata.packages_distributions()
    imported = {
        distribution
        for path in files(*PACKAGES)
        if not path.is_relative_to(TRAINING) and path not in PEERS | BUILD
        for _, name in imports(parsed(path), package_of(path))
        if (top := name.split(".")[0]) not in {*sys.stdlib_module_names, *PACKAGES}
        for distribution in [
            "mlx" if top == "mlx" else distributions[top][0].lower().replace("_", "-")
        ]
    }
    assert sorted(imported) == sorted(declared)
    rows = re.findall(r"^\| ([\w, -]+) \|", text(Path("ARCHITECTURE.md")), re.MULTILINE)
    explained = {name for row in rows for name in row.split(", ")}
    assert declared <= explained


def modules_after(statement: str) -> set[str]:
    """Names in sys.modules after `statement` ran in a fresh interpreter."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize("statement", ["import engine, engine.testing", "import sidecar.cli"])
def test_facades_are_light(statement: str) -> None:
    """`import mlx_lm` takes two seconds and `import mlx` starts a GPU: neither may happen for
    `pillion status`."""
    assert modules_after(statement) & set(HEAVY) == set()


@pytest.mark.parametrize("module", PURE)
def test_decisions_import_no_mlx(module: str) -> None:
    assert modules_after(f"import {module}") & set(MODEL_LIBRARIES) == set()


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    statement = (
        "import sys; sys.argv = ['pillion', '--help']\n"
        "import contextlib, io\n"
        "from sidecar.cli import VERBS, main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main()\n"
        "assert not [verb for verb in VERBS if f'sidecar.cli.{verb}' in sys.modules]"
    )
    assert modules_after(statement) & set(HEAVY) == set()
