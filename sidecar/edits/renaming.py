"""Rename a symbol where the syntax decides what a word stands for; list the places where it does
not, to ask a model about.

Decided is what holds whatever the types are: a definition, the names that refer to it in its file
and where it is imported, what is behind ``self`` or the module's own name. Another function's
parameter or variable of that name is another thing. What is behind any other dot, in a string or in
a comment is not decided.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from engine import RequestError
from sidecar.edits.syntax import Occurrence, Syntax

_SELF = re.compile(r"\b(?:self|cls|this|Self)\s*(?:\.|->|::)\s*$")
_OWNER = re.compile(r"(\w+)\s*(?:\.|::)\s*$")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Renamed:
    """One file. text: with every decided place renamed. undecided: lines of it, from 0, where
    somebody has to look. decided: how many places were renamed."""

    text: str
    decided: int
    undecided: tuple[int, ...]
    reason: str = ""


def check_name(name: str, languages: set[str]) -> None:
    """Raise RequestError where `name` cannot be a name."""
    reserved = "python" in languages and keyword.iskeyword(name)
    if not re.fullmatch(r"[^\W\d][\w$]*", name) or reserved:
        raise RequestError(f"{name!r} is not a name", field="rename")


def rename(files: Mapping[str, Syntax], old: str, new: str) -> dict[str, Renamed]:
    """files: by path, all those that have the word. A class's member is `old` ``Class.member``,
    or a member where nothing at the top of a file is called so. Raises RequestError."""
    owner, _, word = old.rpartition(".")
    check_name(word, set())
    check_name(new, {syntax.language for syntax in files.values()})
    places = {path: syntax.occurrences(word) for path, syntax in files.items()}
    target = _target(places, member=bool(owner))
    return {
        path: _renamed(path, files[path], occurrences, new, target)
        for path, occurrences in places.items()
    }


def only_renamed(before: str, after: str, old: str, new: str) -> bool:
    """Whether `after` is `before` with some of the words `old` replaced by `new`, nothing else."""
    gaps = [_WORD.sub("\0", text) for text in (before, after)]
    if gaps[0] != gaps[1]:
        return False
    pairs = zip(_WORD.findall(before), _WORD.findall(after), strict=True)
    return all(one == other or (one, other) == (old, new) for one, other in pairs)


@dataclass(frozen=True)
class _Target:
    """What the word stands for: something at the ``top`` of a file, a ``member`` of a class, or a
    ``local``. files: where it is defined. unique: nothing else is meant by such a definition."""

    scope: str
    files: frozenset[str]
    unique: bool

    def verdict(self, path: str, text: str, one: Occurrence, *, shadowed: bool) -> bool | None:
        """Whether a place is renamed; None where the syntax does not say. shadowed: whether the
        function around it has a parameter or variable of that name."""
        if one.role == "text":
            return None
        if one.role == "definition":
            own = one.scope == self.scope
            return own if self.unique or self.scope != "member" or not own else None
        if one.role == "keyword":
            return False if self.scope == "top" else None
        if one.role == "member":
            return self._behind_dot(path, text[max(0, one.start - 80) : one.start])
        if self.scope == "local":
            return shadowed
        if self.scope == "member" or shadowed:
            return False
        # Two files that define it: which one is imported elsewhere is not ours to guess.
        return True if self.unique or path in self.files else None

    def _behind_dot(self, path: str, before: str) -> bool | None:
        if self.scope == "local":
            return False
        if self.scope == "member":
            return True if self.unique and path in self.files and _SELF.search(before) else None
        owner = _OWNER.search(before)
        modules = {PurePath(file).stem for file in self.files}
        return True if self.unique and owner is not None and owner[1] in modules else None


def _target(places: Mapping[str, Sequence[Occurrence]], *, member: bool) -> _Target:
    found: dict[str, list[str]] = {"top": [], "member": [], "local": []}
    for path, occurrences in places.items():
        for one in occurrences:
            if one.role == "definition":
                found[one.scope].append(path)
    wanted = ("member",) if member else ("top", "member", "local")
    scope = next((scope for scope in wanted if found[scope]), "member" if member else "top")
    files = frozenset(found[scope])
    unique = len(found[scope] if scope == "member" else files) == 1
    return _Target(scope, files, unique)


def _renamed(
    path: str, syntax: Syntax, occurrences: Sequence[Occurrence], new: str, target: _Target
) -> Renamed:
    taken = next((one for one in syntax.occurrences(new) if one.role != "text"), None)
    if taken is not None:
        return Renamed(syntax.text, 0, (), f"has a {new} already (line {taken.line + 1})")
    local = {one.local for one in occurrences if one.scope == "local"}
    pieces, at, undecided = list[str](), 0, set[int]()
    for one in occurrences:
        shadowed = one.local is not None and one.local in local
        verdict = target.verdict(path, syntax.text, one, shadowed=shadowed)
        if verdict is None:
            undecided.add(one.line)
        elif verdict:
            pieces += [syntax.text[at : one.start], new]
            at = one.end
    text = "".join([*pieces, syntax.text[at:]])
    return Renamed(text, len(pieces) // 2, tuple(sorted(undecided)))
