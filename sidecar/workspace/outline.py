"""What a file offers to others: its definitions without their bodies, and what it imports.

Half-typed text parses too: tree-sitter marks what it does not understand and goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.workspace.languages import Language, grammar_of, parser_of

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_LINES = 40
"""Of one definition; a longer one is a table of data, or a class that says enough by then."""
_LONG_LINE = 400
# What a namespace may be wrapped in.
_AROUND = frozenset(("expression_statement", "export_statement"))
_NO_NAMES = frozenset(
    (
        "body",
        "parameters",
        "superclasses",
        "type_parameters",
        "value",
        "right",
        "receiver",
        "result",
    )
)
# In Python; `__all__` says nothing that the definitions do not.
_PRIVATE = re.compile(r"_(?!_)|__(?!.*__$)|__all__$")


@dataclass(frozen=True)
class Definition:
    """names: by which another file may import it. text: lines that end with ``\\n``."""

    names: frozenset[str]
    text: str


@dataclass(frozen=True)
class Outline:
    """imports: the source text of each statement that may name other files."""

    definitions: tuple[Definition, ...]
    imports: tuple[str, ...]


def outline(text: str, language: Language, path: str = "") -> Outline:
    """path: tells a grammar's dialects apart."""
    data = text.encode(errors="replace")
    grammar = grammar_of(path) or language.name
    reader = _Reader(data, language)
    for node in reader.top_level(parser_of(grammar).parse(data).root_node):
        reader.take(node)
    return Outline(tuple(reader.definitions), tuple(reader.imports))


class _Reader:
    def __init__(self, data: bytes, language: Language) -> None:
        self._data = data
        self._language = language
        self.definitions: list[Definition] = []
        self.imports: list[str] = []

    def top_level(self, node: Node) -> Iterator[Node]:
        """The children of a file, and of what only holds others together."""
        for child in node.named_children:
            only = child.named_children[0] if child.named_child_count == 1 else child
            if child.type in self._language.inside:
                yield from self.top_level(child)
            elif only.type in self._language.inside and child.type in _AROUND:
                yield from self.top_level(only)
            else:
                yield child

    def take(self, node: Node) -> None:
        if node.type in self._language.imports:
            self.imports.append(self._text(node.start_byte, node.end_byte))
        item = self._item(node)
        if item is None:
            return
        names = frozenset(self._names(item, 3))
        if self._language.name == "python" and all(map(_PRIVATE.match, names)):
            return
        lines = [line for line in self._shown(node).splitlines() if line.strip()]
        if len(lines) > MAX_LINES or any(len(line) > _LONG_LINE for line in lines):
            lines = [line[:_LONG_LINE] for line in lines[:MAX_LINES]]
        self.definitions.append(Definition(names, "".join(f"{line}\n" for line in lines)))

    def _item(self, node: Node) -> Node | None:
        """The definition that `node` is, or that it only decorates, exports or makes generic."""
        for _ in range(3):
            if node.type in self._language.items and node.type != "template_declaration":
                return node
            inner = node.child_by_field_name("definition")
            inner = inner or node.child_by_field_name("declaration")
            if inner is None and node.type in ("template_declaration", "expression_statement"):
                inner = node.named_children[-1] if node.named_children else None
            if inner is None:
                return None
            node = inner
        return None

    def _names(self, node: Node, depth: int) -> Iterator[str]:
        for index, child in enumerate(node.children):
            name = node.field_name_for_child(index)
            if name in _NO_NAMES or not child.is_named:
                continue
            if name in ("name", "left", "declarator", "type") and not child.named_children:
                yield self._text(child.start_byte, child.end_byte)
            elif name == "name":
                # Lua's `function M.f`: by its last part.
                yield re.split(r"[.:]", self._text(child.start_byte, child.end_byte))[-1]
            elif depth:
                yield from self._names(child, depth - 1)

    def _shown(self, node: Node) -> str:
        """The text of a node without the bodies of functions."""
        start = node.start_byte
        # Members are indented like their own first line.
        start = self._data.rfind(b"\n", 0, start) + 1 if self._indented(start) else start
        parts, at = [], start
        for first, last, instead in self._cuts(node):
            parts += [self._text(at, first).rstrip(), instead]
            at = last
        return "".join((*parts, self._text(at, node.end_byte)))

    def _indented(self, start: int) -> bool:
        line = self._data.rfind(b"\n", 0, start) + 1
        return not self._data[line:start].strip()

    def _cuts(self, node: Node) -> Iterator[tuple[int, int, str]]:
        """(first byte, byte behind the last, what stands there instead), in order."""
        if self._is_private(node):
            # With what decorates it: a private member is nobody else's business.
            yield node.start_byte, node.end_byte, ""
            return
        if node.type in self._language.functions:
            body = node.child_by_field_name("body") or node.child_by_field_name("value")
            if body is not None:
                braces = self._language.elided.endswith("}")
                end = body.end_byte if braces else node.end_byte
                yield body.start_byte, end, self._language.elided
                return
        for child in node.named_children:
            if _is_string(child) or child.type.endswith("comment"):
                yield child.start_byte, child.end_byte, ""
            else:
                yield from self._cuts(child)

    def _is_private(self, node: Node) -> bool:
        if self._language.name != "python":
            return False
        node = node.child_by_field_name("definition") or node
        if node.type != "function_definition":
            return False
        name = node.child_by_field_name("name")
        return name is not None and bool(_PRIVATE.match(self._text(name.start_byte, name.end_byte)))

    def _text(self, first: int, last: int) -> str:
        return self._data[first:last].decode(errors="replace")


def _is_string(node: Node) -> bool:
    """Whether a statement is a docstring."""
    if node.type != "expression_statement" or node.named_child_count != 1:
        return False
    return node.named_children[0].type == "string"
