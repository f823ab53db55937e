"""Which other files go into a prompt about one file, and in which order. Pure.

What changes least comes first, so that a change leaves as much as possible of the prompt's
beginning as it was: definitions that the file imports, those of its neighbours, and last what else
is being edited. The order depends on names alone, so a file that is put back as it was, by undo or
by `git checkout -`, brings the earlier prompt back with it.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine import ContextFile
from sidecar.workspace.imports import Files, imports_of, resolve
from sidecar.workspace.languages import Language, language_of
from sidecar.workspace.outline import Outline

# Code has 3 to 4 characters a token; what is too much all the same is cut by tokens, from the end.
CHARACTERS_PER_TOKEN = 3
MAX_SIBLINGS = 4
MAX_EDITED = 2
# Of what is being edited elsewhere, whole blocks of lines are shown, so that the cut stays while
# the cursor moves a little.
BLOCK = 16


@dataclass(frozen=True)
class Source:
    """One file as it is now: in the editor if it is open there, else on disk. content: its hash."""

    outline: Outline
    content: bytes


@dataclass(frozen=True)
class Edited:
    """A file that is being edited elsewhere. line: where, from 0."""

    path: str
    text: str
    line: int


class Sources(Protocol):
    """The project's files, as far as a prompt may show them."""

    @property
    def files(self) -> Files: ...

    def source(self, path: str) -> Source | None:
        """None for what must not or cannot be read."""


def choose(
    path: str, outline: Outline, sources: Sources, edited: Sequence[Edited], tokens: int
) -> tuple[ContextFile, ...]:
    """What to show with the file at `path`, in the prompt's order.

    edited: the most recent ones last. tokens: what all of it may take, roughly.
    """
    language = language_of(path)
    if language is None:
        return ()
    wanted = _imported(path, outline, language, sources)
    here = {one.path: one for one in edited[-MAX_EDITED:] if one.path != path}
    room = tokens * CHARACTERS_PER_TOKEN
    stable: dict[str, ContextFile] = {}
    moving: dict[str, ContextFile] = {}
    for other, names in wanted.items():
        if (shown := _definitions(other, names, sources, room // 2)) is not None:
            room = _keep(moving if other in here else stable, shown, room)
    for other, one in here.items():
        if other not in wanted and (source := sources.source(other)) is not None:
            room = _keep(moving, _around(one, source), room)
    near: dict[str, ContextFile] = {}
    for other in _siblings(path, language, sources.files):
        if other in stable or other in here:
            continue
        if (shown := _definitions(other, frozenset(), sources, room // 2)) is not None:
            room = _keep(near, shown, room)
        if len(near) == MAX_SIBLINGS:
            break
    return (
        *(stable[one] for one in sorted(stable)),
        *(near[one] for one in sorted(near)),
        *(moving[one] for one in sorted(moving)),
    )


def _imported(
    path: str, outline: Outline, language: Language, sources: Sources
) -> dict[str, frozenset[str]]:
    """Files that the one at `path` imports, with what it takes from each; nothing means all."""
    found: dict[str, frozenset[str]] = {}
    for one in imports_of(outline.imports, language):
        for other in resolve(one, path, language, sources.files):
            for file, names in _defining(other, one.names, language, sources).items():
                if file != path:
                    before = found.get(file)
                    found[file] = names | before if names and before else names
    return found


def _defining(
    path: str, names: frozenset[str], language: Language, sources: Sources
) -> dict[str, frozenset[str]]:
    """Where the names that a file offers are defined: in itself, or where it has them from."""
    source = sources.source(path)
    if source is None or not names:
        return {path: names}
    own = {name for one in source.outline.definitions for name in one.names} & names
    found = {path: frozenset(own)} if own else {}
    for one in imports_of(source.outline.imports, language):
        if passed := (names - own) & one.names:
            for other in resolve(one, path, language, sources.files):
                found[other] = found.get(other, frozenset()) | passed
    return found


def _siblings(path: str, language: Language, files: Files) -> Iterable[str]:
    """Files of the same language beside `path`; those with the most similar names first."""
    folder, _, name = path.rpartition("/")
    found = files.directory(folder)
    if found is None:
        return ()
    others = [
        one
        for one in found.files
        if one != name and posixpath.splitext(one)[1] in language.suffixes
    ]
    stem = posixpath.splitext(name)[0]

    def strangeness(other: str) -> tuple[int, str]:
        pairs = zip(stem, other, strict=False)
        return -sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)), other

    prefix = f"{folder}/" if folder else ""
    return [prefix + one for one in sorted(others, key=strangeness)]


def _definitions(
    path: str, names: frozenset[str], sources: Sources, room: int
) -> ContextFile | None:
    """The definitions of a file, those that are named if any is; None where it has nothing."""
    source = sources.source(path)
    if source is None:
        return None
    offered = source.outline.definitions
    taken = [one for one in offered if one.names & names] if names else offered
    text = ""
    for one in taken:
        if len(text) + len(one.text) > room:
            break
        text += one.text
    return _file(path, text, source) if text else None


def _around(edited: Edited, source: Source) -> ContextFile:
    lines = edited.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first = max(edited.line // BLOCK - 1, 0) * BLOCK
    shown = "\n".join(lines[first : first + 3 * BLOCK]).rstrip("\n") + "\n"
    return _file(edited.path, shown.encode(errors="replace").decode(), source)


def _file(path: str, text: str, source: Source) -> ContextFile:
    language = language_of(path)
    comment = language.comment if language is not None else "#"
    return ContextFile(path=path, text=text, content=source.content, comment=comment)


def _keep(shown: dict[str, ContextFile], one: ContextFile, room: int) -> int:
    """Add `one` if there is room for it; returns what is left."""
    if len(one.text) > room or not one.text.strip():
        return room
    shown[one.path] = one
    return room - len(one.text)
