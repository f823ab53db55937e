"""JSON as editors' settings have it, with comments and trailing commas, changed in one place.

Read by tree-sitter's JavaScript grammar, of which such a file is an expression; so everything that
is not changed stays as it is, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tree_sitter_javascript
from tree_sitter import Language, Node, Parser

_BEFORE, _AFTER = b"(", b"\n)"
_CONSTANTS = {"true": True, "false": False, "null": None}


class NotThisJson(ValueError):
    """The text cannot be changed as asked; the message says why."""


def with_value(text: str, keys: Sequence[str], value: object) -> str:
    """`text` with `value` under `keys`, objects in between made where there are none; empty text
    counts as ``{}``. Raises NotThisJson."""
    text = text if text.strip() else "{}\n"
    source = _BEFORE + text.encode() + _AFTER
    node = _document(source)
    # All of it has to be JSON, not only what is on the way.
    _value(node)
    for depth, key in enumerate(keys):
        found = _pairs(node).get(key)
        if found is None:
            nested: object = value
            for inner in reversed(keys[depth + 1 :]):
                nested = {inner: nested}
            return _inserted(source, node, key, nested)
        node = found
        if depth < len(keys) - 1 and node.type != "object":
            raise NotThisJson(f"{'.'.join(keys[: depth + 1])} is no object")
    if _value(node) == value:
        return text
    return _spliced(source, node.start_byte, node.end_byte, _written(source, node, value))


def value_of(text: str) -> Any:
    """What the JSON says; empty text counts as ``{}``. Raises NotThisJson."""
    return _value(_document(_BEFORE + text.encode() + _AFTER)) if text.strip() else {}


def _document(source: bytes) -> Node:
    root = Parser(Language(tree_sitter_javascript.language())).parse(source).root_node
    if root.has_error:
        raise NotThisJson("it is no JSON, also with comments and trailing commas allowed")
    node = root
    for expected in ("expression_statement", "parenthesized_expression", "object"):
        inside = [child for child in node.named_children if child.type != "comment"]
        if len(inside) != 1 or inside[0].type != expected:
            raise NotThisJson("it is no JSON object")
        node = inside[0]
    return node


def _pairs(node: Node) -> dict[str, Node]:
    """Values by key; the last of a key that stands there twice, as parsers take it."""
    found = {}
    for pair in node.named_children:
        if pair.type == "comment":
            continue
        key, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
        if pair.type != "pair" or key is None or value is None or key.type != "string":
            raise NotThisJson(f"line {pair.start_point.row + 1}: no JSON")
        found[str(_value(key))] = value
    return found


def _value(node: Node) -> Any:
    if node.type == "object":
        return {key: _value(value) for key, value in _pairs(node).items()}
    if node.type == "array":
        return [_value(child) for child in node.named_children if child.type != "comment"]
    if node.type in _CONSTANTS:
        return _CONSTANTS[node.type]
    try:
        return json.loads(node.text or b"")
    except ValueError:
        raise NotThisJson(f"line {node.start_point.row + 1}: no JSON") from None


def _inserted(source: bytes, node: Node, key: str, value: object) -> str:
    """With a pair behind the last one of an object."""
    pairs = [child for child in node.named_children if child.type == "pair"]
    newline = "\r\n" if b"\r\n" in source else "\n"
    if pairs:
        indent = _indent(source, pairs[-1])
        text = f",{newline}{indent}{_pair(key, value, indent, newline)}"
        return _spliced(source, pairs[-1].end_byte, pairs[-1].end_byte, text)
    outer = _indent(source, node)
    indent = outer + "  "
    text = f"{newline}{indent}{_pair(key, value, indent, newline)}"
    # In an empty object comments stay, behind the new pair.
    if not source[node.start_byte + 1 : node.end_byte - 1].strip():
        return _spliced(source, node.start_byte + 1, node.end_byte - 1, f"{text}{newline}{outer}")
    return _spliced(source, node.start_byte + 1, node.start_byte + 1, text)


def _pair(key: str, value: object, indent: str, newline: str) -> str:
    return f"{json.dumps(key)}: {_dumped(value, indent, newline)}"


def _written(source: bytes, node: Node, value: object) -> str:
    newline = "\r\n" if b"\r\n" in source else "\n"
    return _dumped(value, _indent(source, node), newline)


def _dumped(value: object, indent: str, newline: str) -> str:
    lines = json.dumps(value, indent=2, ensure_ascii=False).split("\n")
    return (newline + indent).join(lines)


def _indent(source: bytes, node: Node) -> str:
    """The blanks that the line of `node` begins with."""
    line = source[source.rfind(b"\n", 0, node.start_byte) + 1 : node.start_byte]
    line = line.removeprefix(_BEFORE) if node.start_point.row == 0 else line
    return line[: len(line) - len(line.lstrip())].decode()


def _spliced(source: bytes, start: int, end: int, text: str) -> str:
    changed = source[:start] + text.encode() + source[end:]
    return changed[len(_BEFORE) : -len(_AFTER)].decode()
