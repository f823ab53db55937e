"""A scripted model that answers edits: right, wrong, half, or with bad intent."""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

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


def installed_files(most_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Python files of installed packages: path, bytes."""
    folder = Path(sysconfig.get_path("purelib"))
    for path in sorted(folder.rglob("*.py")):
        if path.is_file() and 200 < path.stat().st_size <= most_bytes:
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def make_project(folder: Path, files: int, word: bytes, most_bytes: int = 2500) -> None:
    """A repository of `files` installed files that have `word`: some executable, some with CRLF or
    a byte order mark, some without a final newline, with links beside."""
    made = 0
    for path, data in installed_files(most_bytes):
        if not re.search(rb"\b" + word + rb"\b", data) or b"\r" in data or data[:1] == b"\xef":
            continue
        try:
            compile(data, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            continue
        target = folder / "pkg" / path.replace("/", "_")
        target.parent.mkdir(parents=True, exist_ok=True)
        if made % 7 == 1:
            data = data.replace(b"\n", b"\r\n")
        elif made % 7 == 2:
            data = data.rstrip(b"\n")
        elif made % 7 == 3:
            data = b"\xef\xbb\xbf" + data
        target.write_bytes(data)
        target.chmod((0o644, 0o755, 0o600)[made % 3])
        made += 1
        if made == files:
            break
    assert made == files
    (folder / "pkg" / "link.py").symlink_to("../elsewhere.py")
    (folder / "loop").symlink_to(".")
