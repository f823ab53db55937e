"""No byte from outside the root, and nothing that hangs."""

import os
from pathlib import Path

import pytest

from sidecar.workspace.root import Root, text_of


@pytest.fixture
def root(tmp_path):
    (tmp_path / "project" / "src").mkdir(parents=True)
    (tmp_path / "project" / "src" / "a.py").write_text("inside")
    (tmp_path / "outside.py").write_text("outside")
    return Root(tmp_path / "project")


def test_a_file_inside_is_read(root):
    data, stamp = root.read("src/a.py", 100)
    assert data == b"inside"
    assert stamp == root.stamp("src/a.py")
    assert stamp.size == 6


@pytest.mark.parametrize(
    "path", ["../outside.py", "src/../../outside.py", "", ".", "src", "/etc/passwd", "a\0b", "nope"]
)
def test_other_paths_are_not(root, path):
    assert root.read(path, 100) is None
    assert root.stamp(path) is None


def test_links_are_not_followed(root, tmp_path):
    (root.path / "link.py").symlink_to(tmp_path / "outside.py")
    (root.path / "up").symlink_to(tmp_path)
    (root.path / "loop").symlink_to(root.path)
    (root.path / "fine.py").symlink_to(root.path / "src" / "a.py")
    for path in ("link.py", "up/outside.py", "loop/src/a.py", "fine.py"):
        assert root.read(path, 100) is None


def test_the_root_itself_may_be_a_link_but_not_become_one(root, tmp_path):
    (tmp_path / "alias").symlink_to(root.path)
    alias = Root(tmp_path / "alias")
    assert alias.read("src/a.py", 100) is not None
    assert alias.relative(str(tmp_path / "alias" / "src" / "a.py")) == "src/a.py"
    assert alias.relative(str(root.path / "src" / "a.py")) == "src/a.py"
    assert alias.relative(str(tmp_path / "alias" / ".." / "outside.py")) is None
    root.path.rename(tmp_path / "moved")
    (tmp_path / "project").symlink_to(tmp_path)
    assert alias.read("outside.py", 100) is None


def test_a_pipe_does_not_hang(root):
    os.mkfifo(root.path / "pipe.py")
    assert root.read("pipe.py", 100) is None


def test_a_large_file_is_not_read(root):
    (root.path / "big.py").write_bytes(b"x" * 101)
    assert root.read("big.py", 100) is None
    assert root.read("big.py", 101) is not None


def test_no_handle_is_left_open(root):
    before = len(list(Path("/dev/fd").iterdir()))
    for path in ("src/a.py", "nope/x", "src/nope", "src"):
        root.read(path, 100)
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_home_and_a_disk_are_too_wide(home, tmp_path):
    assert Root(home).too_wide
    assert Root(home.parent).too_wide
    assert not Root(tmp_path).too_wide


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("a\tb\r\n😀é".encode(), "a\tb\r\n😀é"),
        (b"\xef\xbb\xbfx", "x"),
        ("é".encode("latin-1"), "é"),
        ("é😀".encode("utf-16"), "é😀"),
        (b"\x7fELF\0\0", None),
        (b"\xff\xfe\x00", None),
        (b"", ""),
    ],
)
def test_text(data, text):
    assert text_of(data) == text
