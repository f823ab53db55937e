"""A project of 200,000 files, half of them ignored: what it takes to know it, and to go on knowing
it. Times are of the processor, so another busy process does not count."""

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from sidecar.workspace.root import Root
from sidecar.workspace.watcher import Watcher

FILES, IN_A_FOLDER = 200_000, 20


def fill(folder, files):
    for number in range(files // IN_A_FOLDER):
        inside = folder / f"p{number // 50}" / f"d{number % 50}"
        inside.mkdir(parents=True)
        for index in range(IN_A_FOLDER):
            os.close(os.open(inside / f"module_{index}.py", os.O_CREAT | os.O_WRONLY))


def handles():
    return len(list(Path("/dev/fd").iterdir()))


@pytest.fixture
def large(tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / ".gitignore").write_text(
        "build/\n*.log\n__pycache__/\n*.pyc\n.venv/\ndist/\n/target\n*.o\n*.egg-info/\n.cache/\n"
    )
    fill(folder / "src", FILES // 2)
    fill(folder / "build", FILES // 2)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_large_project_is_known_soon_and_costs_nothing_then(large):
    known = threading.Event()
    watcher = Watcher(Root(large), lambda paths: known.set())
    opened = handles()
    before, began = time.process_time(), time.monotonic()
    watcher.start()
    assert known.wait(300)
    while watcher.status().mode == "starting":
        time.sleep(0.01)
    work, waited = time.process_time() - before, time.monotonic() - began
    status = watcher.status()
    assert status.mode in ("watch", "poll")
    assert status.files == FILES // 2 + 1
    # Those with files in them, one for every fifty, src and the root.
    assert status.directories == FILES // 2 // IN_A_FOLDER * 51 // 50 + 2
    time.sleep(1)
    before, began = time.process_time(), time.monotonic()
    time.sleep(10)
    idle = (time.process_time() - before) / (time.monotonic() - began)
    (large / "src" / "p0" / "d0" / "new.py").write_text("")
    while "src/p0/d0/new.py" not in watcher.listing:
        time.sleep(0.05)
    print(
        f"\n{status.files:,} of {FILES:,} files in {status.directories:,} directories: "
        f"{work:.2f} s of work ({waited:.1f} s by the clock), {idle:.2%} of a core when idle, "
        f"{handles() - opened} handles, {status.mode}"
    )
    watcher.stop()
    watcher.join(30)
    assert work < 3
    assert idle < 0.01
