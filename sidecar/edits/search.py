"""Which files a refactor is about, and where in them.

The files are those of the project that are not ignored and look like no secret. A file that is
meant but cannot be edited is named with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from engine import RequestError
from sidecar.edits.syntax import Syntax, language_of
from sidecar.edits.text_file import TextFile
from sidecar.edits.writable_root import FileContent, Refused, WritableRoot
from sidecar.workspace.ignore import outer_rules
from sidecar.workspace.listing import Listing
from sidecar.workspace.root import Root

_QUOTED = re.compile(r"`([^`\n]+)`")
_IDENTIFIER = re.compile(r"[^\W\d]\w{2,}")
_GLOB = re.compile(r"[*?\[!]")


@dataclass(frozen=True)
class Found:
    """A file to edit. lines: from 0, what is searched for stands in them; empty: all of it."""

    path: str
    content: FileContent
    file: TextFile
    lines: tuple[int, ...] = ()

    @property
    def language(self) -> str:
        return language_of(self.path)


@dataclass(frozen=True)
class Skipped:
    """A file that would be edited, and why it is not."""

    path: str
    reason: str


@dataclass(frozen=True)
class Query:
    """globs: as in an ignore file; none is everything. words: one of them stands in the file;
    none is any file. names: words count only where they are names, in languages with a grammar.
    most_bytes: of a file."""

    globs: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    names: bool = False
    most_bytes: int = 1 << 20


def search(root: WritableRoot, query: Query) -> Iterator[Found | Skipped]:
    """Files in order of their paths. Raises RequestError where the folder is too wide."""
    place = Root(root.path)
    if place.too_wide:
        raise RequestError(f"{root.path} is no project but a whole home or disk", field="root")
    listing = Listing(place, outer_rules(place.path))
    listing.scan()
    wanted = GitIgnoreSpec.from_lines(query.globs)
    # A submodule's `.git` is a file.
    names = {name for name in listing.names() if ".git" not in name.split("/")}
    paths = [name for name in names if not query.globs or wanted.match_file(name)]
    links = _links(root.path, listing, wanted) if query.globs else ()
    plain = (glob.strip("/") for glob in query.globs if not _GLOB.search(glob))
    named = [path for path in plain if path not in names and not _has(listing, path)]
    for path in sorted({*paths, *links, *named}):
        one = _look(root, path, query, listed=path in names)
        if one is not None:
            yield one


def words_of_diff(diff: str) -> tuple[str, ...]:
    """The identifiers that a diff takes away: what is to be changed elsewhere, too. Raises
    RequestError where it takes none away."""
    gone, kept = set[str](), set[str]()
    for line in diff.splitlines():
        if line.startswith(("---", "+++")):
            continue
        words = _IDENTIFIER.findall(line[1:])
        (gone if line.startswith("-") else kept).update(words)
    if not gone - kept:
        raise RequestError("the diff takes no name away that it does not keep", field="diff")
    return tuple(sorted(gone - kept))


def words_of(instruction: str) -> tuple[str, ...]:
    """What stands in backticks."""
    return tuple(dict.fromkeys(_QUOTED.findall(instruction)))


def lines_with(words: Sequence[str], text: str, language: str, *, names: bool) -> tuple[int, ...]:
    """Lines, from 0, in which one of the words stands as a whole word."""
    present = [word for word in words if word in text]
    if not present:
        return ()
    found: set[int] = set()
    if names:
        syntax = Syntax(text, language)
        for word in present:
            for one in syntax.occurrences(word):
                if one.role != "text" or not syntax.parsed:
                    found.add(one.line)
        return tuple(sorted(found))
    for word in present:
        pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
        found |= {text.count("\n", 0, one.start()) for one in pattern.finditer(text)}
    return tuple(sorted(found))


def _look(root: WritableRoot, path: str, query: Query, *, listed: bool) -> Found | Skipped | None:
    try:
        content = root.read(path, most=query.most_bytes)
        if not listed:
            return Skipped(path, "is ignored, or looks like a secret")
        # In another encoding the bytes do not show a word that is in the text.
        wide = content.data.startswith((b"\xff\xfe", b"\xfe\xff"))
        plain = query.words and not wide
        if plain and not any(word.encode() in content.data for word in query.words):
            return None
        file = TextFile.of(content.data)
        lines = lines_with(query.words, file.text, language_of(path), names=query.names)
        if query.words and not lines:
            return None
        root.check_writable(path)
    except Refused as refused:
        return Skipped(path, refused.message)
    except OSError as error:
        return Skipped(path, f"cannot be read: {error.strerror}")
    return Found(path, content, file, lines)


def _links(root: Path, listing: Listing, wanted: GitIgnoreSpec) -> Iterable[str]:
    """Symbolic links that are asked for by name: they are named in the report."""
    for folder in listing.directories():
        try:
            entries = [entry for entry in (root / folder).iterdir() if entry.is_symlink()]
        except OSError:
            continue
        for entry in entries:
            path = entry.relative_to(root).as_posix()
            if wanted.match_file(path):
                yield path


def _has(listing: Listing, path: str) -> bool:
    return listing.directory(path) is not None
