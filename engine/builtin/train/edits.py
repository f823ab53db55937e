"""Edits of short functions that have one right answer, made from the corpus."""

from __future__ import annotations

import ast
import builtins
import random
import re
import textwrap
from collections.abc import Callable
from typing import Any

from engine.builtin.train.corpus import Source, words
from engine.text.instructions import RENAME, change, reply

Message = dict[str, Any]
# What a function must fit in, twice, beside its instruction, in one row of training.
MOST_FUNCTION_CHARACTERS = 640


def functions(source: Source) -> list[tuple[str, ast.FunctionDef]]:
    """Short functions of a file: dedented text and syntax tree."""
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError):
        return []
    lines, found = source.text.split("\n"), []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            if 2 <= text.count("\n") <= 25 and len(text) <= MOST_FUNCTION_CHARACTERS:
                found.append((text, node))
    return found


WORDS = words("""
alpha anchor answer arg array batch block body branch buffer bytes cache cell chunk client code
config count current cursor data default delta depth entry error event extra field file filter
first flag folder frame group guard handle header hidden host index info input item job key kind
label last left length level limit line list local lock main mapping mark mask matrix member
memo message mode model name node number object offset old order outer output owner packet page
pair parent part path pattern peer pending point policy pool port prefix previous query queue
rank rate raw reader record ref region remote reply request result retry right root round row
rule sample scope seconds section seed seen shape shared size slot source span stack stage start
state status step stop store stream string suffix table tag target task temp text ticket timer
title token total trace tree unit update url user value vector version view visited weight width
window word worker
""")


def invented_name(rng: random.Random) -> str:
    """A name that no file is likely to use, so that it has to be copied from the instruction."""
    name = "_".join(rng.sample(WORDS, rng.choice((1, 2, 2, 2, 3))))
    if rng.random() < 0.15:
        name = "".join(part.capitalize() for part in name.split("_"))
        name = name[0].lower() + name[1:]
    if rng.random() < 0.1:
        name += str(rng.randrange(10))
    return "_" + name if rng.random() < 0.05 else name


def names_in(node: ast.FunctionDef, text: str) -> list[str]:
    """Names in a function that occur more than once and are not built in, sorted."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names = {argument.arg for argument in every} | {node.name}
    names |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    names -= {"self", "cls", *dir(builtins)}
    return sorted(name for name in names if len(name) > 1 and text.count(name) > 1)


def substitute(old: str, new: str, text: str) -> str:
    return re.sub(rf"\b{re.escape(old)}\b", new.replace("\\", r"\\"), text)


RENAMES = (
    RENAME,
    RENAME,
    "Rename `{old}` to `{new}`.",
    "Rename {old} to {new}",
    "rename {old} to {new}",
    "Rename the variable `{old}` to `{new}`.",
    "Replace `{old}` with `{new}` everywhere.",
    "Change the name `{old}` to `{new}` in this function:",
    "Call it `{new}` instead of `{old}`.",
    "{old} should be called {new}",
)


def renaming(text: str, node: ast.FunctionDef, rng: random.Random) -> tuple[str, str] | None:
    """A name of a function and a new one for it; None if it has none."""
    names = names_in(node, text)
    if not names:
        return None
    old = rng.choice(names)
    new = invented_name(rng) if rng.random() < 0.75 else f"{rng.choice(('new', 'my'))}_{old}"
    return None if re.search(rf"\b{re.escape(new)}\b", text) else (old, new)


def rename(text: str, node: ast.FunctionDef, rng: random.Random) -> tuple[str, str, str] | None:
    """Rename one name in a function: instruction, before, after; None if it has none."""
    names = renaming(text, node, rng)
    if names is None:
        return None
    old, new = names
    return rng.choice(RENAMES).format(old=old, new=new), text, substitute(old, new, text)


def without_docstring(text: str, node: ast.FunctionDef) -> str | None:
    """The function without its docstring; None if it has none, or nothing else."""
    first = node.body[0]
    if ast.get_docstring(node) is None or len(node.body) < 2 or first.end_lineno is None:
        return None
    lines = text.split("\n")
    del lines[first.lineno - node.lineno : first.end_lineno - node.lineno + 1]
    return "\n".join(lines)


def add_decorator(text: str, node: ast.FunctionDef, rng: random.Random) -> tuple[str, str, str]:
    name = rng.choice(("staticmethod", "classmethod", "property", "cache", invented_name(rng)))
    words = rng.choice(("Add the decorator `@{n}`.", "Decorate this function with `@{n}`."))
    return words.format(n=name), text, f"@{name}\n{text}"


def add_return_type(text: str, node: ast.FunctionDef, rng: random.Random) -> Any:
    """Annotate what a function returns."""
    if node.returns is not None or not (found := re.search(r"\)\s*:\s*(#.*)?\n", text)):
        return None
    kind = rng.choice(("None", "str", "int", "bool", "list[str]", "dict", invented_name(rng)))
    words = rng.choice(("Add the return type `{k}`.", "It returns `{k}`: annotate that."))
    return (
        words.format(k=kind),
        text,
        f"{text[: found.start() + 1]} -> {kind}{text[found.start() + 1 :]}",
    )


def remove_docstring(text: str, node: ast.FunctionDef, rng: random.Random) -> Any:
    bare = without_docstring(text, node)
    words = ("Remove the docstring.", "Delete the docstring of this function.")
    return bare and (rng.choice(words), text, bare)


def write_docstring(text: str, node: ast.FunctionDef, rng: random.Random) -> Any:
    bare = without_docstring(text, node)
    words = ("Add a docstring.", "Write a docstring for this function.", "Document this function.")
    return bare and (rng.choice(words), bare, text)


def replace_string(text: str, node: ast.FunctionDef, rng: random.Random) -> Any:
    """Put other words into a string literal."""
    strings = re.findall(r"(['\"])([\w .-]{2,24})\1", text)
    if not strings:
        return None
    quote, old = rng.choice(strings)
    new = " ".join(rng.sample(WORDS, rng.choice((1, 1, 2))))
    words = rng.choice(("Replace the string {o} with {n}.", "Change {o} to {n}."))
    before, after = f"{quote}{old}{quote}", f"{quote}{new}{quote}"
    return words.format(o=before, n=after), text, text.replace(before, after)


def add_parameter(text: str, node: ast.FunctionDef, rng: random.Random) -> Any:
    """Add a last parameter with a default."""
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or not arguments.args:
        return None
    found = re.match(r"(def \w+\([^()]*[^()\s,])(\)[^\n]*:)", text)
    if not found:
        return None
    name, value = invented_name(rng), rng.choice(("None", "True", "0", '""', "False"))
    words = rng.choice(("Add a parameter `{n}={v}`.", "Add the keyword argument `{n}={v}`."))
    changed = f"{found.group(1)}, {name}={value}{text[found.end(1) :]}"
    return words.format(n=name, v=value), text, changed


def remove_comments(text: str, node: ast.FunctionDef, rng: random.Random) -> Any:
    lines = [line for line in text.split("\n") if not line.strip().startswith("#")]
    bare = "\n".join(lines)
    return None if bare == text else ("Remove the comments.", text, bare)


def unchanged(text: str, node: ast.FunctionDef, rng: random.Random) -> tuple[str, str, str]:
    return rng.choice(("Repeat this code unchanged:", "Print this code again:")), text, text


Edit = Callable[[str, ast.FunctionDef, random.Random], Any]
EDITS: tuple[tuple[Edit, float], ...] = (
    (rename, 8.0),
    (add_decorator, 0.6),
    (add_return_type, 0.8),
    (remove_docstring, 0.7),
    (write_docstring, 0.7),
    (replace_string, 0.8),
    (add_parameter, 0.7),
    (remove_comments, 0.5),
    (unchanged, 1.2),
)


def edit(text: str, node: ast.FunctionDef, rng: random.Random) -> list[Message] | None:
    """A chat that asks for one random edit; None if that one does not fit this function."""
    kinds, weights = zip(*EDITS, strict=True)
    made = rng.choices(kinds, weights)[0](text, node, rng)
    if not made:
        return None
    instruction, before, after = made
    return [
        {"role": "user", "content": change(instruction, before)},
        {"role": "assistant", "content": reply(after)},
    ]
