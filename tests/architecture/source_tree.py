"""The repository as these tests see it: its files, parsed once."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sidecar", "engine", "metal")
GENERATED = {"__pycache__", "node_modules", ".hypothesis"}


def files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> list[Path]:
    """Source files below `folders`, relative to the root, sorted."""
    found = []
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            relative = path.relative_to(ROOT)
            if path.suffix in suffixes and not GENERATED.intersection(relative.parts):
                found.append(relative)
    return sorted(found)


@functools.cache
def text(path: Path) -> str:
    """The file's text, without translating its line ends."""
    return (ROOT / path).read_bytes().decode()


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The file's syntax tree. Read it, do not change it."""
    return ast.parse(text(path), filename=str(path))


def imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported anywhere in a module of `package`.

    ``from a import b`` yields ``a.b``: whether `b` is a module is for the caller to judge.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def violations(paths: Iterable[Path], rule: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What `rule` finds wrong, by file; one test a rule is quicker than one a file."""
    found = {str(path): rule(path) for path in paths}
    return {path: wrong for path, wrong in found.items() if wrong}


def package_of(path: Path) -> str:
    """``engine/text/codec.py`` -> ``engine.text``."""
    return ".".join(path.parent.parts)


def below(name: str, *tops: str) -> bool:
    """Whether a dotted name is one of `tops` or inside one."""
    return any(name == top or name.startswith(f"{top}.") for top in tops)


def words(name: str) -> set[str]:
    """Lower-case words of a snake_case, kebab-case or CamelCase name."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*|\d+", name)}
