"""The names of a project's files: the directories that are not ignored, and what is in each.

Only directories are ever entered by it, never a link, so a loop of links ends where it begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from sidecar.workspace.ignore import IGNORE_FILES, MARKERS, Rules, secret_name
from sidecar.workspace.root import Root

MAX_DIRECTORIES = 50_000
MAX_FILES = 1_000_000
_MAX_RULES = 1 << 20


@dataclass(frozen=True, slots=True)
class Directory:
    """files, folders: names in it that are not ignored. rules: what holds in it."""

    files: frozenset[str]
    folders: frozenset[str]
    mtime_ns: int
    rules: Rules


@dataclass(frozen=True)
class Relisted:
    """Directories that came and went, and the files that did in the directory itself."""

    came: set[str] = field(default_factory=set)
    went: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)


class Listing:
    """Written by the watcher's thread; others may read at any time and see each directory whole.

    Paths are relative to the root, ``""`` is the root itself. full: whether a limit was met, so
    that directories are missing.
    """

    def __init__(self, root: Root, rules: Rules) -> None:
        self._root = root
        self._outer = rules
        self._directories: dict[str, Directory] = {}
        self.files = 0
        self.full = False

    def __len__(self) -> int:
        return len(self._directories)

    def __contains__(self, path: str) -> bool:
        """Whether `path` is a file that may be read."""
        folder, _, name = path.rpartition("/")
        found = self._directories.get(folder)
        return found is not None and name in found.files

    def directory(self, path: str) -> Directory | None:
        return self._directories.get(path)

    def directories(self) -> list[str]:
        return list(self._directories)

    def names(self) -> set[str]:
        """Every file."""
        return {
            f"{path}/{name}" if path else name
            for path, directory in list(self._directories.items())
            for name in directory.files
        }

    def ignores(self, path: str) -> bool:
        """Whether the rules leave out a path that need not be there yet."""
        folder, _, name = path.rpartition("/")
        directory = False
        while (found := self._directories.get(folder)) is None and folder:
            folder, _, name = folder.rpartition("/")
            directory = True
        if found is None:
            return False
        inside = f"{folder}/{name}" if folder else name
        if name in found.files or name in found.folders:
            return False
        return found.rules.ignores(inside, directory=directory)

    def ending(self, tail: str) -> list[str]:
        """Files whose path is `tail` or ends in ``/`` and `tail`, the shortest first."""
        folder, _, name = tail.rpartition("/")
        found = [
            f"{path}/{name}" if path else name
            for path, directory in list(self._directories.items())
            if name in directory.files and (not folder or f"/{path}".endswith(f"/{folder}"))
        ]
        return sorted(found, key=lambda path: (path.count("/"), path))

    def scan(self, start: str = "") -> None:
        """List `start` and all below it anew. What cannot be read is not there."""
        self.forget(start)
        waiting = [start]
        while waiting:
            path = waiting.pop()
            if len(self._directories) >= MAX_DIRECTORIES or self.files >= MAX_FILES:
                self.full = True
                return
            found = self._read(path)
            if found is None:
                continue
            self._put(path, found)
            waiting += [f"{path}/{name}" if path else name for name in sorted(found.folders)]

    def relist(self, path: str) -> Relisted:
        """List one directory anew, with new ones below it; those that are gone are forgotten. A
        directory that is not in the listing is left alone."""
        before = self._directories.get(path)
        if before is None:
            return Relisted()
        found = self._read(path)
        prefix = f"{path}/" if path else ""
        if found is None:
            files = {prefix + name for name in before.files}
            return Relisted(went=self.forget(path), files=files)
        self._put(path, found)
        went: set[str] = set()
        for name in before.folders - found.folders:
            went |= self.forget(prefix + name)
        came: set[str] = set()
        for name in sorted(found.folders):
            if prefix + name not in self._directories:
                self.scan(prefix + name)
                came |= set(self.below(prefix + name))
        return Relisted(came, went, {prefix + name for name in before.files ^ found.files})

    def below(self, path: str) -> Iterator[str]:
        """`path` and the directories below it, as far as they are listed."""
        waiting = [path]
        while waiting:
            at = waiting.pop()
            if (found := self._directories.get(at)) is not None:
                yield at
                waiting += [f"{at}/{name}" if at else name for name in found.folders]

    def forget(self, path: str) -> set[str]:
        """Take a directory and all below it out; returns what was taken."""
        gone = set(self.below(path))
        for one in gone:
            self.files -= len(self._directories.pop(one).files)
        return gone

    def _put(self, path: str, found: Directory) -> None:
        before = self._directories.get(path)
        self._directories[path] = found
        self.files += len(found.files) - (len(before.files) if before else 0)

    def _read(self, path: str) -> Directory | None:
        """What is in a directory now; None where it cannot be read or is a program's."""
        absolute = self._root.path / path
        files, folders = [], []
        try:
            mtime_ns = absolute.lstat().st_mtime_ns
            with os.scandir(absolute) as entries:
                for entry in entries:
                    if not _speakable(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        files.append(entry.name)
        except OSError:
            return None
        if path and not MARKERS.isdisjoint(files):
            return None
        rules, prefix = self._rules_in(path, files), f"{path}/" if path else ""
        return Directory(
            frozenset(
                name for name in files if not (secret_name(name) or rules.ignores(prefix + name))
            ),
            frozenset(
                name
                for name in folders
                if not (secret_name(f"{name}/") or rules.ignores(prefix + name, directory=True))
            ),
            mtime_ns,
            rules,
        )

    def _rules_in(self, path: str, files: list[str]) -> Rules:
        """The parent's rules, and those of the ignore files among `files`."""
        if path:
            above = self._directories.get(path.rpartition("/")[0])
            rules = above.rules if above is not None else self._outer
        else:
            rules = self._outer
        for kind in IGNORE_FILES:
            if kind in files:
                found = self._root.read(f"{path}/{kind}" if path else kind, _MAX_RULES)
                if found is not None:
                    rules = rules.extended(kind, found[0].decode(errors="replace"), base=path)
        return rules


def _speakable(name: str) -> bool:
    """Whether a name is text; the kernel takes any bytes, a prompt does not."""
    return name.isprintable()
