"""A scripted model that answers edits: right, wrong, half, or with bad intent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from engine import GenerateRequest

RIGHT = "right"


def asked_code(request: GenerateRequest) -> tuple[str, str, str]:
    """(instruction, fence, code) of an edit's prompt, as `ByteCodec` renders it."""
    text = bytes(token for token in request.prompt if token < 256).decode()
    found = re.fullmatch(r"user: (.*?)\n(`{3,})[a-z]*\n(.*)\n\2(?:\n.*)?", text, re.DOTALL)
    assert found is not None, text
    return found[1], found[2], found[3]


def fenced(code: str, fence: str) -> str:
    return f"{fence}python\n{code}\n{fence}"


def _half(code: str, right: str, fence: str) -> str:
    lines = right.split("\n")
    if len(lines) < 6:
        return f"{fence}python\n{right}"
    return fenced("\n".join(lines[: len(lines) // 2]), fence)


# What a model may answer, from (code, right answer, fence). All but the first must be refused.
ANSWERS: dict[str, Callable[[str, str, str], str]] = {
    RIGHT: lambda code, right, fence: fenced(right, fence),
    "with words around it": lambda code, right, fence: f"Sure!\n{fenced(right, fence)}\nDone.",
    "prose": lambda code, right, fence: "I would rather not change this code.",
    "nothing": lambda code, right, fence: "",
    "no end": lambda code, right, fence: f"{fence}python\n{right}",
    "half": _half,
    "two answers": lambda code, right, fence: fenced(right, fence) + "\n" + fenced(code, fence),
    "no syntax": lambda code, right, fence: fenced(right + "\n)]}", fence),
    "something else": lambda code, right, fence: fenced("print('all your base')\n" * 40, fence),
    "empty": lambda code, right, fence: fenced("", fence),
    "invisible": lambda code, right, fence: fenced(right + "  # \u202e\u2066 if admin", fence),
    "control": lambda code, right, fence: fenced(right + "  # \x1b]0;x\x07", fence),
    "binary": lambda code, right, fence: fenced(right + "\0", fence),
    "other files": lambda code, right, fence: (
        f"../../outside.py\n{fenced(right, fence)}\n/etc/passwd\n{fenced('root::0:0', fence)}"
    ),
}
ACCEPTED = (RIGHT, "with words around it")


def kind_of(code: str) -> str:
    """Which answer a region gets: mostly the right one, and each of the others."""
    number = int.from_bytes(hashlib.sha256(code.encode()).digest()[:4], "big")
    kinds = list(ANSWERS)
    return kinds[number % (3 * len(kinds))] if number % (3 * len(kinds)) < len(kinds) else RIGHT


def scripted(
    right: Callable[[str], str], kind: Callable[[str], str] = kind_of
) -> Callable[[GenerateRequest], str]:
    """A `FakeEngine` reply. right: the right answer for some code."""

    def reply(request: GenerateRequest) -> str:
        _, fence, code = asked_code(request)
        return ANSWERS[kind(code)](code, right(code), fence)

    return reply
