"""What one client has open, and what of its projects goes along with each document's prompts.

What goes along is settled when a document is opened or saved, when typing pauses, and when files
change; between two keys it is only looked up, so the prompt begins with the same bytes at each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine import ContextFile, FileContent
from sidecar.config import WorkspaceConfig
from sidecar.workspace.context import Edited, choose
from sidecar.workspace.documents import Document, Documents
from sidecar.workspace.ignore import is_secret
from sidecar.workspace.languages import language_of
from sidecar.workspace.project import OpenProject, Project, content_of
from sidecar.workspace.workspace import Workspace

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""A pause that long between two changes lets what goes along be settled anew."""
MAX_RECENT = 4
"""Of so many documents, the ones used last, it is kept up to date."""


@dataclass(frozen=True)
class Shown:
    """What goes along with one document. project: its name."""

    project: str = ""
    files: tuple[ContextFile, ...] = ()


NOTHING = Shown()


class View:
    """One client's documents and folders.

    enabled: whether anything is to go along now. settled: called with a document's URI whenever
    what goes along with it is settled, and with the place where typing paused, if it did. tell:
    takes what files hold now.
    """

    def __init__(
        self,
        workspace: Workspace,
        documents: Documents,
        config: WorkspaceConfig,
        *,
        enabled: Callable[[], bool],
        settled: Callable[[str, tuple[int, int] | None], None],
        tell: Callable[[Sequence[FileContent]], None],
    ) -> None:
        self._workspace = workspace
        self._documents = documents
        self._config = config
        self._enabled = enabled
        self._settled = settled
        self._tell = tell
        self._projects: list[Project] = []
        self._paths: dict[str, str] = {}
        self._shown: dict[str, Shown] = {}
        self._first: dict[str, bytes] = {}
        # Where each document was changed last; the ones changed last are last.
        self._edits: dict[str, tuple[int, int]] = {}
        self._paused: set[str] = set()
        self._recent: list[str] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add_folder(self, folder: Path) -> None:
        """A folder that the client works in."""
        self._projects.append(self._workspace.acquire(folder, self._files_changed))

    def remove_folder(self, folder: Path) -> None:
        """The client does not work in it any more."""
        for project in [one for one in self._projects if one.root.folder == folder]:
            self._projects.remove(project)
            self._workspace.release(project, self._files_changed)
            for uri in [uri for uri in self._shown if self._place(uri) is None]:
                del self._shown[uri]

    def shown(self, uri: str) -> Shown:
        """What goes along with a document now; looked up, never computed."""
        self._use(uri)
        if not self._enabled():
            return NOTHING
        if uri not in self._shown and uri not in self._timers and uri not in self._tasks:
            self._settle(uri, 0)
        return self._shown.get(uri, NOTHING)

    def withheld(self, path: str) -> str:
        """Why the file at `path` (absolute) must not reach a prompt by itself; empty if it may."""
        if is_secret(path):
            return "its name says that it holds secrets"
        for project in self._projects:
            relative = project.root.relative(path)
            if relative is not None and project.listing.ignores(relative):
                return "an ignore file names it"
        return ""

    def opened(self, uri: str, path: str | None) -> None:
        """path: absolute, of a document that is a file."""
        document = self._documents.get(uri)
        if document is None or path is None:
            return
        self._paths[uri] = path
        self._first[uri] = content_of(document.text)
        self._edits.pop(uri, None)
        self._use(uri)
        self._settle(uri, 0)

    def changed(self, uri: str, place: tuple[int, int]) -> None:
        """place: (line, column) of the change."""
        self._edits.pop(uri, None)
        self._edits[uri] = place
        self._paused.add(uri)
        self._use(uri)
        self._settle(uri, IDLE_SECONDS)

    def saved(self, uri: str) -> None:
        self._settle(uri, 0)

    def settle(self) -> None:
        """Do so for the documents that were used last: whether anything goes along has changed."""
        for uri in self._recent:
            self._settle(uri, 0)

    def closed(self, uri: str) -> None:
        """The document is what is on disk again."""
        for known in (self._paths, self._shown, self._first, self._edits):
            known.pop(uri, None)
        if uri in self._recent:
            self._recent.remove(uri)
        if (timer := self._timers.pop(uri, None)) is not None:
            timer.cancel()
        if (task := self._tasks.get(uri)) is not None:
            task.cancel()
        self._paused.discard(uri)

    def close(self) -> None:
        """The client is gone."""
        for uri in list(self._paths):
            self.closed(uri)
        for project in self._projects:
            self._workspace.release(project, self._files_changed)
        self._projects.clear()

    def _use(self, uri: str) -> None:
        if uri in self._recent:
            self._recent.remove(uri)
        self._recent = [*self._recent, uri][-MAX_RECENT:]

    def _files_changed(self, project: Project, paths: frozenset[str]) -> None:
        if not paths or any(language_of(path) is not None for path in paths):
            for uri in self._recent:
                if (place := self._place(uri)) is not None and place[0] is project:
                    self._settle(uri, 0)

    def _settle(self, uri: str, seconds: float) -> None:
        """Do it after that long, unless it is asked for again before."""
        if uri not in self._paths:
            return
        if (timer := self._timers.pop(uri, None)) is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[uri] = loop.call_later(seconds, self._begin, uri)

    def _begin(self, uri: str) -> None:
        self._timers.pop(uri, None)
        if uri in self._tasks:
            # It reads an older state; what is asked for now comes behind it.
            self._settle(uri, 0.05)
            return
        task = self._tasks[uri] = asyncio.create_task(self._choose(uri), name="context")
        task.add_done_callback(lambda _task: self._tasks.pop(uri, None))

    async def _choose(self, uri: str) -> None:
        document, place = self._documents.get(uri), self._place(uri)
        if document is None:
            return
        if place is not None and self._enabled():
            project, path = place
            files = await self._workspace.read(
                _choose,
                OpenProject(project, self._buffers(project)),
                path,
                document,
                self._edited(project),
                self._config.context_tokens,
            )
            root = str(project.root.path)
            files = tuple(msgspec.structs.replace(file, root=root) for file in files)
            self._shown[uri] = Shown(project.name, files)
        if uri not in self._paused:
            self._settled(uri, None)
            return
        self._paused.discard(uri)
        self._settled(uri, self._edits.get(uri))
        if place is not None and self._enabled():
            self._pass_on(uri, place)

    def _pass_on(self, uri: str, place: tuple[Project, str]) -> None:
        """Settle the other documents, which may show the one that was edited."""
        project, path = place
        if (document := self._documents.get(uri)) is not None:
            now = FileContent(path=project.place(path), content=content_of(document.text))
            self._tell([now])
        for other in self._recent:
            if other != uri and (there := self._place(other)) and there[0] is project:
                self._settle(other, 0)

    def _place(self, uri: str) -> tuple[Project, str] | None:
        """The project that a document is of, and its path there; None if it is of none, or must
        not reach a prompt."""
        path = self._paths.get(uri)
        if path is None or is_secret(path):
            return None
        for project in self._projects:
            relative = project.root.relative(path)
            # A name that is no text has no place in a prompt.
            if relative is None or not relative.isprintable():
                continue
            if not project.listing.ignores(relative):
                return project, relative
        return None

    def _open_in(self, project: Project) -> Iterator[tuple[str, str, Document]]:
        """(URI, path, document) of what is open in a project and may be shown."""
        for uri in self._paths:
            document, place = self._documents.get(uri), self._place(uri)
            if document is not None and place is not None and place[0] is project:
                yield uri, place[1], document

    def _buffers(self, project: Project) -> dict[str, Document]:
        return {path: document for _, path, document in self._open_in(project)}

    def _edited(self, project: Project) -> list[tuple[str, int, bytes]]:
        """(path, line, content when it was opened) of what was edited, the latest last."""
        paths = {uri: path for uri, path, _ in self._open_in(project)}
        return [
            (paths[uri], line, self._first[uri])
            for uri, (line, _) in self._edits.items()
            if uri in paths
        ]


def _choose(
    project: OpenProject,
    path: str,
    document: Document,
    edited: Sequence[tuple[str, int, bytes]],
    tokens: int,
) -> tuple[ContextFile, ...]:
    """On the thread that reads. A prompt without other files is better than none, so nothing is
    raised."""
    try:
        source = project.source(path)
        if source is None:
            return ()
        texts = {one: project.text(one) for one, _, _ in edited}
        # What was put back as it was is not being edited any more.
        moving = [
            Edited(one, text, line)
            for one, line, first in edited
            if (text := texts[one]) is not None and content_of(text) != first
        ]
        return choose(path, source.outline, project, moving, tokens)
    except Exception:
        log.exception("what goes along with %s could not be found", path)
        return ()
