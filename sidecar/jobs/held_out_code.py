"""Code that the built-in pair was never trained on, to measure how well its drafters guess.

Begun functions of three published packages, read from their pinned wheels, which pip fetches once;
else from what is installed; else our own prompts, and then they are called that. It is source text
here: none of it is run.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from engine import PillionError, unpacked_wheel
from sidecar.jobs.coding_prompts import PROMPTS, CodingPrompt

PACKAGES = {
    "requests==2.32.5": "2462f94637a34fd532264295e186976db0f5d453d1cdd31473c85a6a161affb6",
    "click==8.3.0": "9b9f285302c6e3064f4330c05f05b81945b2a39544279343e6e7c5f27a9baddc",
    "flask==3.1.2": "ca1d8112ec8a6158cc29ea4858963350011b5c846a414cdb7a954aa9e967d03c",
}
EACH = 4
"""Functions of a package."""

_FEWEST_LINES = 8
_LINES_BEFORE = 16


class HeldOut(Struct, frozen=True, kw_only=True):
    """source: where the prompts are from, for a report."""

    source: str
    prompts: tuple[CodingPrompt, ...]


def held_out_folders() -> tuple[dict[str, Path], list[str]]:
    """The packages that are here, or that pip can fetch, by name; and where each is from."""
    folders, sources = dict[str, Path](), list[str]()
    for requirement, sha256 in PACKAGES.items():
        name = requirement.partition("==")[0]
        try:
            folders[name], source = unpacked_wheel(requirement, sha256) / name, requirement
        except PillionError:
            found = _installed(name)
            if found is None:
                continue
            folders[name], source = found, f"{name} as installed"
        sources.append(source)
    return folders, sources


def held_out_code() -> HeldOut:
    """At most `EACH` prompts a package, the same ones each time."""
    folders, sources = held_out_folders()
    prompts = [
        prompt for name, folder in folders.items() for prompt in begun_functions(name, folder)
    ]
    if prompts:
        return HeldOut(source=", ".join(sources), prompts=tuple(prompts))
    own = tuple(prompt.variant(0) for prompt in PROMPTS if prompt.regime == "new code")
    return HeldOut(source="Pillion's own prompts, as no held-out package is here", prompts=own)


def begun_functions(name: str, folder: Path) -> list[CodingPrompt]:
    """`EACH` functions of the package in `folder`, evenly spread over its files: some lines before
    it, its head and its docstring."""
    found = [
        (file.relative_to(folder), function, text)
        for file in sorted(folder.rglob("*.py"))
        for function, text in _functions(file)
    ]
    return [
        CodingPrompt(name=f"{name}/{file}:{function}", regime="new code", text=text)
        for file, function, text in (found[len(found) * n // EACH] for n in range(EACH) if found)
    ]


def _functions(file: Path) -> Iterator[tuple[str, str]]:
    source = file.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if body and node.end_lineno - body[0].lineno + 1 >= _FEWEST_LINES:
                start = max(0, node.lineno - 1 - _LINES_BEFORE)
                yield node.name, "".join(lines[start : body[0].lineno - 1])


def _installed(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None
