"""Grammars in llguidance's dialect of Lark, put together piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping


class Rules:
    """The rules of one grammar. controls: spelling of each control token to its id."""

    def __init__(self, controls: Mapping[str, int]) -> None:
        self._controls = controls
        longest_first = sorted(controls, key=len, reverse=True)
        self._spelled = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._lazy: dict[str, str] = {}
        self._terminals: dict[str, str] = {}

    def literal(self, text: str) -> str:
        """An expression for `text` of our own, in which spelled control tokens are tokens."""
        return " ".join(
            f"<[{self._controls[part]}]>" if part in self._controls else quoted(part)
            for part in self._spelled.split(text)
            if part
        )

    def lazy(self, expression: str) -> str:
        """The name of a rule for a regular expression that ends as early as it can."""
        return self._lazy.setdefault(expression, f"lazy{len(self._lazy)}")

    def until(self, text: str, end: str) -> str:
        """An expression for what the regular expression `text` matches up to the first `end`."""
        ending = self.literal(end)
        if not ending.startswith("<["):
            return self.lazy(f"({text}) {quoted(end)}")
        # A control token ends a text by itself; its spelling would be read as one.
        spelled = next(filter(None, self._spelled.split(end)))
        terminal = f"({text}) & ~/(?s:.*{_escaped(spelled)}.*)/"
        return f"{self._terminals.setdefault(terminal, f'TEXT{len(self._terminals)}')} {ending}"

    def text(self, start: str, **rules: str) -> str:
        """The grammar whose replies are `start`, which may refer to `rules`."""
        lines = [f"{name}: {expression}" for name, expression in ({"start": start} | rules).items()]
        named = set(re.findall(r"\blazy[0-9]+\b", " ".join(lines)))
        for expression, name in self._lazy.items():
            if name not in named:
                continue
            lines += [f"{name}[lazy]: {name.upper()}", f"{name.upper()}: {expression}"]
        used = set(re.findall(r"\bTEXT[0-9]+\b", " ".join(lines)))
        lines += [f"{name}: {text}" for text, name in self._terminals.items() if name in used]
        return "\n".join([*lines, ""])


def quoted(text: str) -> str:
    """An expression for `text`, in which nothing is a control token."""
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    """A regular expression for `text`, to stand between slashes."""
    return re.escape(text).replace("/", "\\/")
