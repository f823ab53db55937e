"""No name, and no link, leads out of the workspace."""

import os
import socket
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import RequestError
from sidecar.edits.writable_root import Refused, WritableRoot, sha256

OUTSIDE = b"not yours\n"


@pytest.fixture
def workspace(tmp_path):
    """A root with links out of it and within, beside a file that must never change."""
    folder = tmp_path / "w"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "c.py").write_bytes(b"x = 1\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "c.py").write_bytes(OUTSIDE)
    (folder / "out").symlink_to("../outside")
    (folder / "a" / "up").symlink_to(tmp_path)
    (folder / "a" / "link.py").symlink_to("../../outside/c.py")
    (folder / "inner.py").symlink_to("a/b/c.py")
    return folder


def snapshot(folder):
    """Every file's bytes, mode and, for links, target; by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        kind = path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        found[str(path.relative_to(folder))] = (kind, mode)
    return found


def write(root, path, data=b"y = 2\n", expected=b"x = 1\n"):
    root.replace(path, data, expected=sha256(expected), partial=".partial")


def test_a_file_is_replaced_and_keeps_its_mode(workspace):
    file = workspace / "a" / "b" / "c.py"
    file.chmod(0o754)
    with WritableRoot(workspace) as root:
        assert root.read("a/b/c.py").data == b"x = 1\n"
        write(root, "a/b/c.py")
        root.flush(["a/b/c.py"])
    assert file.read_bytes() == b"y = 2\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o754
    assert [path.name for path in file.parent.iterdir()] == ["c.py"]


parts = st.sampled_from(
    ["..", ".", "", "a", "b", "c.py", "up", "out", "outside", "link.py", "inner.py", "w", "~", "/"]
)


@given(path=st.lists(parts, max_size=6).map("/".join) | st.text(max_size=12))
def test_whatever_the_path_nothing_outside_changes(tmp_path_factory, path):
    base = tmp_path_factory.mktemp("property")
    folder = base / "w"
    (folder / "a" / "b").mkdir(parents=True)
    (base / "outside").mkdir()
    for place in (folder / "a" / "b" / "c.py", base / "outside" / "c.py", base / "c.py"):
        place.write_bytes(b"x = 1\n")
    (folder / "out").symlink_to("../outside")
    (folder / "a" / "up").symlink_to(base)
    (folder / "a" / "link.py").symlink_to("../../c.py")
    (folder / "inner.py").symlink_to("a/b/c.py")
    before = snapshot(base)
    with WritableRoot(folder) as root:
        try:
            write(root, path)
        except Refused:
            assert snapshot(base) == before
        else:
            assert path == "a/b/c.py"
            before["w/a/b/c.py"] = (b"y = 2\n", before["w/a/b/c.py"][1])
            assert snapshot(base) == before


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../outside/c.py", "plain path"),
        ("/etc/passwd", "plain path"),
        ("a//b/c.py", "plain path"),
        ("out/c.py", "symbolic link"),
        ("a/up/outside/c.py", "symbolic link"),
        ("a/link.py", "symbolic link"),
        ("inner.py", "symbolic link"),
        ("a/b", "no regular file"),
        ("a/b/c.py/d", "symbolic link"),
        ("gone.py", "is gone"),
        (".git/config", "git"),
        ("a/.GIT/hooks/post-commit", "git"),
        ("a\0b", "no path"),
        ("", "no path"),
        ("a/" + "n" * 300, "too long"),
    ],
)
def test_refusals_say_why(workspace, path, reason):
    with WritableRoot(workspace) as root:
        for use in (root.read, root.check_writable, lambda path: write(root, path)):
            with pytest.raises(Refused, match=reason):
                use(path)


def test_a_folder_that_becomes_a_link_leads_nowhere(workspace):
    with WritableRoot(workspace) as root:
        root.read("a/b/c.py")
        (workspace / "a").rename(workspace / "moved")
        (workspace / "a").symlink_to("../outside")
        (workspace.parent / "outside" / "b").mkdir()
        (workspace.parent / "outside" / "b" / "c.py").write_bytes(b"x = 1\n")
        with pytest.raises(Refused, match="symbolic link"):
            write(root, "a/b/c.py")


def test_a_root_that_is_renamed_stays_the_same_folder(workspace):
    with WritableRoot(workspace) as root:
        workspace.rename(workspace.with_name("elsewhere"))
        write(root, "a/b/c.py")
    assert (workspace.with_name("elsewhere") / "a/b/c.py").read_bytes() == b"y = 2\n"


def test_another_content_is_not_overwritten(workspace):
    with WritableRoot(workspace) as root, pytest.raises(Refused, match="changed meanwhile"):
        write(root, "a/b/c.py", expected=b"x = 0\n")
    assert (workspace / "a/b/c.py").read_bytes() == b"x = 1\n"


def test_a_write_between_the_look_and_the_rename_is_not_overwritten(workspace, monkeypatch):
    """The last look comes after the slow part, which is writing to the disk."""
    file, sync = workspace / "a/b/c.py", os.fsync

    def write_meanwhile(handle):
        sync(handle)
        file.write_bytes(b"x = 3\n")

    monkeypatch.setattr(os, "fsync", write_meanwhile)
    with WritableRoot(workspace) as root, pytest.raises(Refused, match="changed meanwhile"):
        write(root, "a/b/c.py")
    assert file.read_bytes() == b"x = 3\n"
    assert [path.name for path in file.parent.iterdir()] == ["c.py"]


def test_files_that_renaming_over_would_not_leave_as_they_were(workspace):
    read_only = workspace / "read_only.py"
    read_only.write_bytes(b"x = 1\n")
    read_only.chmod(0o444)
    (workspace / "one.py").write_bytes(b"x = 1\n")
    (workspace / "two.py").hardlink_to(workspace / "one.py")
    os.mkfifo(workspace / "pipe.py")
    unix = socket.socket(socket.AF_UNIX)
    os.chdir(workspace)
    unix.bind("socket.py")
    unix.close()
    reasons = {
        "read_only.py": "is read-only",
        "one.py": "hard links",
        "pipe.py": "no regular file",
        "socket.py": "no regular file",
    }
    with WritableRoot(workspace) as root:
        for path, reason in reasons.items():
            with pytest.raises(Refused, match=reason):
                write(root, path)


def test_a_submodule_and_a_worktree_are_other_repositories(workspace):
    for name in ("libs/module", "tree"):
        (workspace / name).mkdir(parents=True)
        (workspace / name / ".git").write_text("gitdir: elsewhere\n")
        (workspace / name / "c.py").write_bytes(b"x = 1\n")
    (workspace / ".git").mkdir()
    with WritableRoot(workspace) as root:
        with pytest.raises(Refused, match="another repository, libs/module"):
            write(root, "libs/module/c.py")
        with pytest.raises(Refused, match="another repository, tree"):
            root.read("tree/c.py")
        write(root, "a/b/c.py")


def test_a_large_file_is_not_read(workspace):
    with (workspace / "large.py").open("wb") as file:
        file.truncate(50 << 20)
    with (
        WritableRoot(workspace) as root,
        pytest.raises(Refused, match="has 52428800 bytes; at most 1000"),
    ):
        root.read("large.py", most=1000)


def test_a_root_that_is_no_folder(tmp_path):
    with pytest.raises(RequestError, match="No such file"):
        WritableRoot(tmp_path / "none")
