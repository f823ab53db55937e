"""Every folder that some client works in, watched once however many clients do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import FileContent
from sidecar.workspace.project import Project
from sidecar.workspace.root import Root
from sidecar.workspace.watcher import WatchStatus

Listener = Callable[[Project, frozenset[str]], None]


@dataclass
class _Held:
    project: Project
    listeners: list[Listener] = field(default_factory=list)


class Workspace:
    """Used from one event loop; files are read and parsed on a thread of its own.

    tell: takes what files hold now, of those that were read before. max_bytes: of a file that is
    read.
    """

    def __init__(self, tell: Callable[[Sequence[FileContent]], None], max_bytes: int) -> None:
        self._tell = tell
        self._max_bytes = max_bytes
        self._held: dict[Path, _Held] = {}
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="workspace")
        self._tasks: set[asyncio.Task[None]] = set()

    def acquire(self, folder: Path, listener: Listener) -> Project:
        """The project at `folder`, watched from now on.

        listener: called on the event loop with the files that may be other ones now, and with none
        when the project's files are known for the first time.
        """
        root, loop = Root(folder), asyncio.get_running_loop()
        held = self._held.get(root.path)
        if held is None:

            def changed(paths: frozenset[str]) -> None:
                # A loop that is closed has nobody left to tell.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._changed, root.path, paths)

            held = self._held[root.path] = _Held(Project(root, changed, self._max_bytes))
            held.project.watcher.start()
        held.listeners.append(listener)
        return held.project

    def release(self, project: Project, listener: Listener) -> None:
        """The watching ends with the last one who acquired the project."""
        held = self._held.get(project.root.path)
        if held is None:
            return
        with contextlib.suppress(ValueError):
            held.listeners.remove(listener)
        if not held.listeners:
            del self._held[project.root.path]
            project.watcher.stop()

    async def read(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run what touches files or grammars on the one thread where that is allowed."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, function, *arguments)

    def status(self) -> list[WatchStatus]:
        return [held.project.watcher.status() for held in self._held.values()]

    def close(self) -> None:
        for held in self._held.values():
            held.project.watcher.stop()
        self._held.clear()
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _changed(self, path: Path, paths: frozenset[str]) -> None:
        held = self._held.get(path)
        if held is None:
            return
        task = asyncio.create_task(self._spread(held, paths), name="workspace change")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _spread(self, held: _Held, paths: frozenset[str]) -> None:
        known = paths.intersection(held.project.known())
        if known:
            try:
                self._tell(await self.read(_contents, held.project, sorted(known)))
            except RuntimeError:
                # The workspace is closed.
                return
        for listener in list(held.listeners):
            listener(held.project, paths)


def _contents(project: Project, paths: Sequence[str]) -> list[FileContent]:
    found = ((path, project.source(path)) for path in paths)
    return [
        FileContent(path=project.place(path), content=one.content if one else b"")
        for path, one in found
    ]
