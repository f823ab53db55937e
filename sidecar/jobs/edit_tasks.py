"""Edits of held-out code that have one right answer, to measure how fast a model makes them and how
often it is right.

A short function from each of some files of the packages in `held_out_code`, which the built-in pair
was never trained on: rename a name, add a parameter, wrap every call of a function, change quotes.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from engine import instructions

MOST_CHARACTERS, FEWEST_LINES = 640, 4
RENAMED, ADDED, WRAPPER = "renamed_value", "strict=False", "checked"
_PARAMETERS = re.compile(r"def \w+\([^()]*[^()\s,](?=\)[^\n]*:)")


class EditTask(Struct, frozen=True, kw_only=True):
    """kind: of `KINDS`. right: what `code` has to become."""

    name: str
    kind: str
    instruction: str
    code: str
    right: str

    @property
    def user(self) -> str:
        """The message that asks for it."""
        return instructions.change(self.instruction, self.code)


Made = tuple[str, str] | None


def edit_tasks(folders: dict[str, Path], count: int) -> list[EditTask]:
    """`count` tasks at most, one a file, the kinds in turn, the same ones each time. folders: of
    packages, by name."""
    by_package = [
        [(f"{name}/{path.relative_to(folder)}", path) for path in sorted(folder.rglob("*.py"))]
        for name, folder in folders.items()
    ]
    files = [
        files[number]
        for number in range(max(map(len, by_package), default=0))
        for files in by_package
        if number < len(files)
    ]
    found: list[EditTask] = []
    for name, path in files:
        if len(found) < count and (task := _task(name, path, len(found))) is not None:
            found.append(task)
    return found


def _task(name: str, path: Path, turn: int) -> EditTask | None:
    """The first function of a file to which the kind whose turn it is can be done, else another."""
    functions = list(_functions(path))
    kinds = list(KINDS)
    for kind in (*kinds[turn % len(kinds) :], *kinds[: turn % len(kinds)]):
        for code, node in functions:
            made = KINDS[kind](code, node)
            if made is not None and made[1] != code:
                instruction, right = made
                title = f"{name}:{node.name}"
                return EditTask(
                    name=title, kind=kind, instruction=instruction, code=code, right=right
                )
    return None


def _functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Short ASCII functions, dedented, each with the syntax tree of that text."""
    source = path.read_text("utf-8")
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            code = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            long_enough = code.count("\n") + 1 >= FEWEST_LINES
            if code.isascii() and long_enough and len(code) <= MOST_CHARACTERS:
                try:
                    (tree,) = ast.parse(code).body
                except SyntaxError:
                    continue
                if isinstance(tree, ast.FunctionDef):
                    yield code, tree


def rename(code: str, node: ast.FunctionDef) -> Made:
    """The first argument that is used more than once."""
    for argument in node.args.args:
        name = argument.arg
        if name not in ("self", "cls") and len(re.findall(rf"\b{name}\b", code)) > 1:
            right = re.sub(rf"\b{name}\b", RENAMED, code)
            return instructions.RENAME.format(old=name, new=RENAMED), right
    return None


def add_parameter(code: str, node: ast.FunctionDef) -> Made:
    """A last one with a default."""
    found = _PARAMETERS.match(code)
    if found is None or node.args.vararg or node.args.kwarg or node.args.kwonlyargs:
        return None
    right = f"{found[0]}, {ADDED}{code[found.end() :]}"
    return f"Add a parameter `{ADDED}`.", right


def wrap_calls(code: str, node: ast.FunctionDef) -> Made:
    """Of the function that is called first, where no call is inside another."""
    calls = [
        call
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    ]
    if not calls:
        return None
    name = ast.unparse(calls[0].func)
    spans = sorted(_span(code, call) for call in calls if ast.unparse(call.func) == name)
    if any(end > start for (_, end), (start, _) in itertools.pairwise(spans)):
        return None
    right = code
    for start, end in reversed(spans):
        right = f"{right[:start]}{WRAPPER}({right[start:end]}){right[end:]}"
    return f"Wrap every call of `{name}` in `{WRAPPER}(...)`.", right


def change_quotes(code: str, node: ast.FunctionDef) -> Made:
    """Of plain strings, to single ones."""
    lines = code.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    right, found = code, False
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(code).readline))):
        text = token.string
        if token.type == tokenize.STRING and re.fullmatch(r'"[^"\'\\\n]+"', text):
            at = starts[token.start[0] - 1] + token.start[1]
            right = f"{right[:at]}'{text[1:-1]}'{right[at + len(text) :]}"
            found = True
    return ("Change double quotes of strings to single quotes.", right) if found else None


def _span(code: str, node: ast.expr) -> tuple[int, int]:
    """Offsets of a node of ASCII code."""
    lines = code.split("\n")
    starts = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (
        starts[node.lineno - 1] + node.col_offset,
        starts[node.end_lineno - 1] + node.end_col_offset,
    )


KINDS: dict[str, Callable[[str, ast.FunctionDef], Made]] = {
    "rename": rename,
    "add a parameter": add_parameter,
    "wrap calls": wrap_calls,
    "change quotes": change_quotes,
}
