"""A day in an editor, without its pauses: clients come and go, documents are typed in and saved, a
build writes, branches are switched. What the daemon holds on to at night is what it held on to in
the morning. The cache's half of a day: tests/engine/prefix_cache/test_crashes.py."""

import random
import threading
from pathlib import Path

import pytest
from process_holds import open_files, resident
from waiting import until

from sidecar.config import WorkspaceConfig
from sidecar.workspace import view
from sidecar.workspace.documents import Documents
from sidecar.workspace.project import KEPT
from sidecar.workspace.view import View
from sidecar.workspace.workspace import Workspace

FOLDERS, FILES = 12, 8
# Bytes of memory, from the morning to the evening.
MOST_GROWTH = 16 << 20
CONFIG = WorkspaceConfig(context="on")


def write_branch(project, name, draw):
    """Every file as one branch has it; some folders are of that branch alone."""
    for number in range(FOLDERS):
        folder = project / f"part_{number}"
        folder.mkdir(exist_ok=True)
        for index in range(FILES):
            text = f"def of_{number}_{index}(value: int) -> int:\n    return {draw.random()}\n"
            (folder / f"module_{index}.py").write_text(text)
    for other in project.glob("only_*"):
        for file in other.iterdir():
            file.unlink()
        other.rmdir()
    (project / f"only_{name}").mkdir()
    (project / f"only_{name}" / "here.py").write_text("def here() -> None: ...\n")


def handles():
    """Open files, and the watches behind them where the system tells."""
    names = open_files()
    watches = 0
    for name in names:
        try:
            watches += Path(f"/proc/self/fdinfo/{name}").read_text().count("inotify wd:")
        except OSError:
            continue
    return len(names), watches, threading.active_count()


async def session(workspace, project, draw, told):
    """One client: it opens a few documents, types, saves, and goes."""
    documents, settled = Documents(), set()
    editor = View(
        workspace,
        documents,
        CONFIG,
        enabled=lambda: True,
        settled=lambda uri, place: settled.add(uri),
        tell=lambda files: told.update({file.path: file.content for file in files}),
    )
    editor.add_folder(project)
    for number in draw.sample(range(FOLDERS), 3):
        path = project / f"part_{number}" / f"module_{draw.randrange(FILES)}.py"
        uri, text = path.as_uri(), path.read_text()
        documents.open(uri, "python", 1, text)
        editor.opened(uri, str(path))
        for column in range(4):
            editor.changed(uri, (0, column))
            assert editor.shown(uri) is not None
        path.write_text(f"{text}# {draw.random()}\n")
        editor.saved(uri)
        await until(lambda uri=uri: uri in settled)
        settled.clear()
    editor.close()


async def hours(project, count, told):
    """Bytes that are held at the end of each hour; handles are as many as in the morning."""
    draw, held = random.Random(5), []
    (project / ".gitignore").write_text("build/\n")
    write_branch(project, "first", draw)
    workspace = Workspace(
        lambda files: told.update({file.path: file.content for file in files}),
        CONFIG.max_file_bytes,
    )

    def nothing(_project, _paths):
        """One client that only stays, so that there is always a watcher."""

    kept = workspace.acquire(project, nothing)
    await until(lambda: kept.watcher.status().mode == "watch")
    await session(workspace, project, draw, told)
    morning = handles()
    # The root, its folders, and the one of the branch; none where the system does not say.
    assert morning[1] in (0, FOLDERS + 2)
    for hour in range(count):
        for _ in range(4):
            await session(workspace, project, draw, told)
        (project / "build").mkdir(exist_ok=True)
        for number in range(50):
            (project / "build" / f"{hour}_{number}.py").write_text("x = 1\n")
        branch = "second" if hour % 2 else "first"
        write_branch(project, branch, draw)
        here = f"only_{branch}/here.py"
        gone = f"only_{'first' if hour % 2 else 'second'}/here.py"
        await until(lambda here=here, gone=gone: here in kept.listing and gone not in kept.listing)
        # New watches are taken before old ones are given back.
        await until(lambda: all(now <= then for now, then in zip(handles(), morning, strict=True)))
        assert len(kept.known()) <= KEPT
        assert kept.listing.files == FOLDERS * FILES + 2
        held.append(resident())
    workspace.release(kept, nothing)
    workspace.close()
    return held


@pytest.mark.slow
async def test_a_day_leaves_no_handles_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(view, "IDLE_SECONDS", 0.01)
    told = {}
    before = handles()[0]
    held = await hours(tmp_path, 24, told)
    # Behind a morning of three hours.
    assert held[-1] - held[3] < MOST_GROWTH
    # What was told is of the files that there are, one entry each.
    assert set(told) <= {str(path) for path in tmp_path.rglob("*.py")} | {
        str(tmp_path / f"only_{name}" / "here.py") for name in ("first", "second")
    }
    await until(lambda: handles()[0] <= before + 1)
