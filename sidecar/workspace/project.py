"""One folder that clients work in: its watcher, and what its files say, read once each."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping

from sidecar.workspace.context import Source
from sidecar.workspace.documents import Document
from sidecar.workspace.ignore import is_secret
from sidecar.workspace.languages import language_of
from sidecar.workspace.listing import Listing
from sidecar.workspace.outline import outline
from sidecar.workspace.root import Root, Stamp, text_of
from sidecar.workspace.watcher import Watcher

KEPT = 1024


def content_of(text: str) -> bytes:
    """What tells one content of a file from another."""
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).digest()


class Project:
    """Read on one thread, the workspace's; the watcher has its own.

    changed: see `Watcher`. max_bytes: of a file that is read.
    """

    def __init__(
        self, root: Root, changed: Callable[[frozenset[str]], None], max_bytes: int
    ) -> None:
        self.root = root
        self.watcher = Watcher(root, changed, interesting=self.known)
        self.max_bytes = max_bytes
        self._read: dict[str, tuple[Stamp, Source | None]] = {}

    @property
    def name(self) -> str:
        return self.root.path.name

    def place(self, path: str) -> str:
        """What the cache knows a file by, see `ContextFile.place`."""
        return f"{self.root.path}/{path}"

    @property
    def listing(self) -> Listing:
        return self.watcher.listing

    def known(self) -> list[str]:
        """Files that were read."""
        return list(self._read)

    def source(self, path: str) -> Source | None:
        """None for what is ignored, secret, too large, no text, or of no known language."""
        known = self._read.pop(path, None)
        if path not in self.listing or is_secret(path) or language_of(path) is None:
            return None
        stamp = self.root.stamp(path)
        if stamp is None:
            return None
        if known is None or known[0] != stamp:
            found = self.root.read(path, self.max_bytes)
            text = text_of(found[0]) if found is not None else None
            known = (
                found[1] if found is not None else stamp,
                source_of(path, text) if text is not None else None,
            )
        # Those used last are last.
        self._read[path] = known
        if len(self._read) > KEPT:
            del self._read[next(iter(self._read))]
        return known[1]


class OpenProject:
    """A project as one client sees it: what it has open wins over the disk.

    buffers: path to document, of those that may go into a prompt.
    """

    def __init__(self, project: Project, buffers: Mapping[str, Document]) -> None:
        self._project = project
        self._buffers = buffers

    @property
    def files(self) -> Listing:
        return self._project.listing

    def text(self, path: str) -> str | None:
        """Of an open document that is not too large."""
        document = self._buffers.get(path)
        if document is None:
            return None
        text = document.text
        return text if len(text) <= self._project.max_bytes else None

    def source(self, path: str) -> Source | None:
        """See `context.Sources`."""
        if path in self._buffers:
            text = self.text(path)
            return None if text is None else source_of(path, text)
        return self._project.source(path)


@functools.lru_cache(64)
def source_of(path: str, text: str) -> Source | None:
    """None where no grammar is known."""
    language = language_of(path)
    if language is None:
        return None
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    return Source(outline(plain, language, path), content_of(text))
