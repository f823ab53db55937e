"""From the text of a kernel to C++ that the host's compiler takes."""

from __future__ import annotations

import functools
import itertools
import re

from .dialect import COMMENT

# threadgroup TYPE NAME[DIMENSIONS], NAME...;
THREADGROUP_VARIABLES = re.compile(
    r"\bthreadgroup\s+((?:typename\s+)?[\w:]+(?:<[^;{}()]*?>)?)\s+"
    r"(\w+\s*(?:\[[^;{}]*\])?(?:\s*,\s*\w+\s*(?:\[[^;{}]*\])?)*)\s*;"
)
FUNCTION_CONSTANT = re.compile(
    r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\((\d+)\)\s*\]\]\s*;"
)
THREADGROUP_ARGUMENT = re.compile(r"\[\[\s*threadgroup\(\d+\)\s*\]\]")
SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<[^>]*>", re.MULTILINE)


@functools.cache
def translate(source: str, constants: frozenset[tuple[int, bool | int]] = frozenset()) -> str:
    """Kernel text with `threadgroup` variables taken from the threadgroup's memory, function
    constants replaced by their values, or 0, and without includes; lines stay where they were."""
    source = COMMENT.sub(lambda found: "\n" * found[0].count("\n") or " ", source)
    source = THREADGROUP_ARGUMENT.sub("", SYSTEM_INCLUDE.sub("", source))
    numbers = itertools.count()
    source = THREADGROUP_VARIABLES.sub(lambda found: _from_arena(found, numbers), source)
    values = dict(constants)

    def constant(found: re.Match[str]) -> str:
        return f"static constexpr {found[1]} {found[2]} = {int(values.get(int(found[3]), 0))};"

    return FUNCTION_CONSTANT.sub(constant, source)


def _from_arena(found: re.Match[str], numbers: itertools.count[int]) -> str:
    declared = []
    for declarator in re.split(r",(?![^\[<(]*[\]>)])", found[2]):
        split = re.fullmatch(r"\s*(\w+)\s*((?:\[[^\]]*\]\s*)*)", declarator, re.DOTALL)
        if split is None:
            return found[0]
        name, dimensions = split.groups()
        number = next(numbers)
        alias = f"emulated_type_{number}"
        declared.append(
            f"using {alias} = {found[1]}{dimensions}; {alias}& {name} = "
            f'emulator::threadgroup_variable<{alias}, {number}>("{name}");'
        )
    return " ".join(declared) + "\n" * found[0].count("\n")
