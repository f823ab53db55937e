"""What the documents tell a reader to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from source_tree import text

DOCUMENTS = [
    Path("README.md"),
    Path("ARCHITECTURE.md"),
    Path("CONTRIBUTING.md"),
    Path("docs/PROTOCOL.md"),
    Path("docs/SURPLUS.md"),
    Path("editors/README.md"),
    *(Path(f"editors/{name}/README.md") for name in ("emacs", "helix", "nvim", "opencode", "zed")),
]
SEPARATORS = {"|", "||", "&&", ";", "&"}


def shell_blocks(markdown: str) -> Iterator[str]:
    """The text of every block fenced as sh or console."""
    for block in re.finditer(r"^```(sh|console)\n(.*?)^```$", markdown, re.MULTILINE | re.DOTALL):
        yield block[2]


def inline_commands(markdown: str) -> Iterator[str]:
    """Text between single backticks that starts like one of our commands."""
    prose = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", prose):
        if re.match(r"(pillion|make) ", code):
            yield code


def command_lines(block: str) -> Iterator[str]:
    """The commands of a block, continuation lines joined.

    In a block with prompts (``$ ``) the other lines are output.
    """
    lines = block.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    yield from (line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def simple_commands(line: str) -> Iterator[list[str]]:
    """Words of each command of a line; assignments in front and redirections are dropped."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for token in [*lexer, ";"]:
        if token in SEPARATORS:
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if words:
                yield words
            words = []
        elif not re.fullmatch(r"\d*[<>]+&?\d*", token):
            words.append(token)


def commands(path: Path, program: str) -> list[list[str]]:
    """Arguments of every call of `program` in a document's shell blocks."""
    lines = [line for block in shell_blocks(text(path)) for line in command_lines(block)]
    return _calls(lines, program)


def mentions(path: Path, program: str) -> list[list[str]]:
    """Arguments of every call in a document, those that its prose only names included."""
    return commands(path, program) + _calls(inline_commands(text(path)), program)


def _calls(lines: Iterable[str], program: str) -> list[list[str]]:
    return [
        words[1:]
        for line in lines
        for words in simple_commands(line)
        if words[0].rsplit("/", 1)[-1] == program
    ]
