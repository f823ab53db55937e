"""The listing follows the disk, whatever happens to it, and the system is asked for little."""

import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from sidecar.workspace import watcher as watching
from sidecar.workspace.root import Root
from sidecar.workspace.watcher import Watcher, arm_watchfiles


class Watched:
    """A running watcher; `changes` are the sets it told, `armed` the paths it asked for."""

    def __init__(self, folder, **options):
        self.changes = []
        self.armed = []
        options.setdefault("arm", arm_watchfiles)
        arm = options.pop("arm")

        def recorded(paths, recursive):
            self.armed.append([os.path.relpath(path, folder) for path in paths])
            return arm(paths, recursive)

        self.watcher = Watcher(Root(folder), self.changes.append, arm=recorded, **options)
        self.watcher.start()

    @property
    def mode(self):
        return self.watcher.status().mode

    def told(self):
        return set().union(*self.changes)

    def knows(self, path):
        return path in self.watcher.listing


def eventually(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


@pytest.fixture
def watch(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "STEP_MS", 20)
    monkeypatch.setattr(watching, "DEBOUNCE_MS", 200)
    monkeypatch.setattr(watching, "MISSING_SECONDS", 0.02)
    monkeypatch.setattr(watching, "CHECK_MS", 100)
    monkeypatch.setattr(watching, "POLL_SHARE", 1.0)
    running = []

    def start(mode="watch", **options):
        (tmp_path / "p").mkdir(exist_ok=True)
        running.append(Watched(tmp_path / "p", **options))
        eventually(lambda: running[-1].mode == mode)
        return running[-1]

    yield start
    for one in running:
        one.watcher.stop()
        one.watcher.join(20)
        assert not one.watcher._thread.is_alive()


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "p"
    for path in ("src/deep", "build/x/y", "node_modules/a"):
        (folder / path).mkdir(parents=True)
    (folder / ".gitignore").write_text("build/\n*.log\n")
    (folder / "src" / "a.py").write_text("1")
    return folder


def no_watches(paths, recursive):
    raise OSError('OS file watch limit reached. about ["/home/x"]')


def no_instances(paths, recursive):
    raise RuntimeError("Error creating recommended watcher: Too many open files")


@pytest.mark.parametrize("recursive", [False, True])
def test_files_come_change_and_go(watch, project, recursive):
    one = watch(recursive=recursive)
    assert one.knows("src/a.py")
    (project / "src" / "a.py").write_text("2")
    eventually(lambda: "src/a.py" in one.told())
    (project / "src" / "b.py").write_text("")
    eventually(lambda: one.knows("src/b.py"))
    (project / "src" / "b.py").unlink()
    eventually(lambda: not one.knows("src/b.py"))
    assert "src/b.py" in one.told()
    status = one.watcher.status()
    assert status.changes >= 3
    assert status.last_change is not None
    assert status.files == 2


def test_only_directories_that_are_not_ignored_are_watched(watch, project):
    one = watch()
    assert sorted(one.armed[-1]) == [".", "src", "src/deep"]
    for name in ("build/x/new.py", "x.log", "src/y.log"):
        (project / name).write_text("")
    (project / "src" / "last.py").write_text("")
    eventually(lambda: one.knows("src/last.py"))
    assert one.told() == {"src/last.py"}
    assert len(one.armed) == 1


@pytest.mark.parametrize("recursive", [False, True])
def test_new_directories_are_watched_with_what_is_in_them(watch, project, recursive):
    one = watch(recursive=recursive)
    (project / "new" / "deep").mkdir(parents=True)
    (project / "new" / "deep" / "x.py").write_text("")
    eventually(lambda: one.knows("new/deep/x.py"))
    (project / "new" / "deep" / "later").mkdir()
    eventually(lambda: one.watcher.listing.directory("new/deep/later"))
    (project / "new" / "deep" / "later" / "y.py").write_text("")
    eventually(lambda: one.knows("new/deep/later/y.py"))


def test_a_directory_moves_within_and_out(watch, project, tmp_path):
    one = watch()
    (project / "src").rename(project / "lib")
    eventually(lambda: one.knows("lib/a.py") and not one.knows("src/a.py"))
    (project / "lib" / "a.py").write_text("3")
    eventually(lambda: "lib/a.py" in one.told())
    (project / "lib").rename(tmp_path / "elsewhere")
    eventually(lambda: not one.knows("lib/a.py"))


def test_an_ignore_file_that_changes_holds_at_once(watch, project):
    one = watch()
    (project / ".pillionignore").write_text("src/\n!build/\n")
    eventually(lambda: not one.knows("src/a.py"))
    eventually(lambda: one.watcher.listing.directory("build/x"))
    (project / ".pillionignore").unlink()
    eventually(lambda: one.knows("src/a.py"))


def test_a_branch_switch_is_taken_together(watch, project, monkeypatch):
    monkeypatch.setattr(watching, "DEBOUNCE_MS", 1600)
    monkeypatch.setattr(watching, "STEP_MS", 200)
    for index in range(5000):
        folder = project / "src" / f"d{index // 100}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{index}.py").write_text("a")
    one = watch()
    assert one.watcher.status().files == 5002
    for index in range(5000):
        path = project / "src" / f"d{index // 100}" / f"f{index}.py"
        if index % 5 == 0:
            path.unlink()
        else:
            path.write_text("bb")
    eventually(lambda: one.watcher.status().files == 4002, seconds=60)
    eventually(lambda: len(one.told()) == 5000, seconds=60)
    assert len(one.changes) < 50
    assert one.knows("src/d0/f1.py")


def test_a_root_that_goes_and_comes_back(watch, project):
    one = watch()
    shutil.rmtree(project)
    eventually(lambda: one.mode == "missing")
    assert not one.knows("src/a.py")
    project.mkdir()
    (project / "b.py").write_text("")
    eventually(lambda: one.mode == "watch" and one.knows("b.py"))
    (project / "c.py").write_text("")
    eventually(lambda: one.knows("c.py"))


def test_a_root_that_was_never_there(watch, tmp_path):
    one = Watched(tmp_path / "nowhere")
    eventually(lambda: one.mode == "missing")
    one.watcher.stop()
    one.watcher.join(20)


def test_a_root_that_is_replaced_in_one_go(watch, project, tmp_path):
    one = watch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "new.py").write_text("")
    project.rename(tmp_path / "old")
    (tmp_path / "other").rename(project)
    eventually(lambda: one.knows("new.py") and not one.knows("src/a.py"))


def test_loops_of_links_end(watch, project):
    (project / "src" / "up").symlink_to(project)
    (project / "src" / "self").symlink_to("self")
    one = watch()
    assert sorted(one.armed[-1]) == [".", "src", "src/deep"]


@pytest.mark.parametrize("arm", [no_watches, no_instances])
def test_without_watches_it_polls_and_says_so(watch, project, arm):
    one = watch("poll", arm=arm, poll_seconds=0.02, interesting=lambda: ["src/a.py"])
    status = one.watcher.status()
    assert "no watches" in status.detail
    assert "/home/x" not in status.detail
    (project / "src" / "b.py").write_text("")
    eventually(lambda: one.knows("src/b.py"))
    (project / "src" / "a.py").write_text("longer")
    eventually(lambda: "src/a.py" in one.told())
    (project / "new").mkdir()
    (project / "new" / "c.py").write_text("")
    eventually(lambda: one.knows("new/c.py"))
    shutil.rmtree(project / "new")
    eventually(lambda: not one.knows("new/c.py"))


def test_watches_that_are_free_again_are_taken(watch, project, monkeypatch):
    monkeypatch.setattr(watching, "RETRY_SECONDS", 0.05)
    refusals = [OSError(errno.ENOSPC, "no space")] * 2

    def arm(paths, recursive):
        if refusals:
            raise refusals.pop()
        return arm_watchfiles(paths, recursive)

    one = watch("watch", arm=arm, poll_seconds=0.02)
    (project / "src" / "b.py").write_text("")
    eventually(lambda: one.knows("src/b.py"))


def test_a_directory_that_goes_while_it_is_asked_for(watch, project):
    def arm(paths, recursive):
        shutil.rmtree(project / "src" / "deep", ignore_errors=True)
        return arm_watchfiles(paths, recursive)

    one = watch(arm=arm)
    assert one.watcher.listing.directory("src/deep") is None


def test_handles_stay_flat(watch, project):
    one = watch()

    def handles():
        return len(list(Path("/dev/fd").iterdir()))

    before, threads = handles(), threading.active_count()
    for index in range(8):
        folder = project / f"n{index}"
        folder.mkdir()
        (folder / "x.py").write_text("")
        eventually(lambda index=index: one.knows(f"n{index}/x.py"))
        shutil.rmtree(folder)
        eventually(lambda index=index: not one.knows(f"n{index}/x.py"))
    assert len(one.armed) >= 8
    assert sorted(one.armed[-1]) in ([".", "src", "src/deep"], [".", "n7", "src", "src/deep"])
    eventually(lambda: handles() <= before)
    assert threading.active_count() <= threads


def test_a_home_is_not_walked(home):
    one = Watched(home)
    eventually(lambda: one.mode == "off")
    assert "home" in one.watcher.status().detail
    assert one.armed == []
