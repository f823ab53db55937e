"""What a file's syntax says, by tree-sitter: whether it parses, its names, its parts.

Nothing here is written for one language: grammars call identifiers, strings and comments by such
names. A language without a grammar is plain text, where words are found and nothing is decided.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from sidecar.workspace.languages import GRAMMARS, grammar_of, parser_of

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

# Other kinds of text that a fence can name.
_PLAIN = {
    ".sh": "bash",
    ".json": "json",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".md": "markdown",
    ".html": "html",
    ".css": "css",
    ".sql": "sql",
    ".cs": "csharp",
    ".kt": "kotlin",
    ".swift": "swift",
    ".php": "php",
}

_CLASSES = ("class", "impl", "struct", "interface", "trait")

Role = Literal["definition", "name", "member", "keyword", "text"]


def language_of(path: str) -> str:
    """How a fence calls the language of a file; empty where its name does not tell."""
    return grammar_of(path) or _PLAIN.get(PurePath(path).suffix.lower(), "")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Where a word stands: offsets in code points, line from 0.

    role: ``definition``, ``name``, ``member`` (behind a dot, or a field's name), ``keyword`` (of
    an argument), or ``text`` in a string, a comment or a file that has no grammar.
    scope: what a definition belongs to: ``top``, ``member`` of a class, or ``local``.
    local: offsets of the outermost function around it.
    """

    start: int
    end: int
    line: int
    role: Role
    scope: str = ""
    local: tuple[int, int] | None = None


class Syntax:
    """One text of one language. Offsets are in code points, lines count from 0."""

    def __init__(self, text: str, language: str) -> None:
        self.text = text
        self.language = language
        self._data = text.encode(errors="surrogatepass")
        known = language in GRAMMARS
        self._tree: Tree | None = parser_of(language).parse(self._data) if known else None

    @property
    def parsed(self) -> bool:
        """Whether there is a grammar."""
        return self._tree is not None

    def error_line(self) -> int | None:
        """The first line that does not parse; None where all do, or nothing can tell."""
        if self._tree is None or not self._tree.root_node.has_error:
            return None
        node = self._tree.root_node
        while (inner := next((one for one in node.children if one.has_error), None)) is not None:
            node = inner
        return int(node.start_point[0])

    def occurrences(self, word: str) -> list[Occurrence]:
        """Every place where `word` stands as a whole word."""
        pattern = re.compile(rf"(?<![\w$]){re.escape(word)}(?![\w$])")
        return [
            self._occurrence(found.start(), found.end()) for found in pattern.finditer(self.text)
        ]

    def _occurrence(self, start: int, end: int) -> Occurrence:
        line = self.text.count("\n", 0, start)
        node = self._leaf(start, end)
        if node is None or ("identifier" not in node.type and node.type != "constant"):
            return Occurrence(start, end, line, "text")
        around = list(_ancestors(node))
        functions = [one for one in around if _is_function(one)]
        local = self._span(functions[-1]) if functions else None
        role = _role(node)
        scope = _scope(node, around) if role == "definition" else ""
        return Occurrence(start, end, line, role, scope, local)

    def _leaf(self, start: int, end: int) -> Node | None:
        """The node that is exactly this word."""
        if self._tree is None:
            return None
        first, last = self._bytes(start), self._bytes(end)
        node = self._tree.root_node.descendant_for_byte_range(first, last)
        if node is None or (node.start_byte, node.end_byte) != (first, last):
            return None
        return node

    def _bytes(self, offset: int) -> int:
        return len(self.text[:offset].encode(errors="surrogatepass"))

    def _span(self, node: Node) -> tuple[int, int]:
        first, last = self._data[: node.start_byte], self._data[: node.end_byte]
        return len(first.decode(errors="replace")), len(last.decode(errors="replace"))

    def region(self, line: int, most: int) -> tuple[int, int]:
        """First line, and the one behind the last, of the largest part around `line` that has at
        most `most` lines and is not the whole file, unless that is as short."""
        count = self.text.count("\n") + 1
        if self._tree is None:
            start = max(0, min(line - most // 2, count - most))
            return start, min(count, start + most)
        data_line = self._data.split(b"\n")[line]
        column = len(data_line) - len(data_line.lstrip())
        node = self._tree.root_node.descendant_for_point_range((line, column), (line, column))
        best = (line, line + 1)
        for around in (node, *_ancestors(node)) if node is not None else ():
            # A part that ends behind a line's end has nothing on the next one.
            last_line, last_column = around.end_point
            end = last_line + (last_column > 0)
            if end - around.start_point[0] <= most:
                best = min(best[0], around.start_point[0]), max(best[1], end)
        return best

    def definition(self, line: int, most: int) -> tuple[int, int]:
        """First line, and the one behind the last, of the smallest function or class of several
        lines around `line`; where there is none, or it is longer than `most`, see `region`."""
        if self._tree is not None:
            text = self._data.split(b"\n")[line]
            column = len(text) - len(text.lstrip())
            node = self._tree.root_node.descendant_for_point_range((line, column), (line, column))
            for around in (node, *_ancestors(node)) if node is not None else ():
                first, (last, column) = around.start_point[0], around.end_point
                if last > first and (_is_function(around) or _is_class(around)):
                    if last + (column > 0) - first <= most:
                        return first, last + (column > 0)
                    break
        return self.region(line, most)


def regions(syntax: Syntax, lines: Sequence[int], most: int) -> list[tuple[int, int]]:
    """The parts around `lines`, in order and apart from each other, each of at most `most` lines
    where one line does not have more."""
    found: list[tuple[int, int]] = []
    for line in sorted(set(lines)):
        if found and line < found[-1][1]:
            continue
        start, end = syntax.region(line, most)
        if found and start < found[-1][1]:
            start = found[-1][1]
        found.append((start, end))
    return found


def _ancestors(node: Node) -> Iterator[Node]:
    while (parent := node.parent) is not None:
        yield parent
        node = parent


def _is_function(node: Node) -> bool:
    kind = node.type
    return (
        node.is_named
        and ("function" in kind or "method" in kind or kind in ("lambda", "closure_expression"))
        and not kind.endswith(("_type", "call", "signature"))
    )


def _is_class(node: Node) -> bool:
    kind = node.type
    declared = kind.endswith(("_definition", "_declaration", "_item", "_specifier"))
    return node.is_named and (declared or kind == "class") and any(one in kind for one in _CLASSES)


def _role(node: Node) -> Role:
    parent = node.parent
    if parent is None:
        return "name"
    if parent.type == "keyword_argument" and parent.child_by_field_name("name") == node:
        return "keyword"
    if _defines(node, parent):
        return "definition"
    for field in ("attribute", "property", "field"):
        if parent.child_by_field_name(field) == node:
            return "member"
    # A call's `name` has an object before it in Java, a receiver in Ruby.
    if parent.child_by_field_name("object") not in (None, node):
        return "member"
    if node.type in ("property_identifier", "field_identifier"):
        return "member"
    return "name"


def _defines(node: Node, parent: Node) -> bool:
    kind = parent.type
    if "parameter" in kind and kind != "type_parameters":
        return parent.child_by_field_name("value") != node
    if kind in ("assignment", "for_statement", "for_in_clause") and node.type == "identifier":
        return parent.child_by_field_name("left") == node
    named = ("definition", "declaration", "declarator", "_item", "_spec", "class")
    declared = any(part in kind for part in named)
    return declared and any(
        parent.child_by_field_name(field) == node for field in ("name", "declarator", "pattern")
    )


def _scope(node: Node, around: Sequence[Node]) -> str:
    """Where the name that `node` gives is known; `around`: its ancestors, the nearest first."""
    # The definition itself is around its own name, in C below declarators.
    own = next(n for n, one in enumerate(around) if "declarator" not in one.type)
    outer = around[own + (_is_function(around[own]) or "class" in around[own].type) :]
    for one in outer:
        if _is_function(one):
            return "local"
        if any(part in one.type for part in _CLASSES):
            return "member"
    return "top"
