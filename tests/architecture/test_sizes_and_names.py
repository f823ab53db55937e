"""A file is one noun and can be read at a sitting."""

from __future__ import annotations

import ast
from pathlib import Path

from source_tree import PACKAGES, ROOT, files, parsed, text, violations, words

FILE_LINES = 500
FUNCTION_LINES = 80
SUFFIXES = (".py", ".ts", ".lua", ".metal", ".cpp", ".h")
FORBIDDEN_WORDS = {"util", "utils", "helper", "helpers", "manager", "v2", "new", "smart"}

EVERYTHING = files(*PACKAGES, "editors", "tests", suffixes=SUFFIXES)
PYTHON = files(*PACKAGES, "tests")


def long_functions(tree: ast.Module) -> list[str]:
    """Functions whose body is too long, docstring included. The signature is not counted: a verb's
    is the table of its flags."""
    long = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.body[0].lineno + 1
            if lines > FUNCTION_LINES:
                long.append(f"{node.lineno}: {node.name} has {lines} lines")
    return long


def empty_names(tree: ast.Module, stem: str) -> list[str]:
    """Names of a file and its classes that say nothing about what is in them."""
    named = [stem, *(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    return [name for name in named if words(name) & FORBIDDEN_WORDS]


def test_file_size() -> None:
    lines = {str(path): len(text(path).splitlines()) for path in EVERYTHING}
    assert {path: count for path, count in lines.items() if count > FILE_LINES} == {}


def test_function_size() -> None:
    assert violations(PYTHON, lambda path: long_functions(parsed(path))) == {}


def test_names_say_something() -> None:
    def rule(path: Path) -> list[str]:
        stem = path.parent.name if path.stem == "__init__" else path.stem
        return empty_names(parsed(path), stem)

    assert violations(PYTHON, rule) == {}


def test_the_rules_bite() -> None:
    long = "def f():\n" + "    x = 1\n" * (FUNCTION_LINES + 1)
    assert long_functions(ast.parse(long))
    assert empty_names(ast.parse("class CacheManager: pass"), "cache") == ["CacheManager"]
    assert empty_names(ast.parse(""), "text_utils") == ["text_utils"]
    assert empty_names(ast.parse("class Renewal: pass"), "newton") == []


def test_top_level_is_fixed() -> None:
    """What lies at the top is the first thing a reader sees; it has no room for strays."""
    allowed = {
        *PACKAGES,
        "docs",
        "editors",
        "tests",
        ".ci",
        ".git",
        ".gitignore",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "pyproject.toml",
    }
    ignored = {line.rstrip("/") for line in text(Path(".gitignore")).splitlines()}
    present = {path.name for path in ROOT.iterdir()}
    assert present - ignored - allowed == set()
    assert allowed - {".git"} - present == set()
