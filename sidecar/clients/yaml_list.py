"""A list of named things in a YAML file, changed in one item; everything else stays as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import yaml


class NotThisYaml(ValueError):
    """The text cannot be changed as asked; the message says why."""


def with_item(text: str, key: str, item: Mapping[str, Any]) -> str:
    """`text`, a YAML mapping, in whose list `key` the item with the same ``name`` is `item`; at the
    list's end where there was none. Raises NotThisYaml."""
    changed = _changed(text, key, item)
    with contextlib.suppress(NotThisYaml):
        if item_of(changed, key, item["name"]) == item:
            return changed
    raise NotThisYaml(f"{key} cannot be put in behind this mapping")


def _changed(text: str, key: str, item: Mapping[str, Any]) -> str:
    found = _sequence(text, key)
    if found is None:
        begun = text if not text or text.endswith("\n") else text + "\n"
        return f"{begun}{key}:\n{_dumped(item, '  ')}"
    if found.flow_style:
        raise NotThisYaml(f"{key} is written in one line, with brackets")
    for node in found.value:
        if _value(node).get("name") == item["name"]:
            return _replaced(text, node, item)
    indent = " " * (found.start_mark.column)
    end = _line_end(text, _last(found).end_mark.index)
    gap = "" if text[:end].endswith("\n") else "\n"
    return text[:end] + gap + _dumped(item, indent) + text[end:]


def item_of(text: str, key: str, name: str) -> dict[str, Any] | None:
    """The item of that name, None where there is none. Raises NotThisYaml."""
    found = _sequence(text, key)
    items = map(_value, found.value if found is not None else ())
    return next((item for item in items if item.get("name") == name), None)


def _sequence(text: str, key: str) -> yaml.SequenceNode | None:
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise NotThisYaml(f"it is no YAML: {' '.join(str(error).split())}") from None
    if document is None:
        return None
    if not isinstance(document, yaml.MappingNode):
        raise NotThisYaml("it is no YAML mapping")
    for name, value in document.value:
        if name.value == key:
            if isinstance(value, yaml.SequenceNode):
                return value
            raise NotThisYaml(f"{key} is no list")
    return None


def _value(node: yaml.Node) -> dict[str, Any]:
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_object(node, deep=True)
    finally:
        loader.dispose()
    return value if isinstance(value, dict) else {}


def _replaced(text: str, node: yaml.Node, item: Mapping[str, Any]) -> str:
    """The item from its dash to the end of its last line."""
    if _value(node) == item:
        return text
    start = text.rfind("\n", 0, node.start_mark.index) + 1
    line = text[start : node.start_mark.index]
    if line.strip() != "-":
        raise NotThisYaml(f"line {node.start_mark.line + 1}: the item does not begin its line")
    end = _line_end(text, _last(node).end_mark.index)
    return text[:start] + _dumped(item, line[: line.index("-")]) + text[end:]


def _last(node: yaml.Node) -> yaml.Node:
    """The innermost node at the end: a collection itself ends only where the next one begins."""
    while isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return node


def _line_end(text: str, index: int) -> int:
    """Behind the line that the text before `index` ends in."""
    if text[:index].endswith("\n"):
        return index
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


def _dumped(item: Mapping[str, Any], indent: str) -> str:
    lines = yaml.safe_dump([dict(item)], sort_keys=False, allow_unicode=True).splitlines()
    return "".join(f"{indent}{line}\n" for line in lines)
